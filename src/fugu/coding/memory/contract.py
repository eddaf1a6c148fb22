"""Define what every index offers: entries with an id, a vector and attributes; the nearest of them to a vector.

Ids are texts of at most 64 bytes, vectors ``float32 [dim]`` without NaN, attributes names with a text, a number, a truth value or None.
Scores are higher for what is nearer: the cosine, the dot product, or minus the euclidean distance. Equal scores go in the order of ids.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np

from fugu.coding.memory.filters import Attribute, Filter
from fugu.errors import ConfigError, FuguError, did_you_mean

Metric = Literal["cosine", "dot", "euclidean"]
ID_BYTES = 64


class IndexFileError(FuguError, RuntimeError):
    """A memory could not be written, found or trusted."""


@dataclass(frozen=True)
class Neighbour:
    id: str
    score: float
    """higher is nearer"""
    attributes: Mapping[str, Attribute]


class Index(Protocol):
    dim: int
    metric: Metric

    def upsert(self, ids: Sequence[str], vectors: Any, attributes: Sequence[Mapping[str, Attribute]] | None = None) -> None:
        """Add entries ``vectors [entries, dim]``, or replace those with the same id."""
        ...

    def query(self, vectors: Any, top_k: int = 10, where: Filter | None = None) -> list[list[Neighbour]]:
        """Find for each of ``vectors [queries, dim]`` (or one, ``[dim]``) the entries that ``where`` lets through, nearest first."""
        ...

    def delete(self, ids: Sequence[str] | None = None, *, where: Filter | None = None) -> None:
        """Drop entries with these ids, or those that ``where`` lets through. Ids that are not there do no harm."""
        ...

    def count(self) -> int: ...

    def save(self, path: str | os.PathLike[str]) -> None: ...


def check_metric(metric: str, dim: int) -> None:
    if metric not in get_args(Metric):
        raise ConfigError(f"there is no metric {metric!r}.{did_you_mean(metric, get_args(Metric))}")
    if dim < 1:
        raise ConfigError(f"dim={dim} must be at least 1")


def check_entries(
    ids: Sequence[str], vectors: Any, attributes: Sequence[Mapping[str, Attribute]] | None, dim: int
) -> tuple[np.ndarray, list[dict[str, Attribute]]]:
    """Return ``float32 [entries, dim]`` and the attributes, or raise ConfigError."""
    rows = check_vectors(vectors, dim)
    plain = [dict(each) for each in attributes] if attributes is not None else [{} for _ in ids]
    if not len(ids) == len(rows) == len(plain):
        raise ConfigError(f"upsert: {len(ids)} ids, {len(rows)} vectors and {len(plain)} attributes must be as many")
    for name in ids:
        if not isinstance(name, str) or not 0 < len(name.encode("utf-8", "surrogatepass")) <= ID_BYTES:
            raise ConfigError(f"upsert: an id must be a text of 1 to {ID_BYTES} bytes, not {name!r:.80}")
    for each in plain:
        for key, value in each.items():
            if not isinstance(key, str) or key in ("id", "vector") or key.startswith("$"):
                raise ConfigError(f"upsert: {key!r} cannot be the name of an attribute")
            if value is not None and not isinstance(value, str | int | float | bool):
                raise ConfigError(
                    f"upsert: attribute {key!r} must be a text, a number, a truth value or None, not {value!r:.60}"
                )
    return rows, plain


def check_vectors(vectors: Any, dim: int) -> np.ndarray:
    """Return ``float32 [rows, dim]``, or raise ConfigError."""
    rows = np.asarray(vectors, np.float32)
    rows = rows[None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or rows.shape[1] != dim:
        raise ConfigError(f"expected vectors of {dim} numbers, got an array of shape {list(np.shape(vectors))}")
    if not np.isfinite(rows).all():
        raise ConfigError("vectors must be finite")
    return rows
