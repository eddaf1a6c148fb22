"""Minari's layout of recorded episodes: what is called what, spaces as it writes them, and where its data sets lie.

    metadata.json       totals, spaces, and who made it
    main_data.hdf5      a group ``episode_0`` and so on, with ``observations`` (steps + 1), ``actions``, ``rewards``, ``terminations``,
                        ``truncations`` (steps each) and ``infos`` (steps + 1); Dict and Tuple are groups, parts of a Tuple ``_index_0``

That is Minari 0.5. Pictures (uint8 from 0 to 255, at least 32 x 32) are compressed one by one; Minari writes JPEG, which changes them,
and fugu PNG, which does not and which Minari reads as well. Columns beyond those above are infos of the same name.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces as gs

from fugu.errors import ConfigError, SpaceError
from fugu.spaces import Layout, Leaf
from fugu.spaces.as_json import INFINITE, from_json

MAIN, METADATA = "main_data.hdf5", "metadata.json"
LAYOUT = "0.5.0"
"""version of Minari that this layout began with"""
OURS = "fugu"
"""key of the metadata, and beginning of the attributes, that only fugu reads"""
PREFIX = "minari:"
_NAME = re.compile(r"(?:[-_\w]+/)*[-_\w]+-v\d+")
SMALLEST = 32
"""height and width from which pictures are compressed"""


def folder_of(name: str) -> Path:
    """Return the folder of the local data set ``name``, such as ``cartpole/expert-v0``, whether or not it is there."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{PREFIX}{name} is no name of a data set; they are like {PREFIX}cartpole/expert-v0")
    root = os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets"
    return Path(root) / name / "data"


def refuse_unfit(layout: Layout, what: str) -> None:
    """Raise a SpaceError about a part of a space that the layout has no place for."""
    for leaf in layout.leaves:
        if leaf.lead or leaf.path[-1:] in (("choice",), ("length",)):
            raise SpaceError(
                f"Minari's layout has no place for {layout.space}", where=what, fix="Keep the folder that fugu record wrote"
            )
        if is_picture(leaf.space) and len(leaf.shape) == 3 and leaf.shape[2] not in (1, 3, 4):
            raise SpaceError(
                f"Minari's layout compresses pictures, which have 1, 3 or 4 channels, not {leaf.shape[2]}",
                where=f"{what} {leaf.name}".strip(),
                fix="Keep the folder that fugu record wrote, or record with channels first",
            )


def is_picture(space: gs.Space) -> bool:
    """Return whether Minari compresses what is in this Box."""
    return (
        isinstance(space, gs.Box)
        and len(space.shape) in (2, 3)
        and min(space.shape[:2]) >= SMALLEST
        and space.dtype == np.uint8
        and bool((space.low == 0).all() and (space.high == 255).all())
    )


def place_of(leaf: Leaf, space: gs.Space) -> str:
    """Return the path of a leaf below ``observations`` or ``actions``; empty for one that is the whole space."""
    parts = []
    for step in leaf.path:
        parts.append(f"_index_{step}" if isinstance(space, gs.Tuple) else str(step))
        space = space.spaces[step]  # type: ignore[attr-defined]
        if "/" in parts[-1] or parts[-1] in ("", ".", ".."):
            raise SpaceError(f"the key {step!r} cannot name a part of an HDF5 file", fix="Rename it")
    return "/".join(parts)


# spaces -----------------------------------------------------------------------------------------------------------------------------


def written(space: gs.Space) -> dict[str, Any]:
    """Return ``space`` as Minari writes it."""
    if isinstance(space, gs.Dict):
        return {"type": "Dict", "subspaces": {str(key): written(part) for key, part in space.spaces.items()}}
    if isinstance(space, gs.Tuple):
        return {"type": "Tuple", "subspaces": [written(part) for part in space.spaces]}
    if isinstance(space, gs.Box):
        bounds = {"low": space.low.tolist(), "high": space.high.tolist()}
        return {"type": "Box", "dtype": str(np.dtype(space.dtype)), "shape": list(space.shape), **bounds}
    if isinstance(space, gs.Discrete):
        return {"type": "Discrete", "dtype": "int64", "start": int(space.start), "n": int(space.n)}
    if isinstance(space, gs.MultiDiscrete):
        numbers = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"type": "MultiDiscrete", "dtype": str(np.dtype(space.dtype)), **numbers}
    if isinstance(space, gs.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(map(int, space.n))}
    if isinstance(space, gs.Text):
        lengths = {"max_length": int(space.max_length), "min_length": int(space.min_length)}
        return {"type": "Text", **lengths, "charset": space.characters}
    raise SpaceError(f"Minari's layout has no place for {space}", fix="Keep the folder that fugu record wrote")


def read_space(value: Any) -> gs.Space:
    """Return the space that Minari wrote as ``value``; SpaceError if it is anything else."""
    return from_json(_translated(value, 0))


def _translated(value: Any, depth: int) -> Any:
    """Return what Minari wrote as ``spaces/as_json.py`` writes it; that checks it."""
    if not isinstance(value, dict) or depth > 64:
        return value
    kind, parts = value.get("type"), value.get("subspaces")
    if kind == "Dict" and isinstance(parts, dict):
        return {"type": "Dict", "spaces": [[key, _translated(part, depth + 1)] for key, part in parts.items()]}
    if kind == "Tuple" and isinstance(parts, list):
        return {"type": "Tuple", "spaces": [_translated(part, depth + 1) for part in parts]}
    flat = {name: _flat(value[name]) for name in ("low", "high", "nvec", "start") if name in value}
    if kind == "MultiDiscrete":
        shape = _shape(value.get("nvec"))
        start = flat.get("start", [0] * len(flat.get("nvec", [])))
        return {"type": "MultiDiscrete", "dtype": value.get("dtype"), "shape": shape, **flat, "start": start}
    if kind == "Box":
        return {"type": "Box", "dtype": value.get("dtype"), "shape": value.get("shape"), **flat}
    if kind == "Discrete":
        return {"type": "Discrete", "n": value.get("n"), "start": value.get("start", 0), "dtype": "int64"}
    return value


def _flat(value: Any) -> Any:
    """Return nested lists as one list, with infinities as text; a number as it is."""
    if not isinstance(value, list):
        return INFINITE.get(value, value) if isinstance(value, float) and math.isinf(value) else value
    out: list[Any] = []
    todo = [iter(value)]
    while todo:
        for each in todo[-1]:
            if isinstance(each, list):
                todo.append(iter(each))
                break
            out.append(_flat(each))
        else:
            todo.pop()
    return out


def _shape(value: Any) -> list[int]:
    shape = []
    while isinstance(value, list) and value:
        shape.append(len(value))
        value = value[0]
    return shape
