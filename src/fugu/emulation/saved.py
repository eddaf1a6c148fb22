"""Snapshots, checked before anything relies on them: a checkpoint may come from anybody, and its bytes may be any.

Whether the worlds of a C++ environment can be in a state is asked of the environment (``valid`` in native/env.h). Here are the
rows and the sums beside them: their size and type, numbers that are none, flags that are neither 0 nor 1, choices that do not exist.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fugu.errors import ConfigError
from fugu.spaces import Layout


def bytes_of(saved: Mapping[str, np.ndarray], name: str, of: str) -> np.ndarray:
    """Return the bytes ``saved[name]``, in one piece."""
    if name not in saved:
        raise unfit(name, of, "is missing")
    if saved[name].dtype != np.uint8:
        raise unfit(name, of, f"is {saved[name].dtype} instead of bytes")
    return np.ascontiguousarray(saved[name]).reshape(-1)


def column_of(saved: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...], dtype: Any, of: str) -> np.ndarray:
    """Return the bytes ``saved[name]`` as an array of ``shape`` and ``dtype``."""
    column, needed = bytes_of(saved, name, of), math.prod(shape) * np.dtype(dtype).itemsize
    if column.size != needed:
        raise unfit(name, of, f"has {column.size} bytes instead of {needed}")
    return column.view(dtype).reshape(shape)


def check_form(name: str, column: Any, like: Any, of: str) -> None:
    """Refuse an array, or a tensor, that is not as ``like`` in shape and type."""
    if column.shape != like.shape or column.dtype != like.dtype:
        got, expected = (f"{each.dtype}{list(each.shape)}" for each in (column, like))
        raise unfit(name, of, f"is {got} instead of {expected}")


def check_values(name: str, column: np.ndarray, of: str) -> None:
    """Refuse flags that are neither 0 nor 1, and numbers that are none."""
    if column.dtype.kind == "b":
        if (np.ascontiguousarray(column).view(np.uint8) > 1).any():
            raise unfit(name, of, "holds flags that are neither true nor false")
    elif column.dtype.kind == "f" and np.isnan(column).any():
        raise unfit(name, of, "holds NaN")


def check_obs(obs: np.ndarray, layout: Layout, of: str) -> None:
    """Refuse the same in observations ``[agents, *row_shape]``, and choices that do not exist."""
    for view, leaf in zip(layout.leaf_views(obs), layout.leaves, strict=True):
        check_values("obs", view, of)
        choices = leaf.choice_range()
        if choices is not None and ((view < choices[0]) | (view > choices[1])).any():
            raise unfit("obs", of, f"holds values outside {leaf.space}")


def unfit(name: str, of: str, problem: str) -> ConfigError:
    """Return the error about the part ``name`` of a snapshot; ``of`` says whose it should be: ``4 environments of snake``."""
    return ConfigError(
        f"{name!r} of the saved state {problem}: it is not of {of}, or was changed or damaged",
        fix="Go on from another checkpoint, or train anew",
    )


def no_valid(env: str) -> ConfigError:
    """Return the error about a C++ environment that cannot check a state."""
    return ConfigError(
        f"{env} has no valid(state, params, over), so its worlds cannot be put into a saved state: its bytes might be any",
        fix="Add it to the header: docs/native.md",
    )


def unsound(world: int, env: str) -> ConfigError:
    """Return the error about a state that world ``world`` of a C++ environment cannot be in."""
    return ConfigError(
        f"the saved state of world {world} is none that {env} can be in with these settings: it was changed or damaged, or is of "
        "another environment or version",
        fix="Go on from another checkpoint, or train anew",
    )
