"""The default index: compares a query with every entry. Exact, the same on every run, and fast enough up to some 100,000 entries."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from fugu import files
from fugu.coding.memory.contract import (
    IndexFileError,
    Metric,
    Neighbour,
    check_entries,
    check_metric,
    check_vectors,
)
from fugu.coding.memory.filters import Attribute, Filter
from fugu.errors import ConfigError

MOST_BYTES = 1 << 32
"""size of a file that is read"""

_SPARE = 16  # entries looked at more closely than asked for: single precision may have them in another order
_BLOCK = 64  # queries at once


class ExactIndex:
    def __init__(self, dim: int, metric: Metric = "cosine") -> None:
        check_metric(metric, dim)
        self.dim, self.metric = dim, metric
        self._vectors = np.zeros((0, dim), np.float32)  # [room, dim], the first len(_ids) of them in use
        self._ids: list[str] = []
        self._attributes: list[dict[str, Attribute]] = []
        self._row: dict[str, int] = {}

    def upsert(self, ids: Sequence[str], vectors: Any, attributes: Sequence[Mapping[str, Attribute]] | None = None) -> None:
        rows, plain = check_entries(ids, vectors, attributes, self.dim)
        self._make_room(len(self._ids) + len(ids))
        for name, vector, each in zip(ids, rows, plain, strict=True):
            row = self._row.setdefault(name, len(self._ids))
            if row == len(self._ids):
                self._ids.append(name)
                self._attributes.append(each)
            else:
                self._attributes[row] = each
            self._vectors[row] = vector

    def query(self, vectors: Any, top_k: int = 10, where: Filter | None = None) -> list[list[Neighbour]]:
        queries = check_vectors(vectors, self.dim)
        if top_k < 1:
            raise ConfigError(f"top_k={top_k} must be at least 1")
        rows = np.array(
            [row for row, each in enumerate(self._attributes) if where is None or where.matches(each)], np.int64
        )  # [candidates]
        if not len(rows):
            return [[] for _ in queries]
        known = self._vectors[: len(self._ids)] if where is None else self._vectors[rows]
        out: list[list[Neighbour]] = []
        for first in range(0, len(queries), _BLOCK):
            block = queries[first : first + _BLOCK]
            for query, score in zip(block, _scores(block, known, self.metric), strict=True):
                most = min(top_k + _SPARE, len(rows))
                near = rows[np.argpartition(-score, most - 1)[:most]]
                out.append(self.ranked(query, near, top_k))
        return out

    def ranked(self, query: np.ndarray, rows: np.ndarray, top_k: int) -> list[Neighbour]:
        """Return the best of these rows. They are scored in double precision, so that no score depends on what else was asked."""
        wanted = query.astype(np.float64)
        found = [(-_score(wanted, self._vectors[row].astype(np.float64), self.metric), self._ids[row], row) for row in rows]
        return [Neighbour(name, -score, dict(self._attributes[row])) for score, name, row in sorted(found)[:top_k]]

    def delete(self, ids: Sequence[str] | None = None, *, where: Filter | None = None) -> None:
        if (ids is None) == (where is None):
            raise ConfigError("delete needs either ids or where")
        if where is not None:
            ids = [name for name, each in zip(self._ids, self._attributes, strict=True) if where.matches(each)]
        for name in ids or ():
            row = self._row.pop(name, None)
            if row is None:
                continue
            last = len(self._ids) - 1
            if row != last:  # the last one takes its place
                self._ids[row], self._attributes[row] = self._ids[last], self._attributes[last]
                self._vectors[row] = self._vectors[last]
                self._row[self._ids[row]] = row
            self._ids.pop()
            self._attributes.pop()

    def count(self) -> int:
        return len(self._ids)

    def entries(self) -> tuple[list[str], np.ndarray, list[dict[str, Attribute]]]:
        """Return ids, vectors ``[entries, dim]`` and attributes, in the order of ids."""
        order = sorted(range(len(self._ids)), key=lambda row: self._ids[row])
        vectors = self._vectors[order] if order else self._vectors[:0]
        return [self._ids[row] for row in order], vectors, [self._attributes[row] for row in order]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file, complete or not there at all; the same entries give the same bytes."""
        ids, vectors, attributes = self.entries()
        about = {
            "format": "fugu memory",
            "version": 1,
            "dim": self.dim,
            "metric": self.metric,
            "ids": ids,
            "attributes": attributes,
        }
        about["sha256"] = _digest(about, vectors)
        # in a tensor of their own, since the order of safetensors' metadata is not the same every time
        data = safetensors.save({"about": np.frombuffer(json.dumps(about).encode(), np.uint8), "vectors": vectors})
        try:
            _replace(Path(path), data)
        except OSError as error:
            raise IndexFileError(f"{path} cannot be written: {error.strerror}") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ExactIndex:
        """Read what ``save`` wrote, or raise IndexFileError. Nothing in the file can be code."""
        try:
            data = files.read(Path(path), MOST_BYTES)
        except OSError as error:
            raise IndexFileError(f"{path} cannot be read: {error.strerror}") from None
        try:
            arrays = safetensors.load(data)
            about, vectors = json.loads(arrays["about"].tobytes()), arrays["vectors"]
            if about["format"] != "fugu memory":
                raise ValueError("it is of another format")
            if about["version"] != 1:
                raise IndexFileError(
                    f"{path} has version {about['version']}; this fugu reads version 1: pip install --upgrade fugu-rl"
                )
            if about.pop("sha256") != _digest(about, vectors):
                raise ValueError("it is not what was written")
            index = cls(about["dim"], about["metric"])
            index.upsert(about["ids"], vectors.reshape(-1, index.dim), about["attributes"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, SafetensorError) as error:
            raise IndexFileError(f"{path} is no memory, or damaged: {error}") from None
        return index

    def _make_room(self, entries: int) -> None:
        if entries > len(self._vectors):
            grown = np.zeros((max(entries, 2 * len(self._vectors), 64), self.dim), np.float32)
            grown[: len(self._ids)] = self._vectors[: len(self._ids)]
            self._vectors = grown


def _scores(queries: np.ndarray, known: np.ndarray, metric: Metric) -> np.ndarray:
    """Score ``[queries, entries]``, in single precision."""
    products = queries @ known.T
    if metric == "dot":
        return products
    lengths = np.einsum("nd,nd->n", known, known)
    if metric == "euclidean":
        return 2 * products - lengths  # minus the squared distance, but for the query's own length
    return products / np.sqrt(np.maximum(lengths, 1e-30))


def _score(query: np.ndarray, vector: np.ndarray, metric: Metric) -> float:
    if metric == "euclidean":
        return -float(np.sqrt(np.sum((query - vector) ** 2)))
    product = float(np.sum(query * vector))
    if metric == "dot":
        return product
    lengths = float(np.sqrt(np.sum(query**2) * np.sum(vector**2)))
    return product / lengths if lengths > 0 else 0.0


def _digest(about: Mapping[str, Any], vectors: np.ndarray) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode() + vectors.tobytes()).hexdigest()


def _replace(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name, too
    finally:
        os.close(folder)
