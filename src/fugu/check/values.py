"""One value against its space, leaf by leaf: everything that is wrong with it, not only the first thing.

In: a space and a value as an env returned it. Out: ``Problem``s, each naming its leaf. The packer refuses the same values
with the first problem it meets; this walk is slower, complete, and also looks at the bounds of boxes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces as gs

from fugu.check.report import Severity
from fugu.spaces.layout import Path

ROUNDING = 1e-5
"""a value this far outside its bounds, relative to them, is called a rounding error"""


@dataclass(frozen=True, slots=True)
class Problem:
    path: Path
    kind: str
    """problems of one kind at one leaf are reported once"""
    says: str
    """what the space says"""
    got: str
    """what was returned; of a ``bounds`` problem the extremes follow in ``low`` and ``high``"""
    fix: str
    severity: Severity = "error"
    low: float = 0.0
    high: float = 0.0


def problems(space: gs.Space, value: Any, path: Path = ()) -> Iterator[Problem]:
    """Yield everything in which ``value`` differs from what ``space`` declares."""
    if isinstance(space, gs.Dict):
        yield from _dict(space, value, path)
    elif isinstance(space, gs.Tuple):
        yield from _tuple(space, value, path)
    elif isinstance(space, gs.OneOf):
        yield from _one_of(space, value, path)
    elif isinstance(space, gs.Sequence):
        yield from _sequence(space, value, path)
    elif isinstance(space, gs.Text):
        yield from _text(space, value, path)
    elif isinstance(space, gs.Box | gs.Discrete | gs.MultiDiscrete | gs.MultiBinary):
        yield from _array(space, value, path)
    elif not space.contains(value):
        yield Problem(
            path, "value", str(space), show(value), f"return a value for which {type(space).__name__}.contains() is true"
        )


def _dict(space: gs.Dict, value: Any, path: Path) -> Iterator[Problem]:
    keys = list(space.spaces)
    if not isinstance(value, Mapping):
        yield Problem(path, "type", f"a dict with the keys {keys}", show(value), f"return a dict with the keys {keys}")
        return
    for key, part in space.spaces.items():
        if key in value:
            yield from problems(part, value[key], (*path, key))
        else:
            fix = f"return the key {key!r} on every reset and step, or take it out of the Dict space"
            yield Problem((*path, key), "missing", f"there is a key {key!r}", "none", fix)
    for key in value:
        if key not in space.spaces:
            fix = f"declare {key!r} in the Dict space, or do not return it"
            yield Problem((*path, key), "extra", f"the keys are {keys}", f"a key {key!r} besides", fix)


def _tuple(space: gs.Tuple, value: Any, path: Path) -> Iterator[Problem]:
    parts = space.spaces
    if not isinstance(value, tuple | list) or len(value) != len(parts):
        yield Problem(path, "type", f"a tuple of {len(parts)}", show(value), f"return a tuple with {len(parts)} parts")
        return
    for i, (part, item) in enumerate(zip(parts, value, strict=True)):
        yield from problems(part, item, (*path, i))


def _one_of(space: gs.OneOf, value: Any, path: Path) -> Iterator[Problem]:
    count = len(space.spaces)
    if not isinstance(value, tuple) or len(value) != 2 or not _is_integer(value[0]) or not 0 <= int(value[0]) < count:
        fix = f"return (index of the option, its value), the index below {count}"
        yield Problem(path, "type", f"a tuple (choice below {count}, value)", show(value), fix)
        return
    choice = int(value[0])
    yield from problems(space.spaces[choice], value[1], (*path, choice))


def _sequence(space: gs.Sequence, value: Any, path: Path) -> Iterator[Problem]:
    maximum = getattr(space, "fugu_max_length", None)
    if space.stack:
        if not space.contains(value):
            yield Problem(path, "value", str(space), show(value), "return the elements stacked as the space says")
        return
    if not isinstance(value, tuple | list):
        yield Problem(path, "type", "a tuple of elements", show(value), "return a tuple")
        return
    if maximum is not None and len(value) > maximum:
        fix = f"fugu.spaces.bound(space, max_length={len(value)}) or return fewer"
        yield Problem(path, "length", f"at most {maximum} elements", f"{len(value)}", fix)
    for item in value:
        yield from problems(space.feature_space, item, (*path, "items"))


def _text(space: gs.Text, value: Any, path: Path) -> Iterator[Problem]:
    if not isinstance(value, str):
        yield Problem(path, "type", "a str", show(value), "return a str")
        return
    if not space.min_length <= len(value) <= space.max_length:
        fix = f"declare Text(max_length={max(len(value), space.max_length)}, min_length={min(len(value), space.min_length)})"
        yield Problem(path, "length", f"{space.min_length} to {space.max_length} characters", f"{len(value)}", fix)
    unknown = "".join(sorted(set(value) - set(space.character_set)))
    if unknown:
        fix = f"declare Text(..., charset=...) with {unknown!r} in it"
        yield Problem(path, "charset", f"characters of {space.characters[:40]!r}", f"{unknown!r}", fix)


def _array(space: gs.Box | gs.Discrete | gs.MultiDiscrete | gs.MultiBinary, value: Any, path: Path) -> Iterator[Problem]:
    dtype, shape = np.dtype(space.dtype), tuple(space.shape or ())
    says = f"{dtype} {shape}" if shape or isinstance(space, gs.Box) else f"an integer of {space}"
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        yield Problem(path, "type", says, show(value), f"return np.asarray(..., dtype=np.{dtype.name}) of shape {shape}")
        return
    typed = isinstance(value, np.ndarray | np.generic)
    got = f"{array.dtype} {array.shape}" if typed else show(value)
    if array.shape != shape:
        yield Problem(path, "shape", says, got, _shape_fix(space, shape, array.shape))
        return
    if not _dtype_fits(space, array, typed):
        fix = f"return obs.astype(np.{dtype.name}) or declare {type(space).__name__}(..., dtype=np.{array.dtype.name})"
        if isinstance(space, gs.Discrete):
            fix = "return int(...)"
        elif typed and np.can_cast(array.dtype, dtype, "same_kind"):
            fix += ", or let fugu convert it: cast=True in make(), --vector.cast in training"
        yield Problem(path, "dtype", says, got, fix)
    elif not typed and shape:
        yield Problem(path, "list", says, got, f"return np.array(..., dtype=np.{dtype.name}); lists are slow", severity="note")
    yield from _range(space, array, path)


def _range(space: gs.Space, array: np.ndarray, path: Path) -> Iterator[Problem]:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        index = np.argwhere(~np.isfinite(np.atleast_1d(array)))[0].tolist()
        bad = np.atleast_1d(array)[tuple(index)]
        at = f" at index {index}" if array.shape else ""
        fix = "look for a division by zero, a log of zero or an overflow; clip or replace the value with np.nan_to_num"
        yield Problem(path, "nan", "finite numbers", f"{bad}{at}", fix)
        array = array[np.isfinite(array)]
    if array.size == 0:
        return
    low, high = bounds(space)
    seen_low, seen_high = float(array.min()), float(array.max())
    if seen_low >= np.max(low) and seen_high <= np.min(high):
        return
    low, high = (np.broadcast_to(np.asarray(bound, np.float64), space.shape or ()) for bound in (low, high))
    if array.shape != low.shape:
        return  # some of it was not finite: that was reported
    number = array.astype(np.float64)
    outside = np.maximum(low - number, number - high)
    if not (outside > 0).any():
        return
    bad = array[outside > 0]
    edge = np.maximum(1.0, np.abs(np.where(np.isfinite(low), low, high))[outside > 0])
    small = array.dtype.kind == "f" and bool((outside[outside > 0] <= ROUNDING * edge).all())
    says = f"between {_extreme(low, min)} and {_extreme(high, max)}"
    fix = "clip the value or declare wider bounds"
    if small:
        fix = "np.clip(obs, space.low, space.high); it is only a rounding error"
    yield Problem(path, "bounds", says, "", fix, "warning" if small else "error", float(bad.min()), float(bad.max()))


def bounds(space: gs.Space) -> tuple[Any, Any]:
    """Return inclusive (low, high) of a leaf, broadcastable to its shape; infinite where nothing is declared."""
    if isinstance(space, gs.Box):
        return space.low, space.high
    if isinstance(space, gs.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, gs.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    if isinstance(space, gs.MultiBinary):
        return 0, 1
    return -np.inf, np.inf


def _dtype_fits(space: gs.Space, array: np.ndarray, typed: bool) -> bool:
    """Apply the packer's rule: the declared dtype; any integer for a Discrete; numbers without a dtype by their kind."""
    want = np.dtype(space.dtype)
    if isinstance(space, gs.Discrete):
        return array.dtype.kind in "iub"
    if typed:
        return bool(np.can_cast(array.dtype, want, "equiv"))
    return want.kind == "f" if array.dtype.kind == "f" else want.kind in ("biuf" if array.dtype.kind == "b" else "iuf")


def _shape_fix(space: gs.Space, want: tuple[int, ...], got: tuple[int, ...]) -> str:
    if isinstance(space, gs.Discrete):
        return "return int(...), a single number"
    if np.prod(want) == np.prod(got):
        return f"return obs.reshape({want}) or declare {type(space).__name__}(..., shape={got})"
    return f"return an array of shape {want} or declare {type(space).__name__}(..., shape={got})"


def _extreme(bound: np.ndarray, pick: Any) -> str:
    value = pick(np.ravel(bound).tolist())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) or (
        isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "iu"
    )


def show(value: Any) -> str:
    """Show a value in few words."""
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} {value.shape}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 50 else text[:47] + '...'}"
