"""Space <-> JSON: what a checkpoint says of the spaces its policy was made for, as plain lists, numbers and text.

In: any space that a ``Layout`` takes. Out: ``{"type": "Box", "dtype": "float32", "shape": [3], "low": -1.0, "high": "inf"}`` and the
like, from which ``from_json`` makes an equal space: dtypes, bounds, order of keys and maxima of Sequences are exact. A bound that is
the same everywhere stands there once, others as a flat list. A mission of MiniGrid becomes a Text with the same characters.

``from_json`` trusts nothing: whatever is not such a value is a ``SpaceError`` that names the place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces as gs

from fugu.errors import SpaceError
from fugu.spaces.layout import Layout, Node, Path, bound, path_name

DEEPEST = 64
"""levels of nesting that are read"""
MOST_ITEMS = 1 << 26
"""elements of one leaf that are read: more would be no observation, but memory that a bad file asks for"""
MOST_BYTES = 8 * MOST_ITEMS
"""bytes of a row, of all parts and items together, for the same reason"""

KEYS = (str, bool, int, float, type(None))
"""types of the keys of a Dict that JSON can hold"""

INFINITE = {math.inf: "inf", -math.inf: "-inf"}
FINITE = {text: number for number, text in INFINITE.items()}

# Writing ----------------------------------------------------------------------------------------------------------------------------


def to_json(space: gs.Space) -> dict[str, Any]:
    """Return ``space`` as JSON; SpaceError if it has no layout, or keys that JSON cannot hold."""
    return _written(Layout(space).root)


def _written(node: Node) -> dict[str, Any]:
    space = node.space
    if isinstance(space, gs.Dict):
        for key in node.keys:
            if not isinstance(key, KEYS) or (isinstance(key, float) and not math.isfinite(key)):
                raise SpaceError(f"the key {key!r} of a Dict cannot be written as JSON; use text", where=_at(node.path))
        return {"type": "Dict", "spaces": [[key, _written(part)] for key, part in zip(node.keys, node.children, strict=True)]}
    if isinstance(space, gs.Tuple | gs.OneOf):
        kind = "Tuple" if isinstance(space, gs.Tuple) else "OneOf"
        return {"type": kind, "spaces": [_written(part) for part in node.children]}
    if isinstance(space, gs.Sequence):
        return {"type": "Sequence", "space": _written(node.children[0]), "stack": bool(space.stack), "max_length": node.maximum}
    if isinstance(space, gs.Box):
        return _written_box(space)
    if isinstance(space, gs.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": _dtype_name(space)}
    if isinstance(space, gs.MultiDiscrete):
        numbers = {"nvec": _numbers(space.nvec), "start": _numbers(space.start)}
        return {"type": "MultiDiscrete", "dtype": _dtype_name(space), "shape": list(space.nvec.shape), **numbers}
    if isinstance(space, gs.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.n)}
    if isinstance(space, gs.Text):
        shortest, longest = int(space.min_length), int(space.max_length)
    else:  # a mission: who writes it is code, what can be in it is known
        shortest, longest = 0, int(Layout(space).row_shape[0])
    return {"type": "Text", "min_length": shortest, "max_length": longest, "charset": "".join(node.characters)}


def _written_box(space: gs.Box) -> dict[str, Any]:
    bounds = {"low": _numbers(space.low), "high": _numbers(space.high)}
    written = {"type": "Box", "dtype": _dtype_name(space), "shape": list(space.shape), **bounds}
    if space.dtype.kind == "i":  # whole numbers without a bound look like the lowest and highest there are
        for name in ("bounded_below", "bounded_above"):
            if not getattr(space, name).all():
                written[name] = _numbers(getattr(space, name))
    return written


def _dtype_name(space: gs.Space) -> str:
    dtype = np.dtype(space.dtype)
    return dtype.name if dtype.isnative else dtype.str


def _numbers(array: np.ndarray) -> Any:
    """Return one number if all are the same, to the bit, otherwise a flat list."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.size and flat.tobytes() == flat[:1].tobytes() * flat.size:
        return INFINITE.get(flat[0].item(), flat[0].item())
    return [INFINITE.get(number, number) for number in flat.tolist()]


# Reading ----------------------------------------------------------------------------------------------------------------------------


def from_json(value: Any) -> gs.Space:
    """Return the space that ``to_json`` wrote as ``value``; SpaceError if it is anything else."""
    return _read(value, ())


def _read(value: Any, path: Path) -> gs.Space:
    if len(path) > DEEPEST:
        raise SpaceError(f"nested deeper than {DEEPEST} levels", where=_at(path))
    if not isinstance(value, dict):
        raise SpaceError(f"expected a space as written by fugu, got {_brief(value)}", where=_at(path))
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in READERS:
        raise SpaceError(f"type {_brief(kind)} is none of {', '.join(READERS)}", where=_at(path))
    try:
        space = READERS[kind](Fields(value, path))
        if (size := Layout(space).nbytes) > MOST_BYTES:
            raise SpaceError(f"a value takes {size} bytes, more than {MOST_BYTES}", where=_at(path))
        return space
    except SpaceError:
        raise
    except (ValueError, TypeError, OverflowError, AssertionError, MemoryError) as error:  # what Gymnasium itself refuses
        raise SpaceError(f"it cannot be made: {error}", where=_at(path)) from None


class Fields:
    """The fields of a space as it was written, each read with its type."""

    def __init__(self, value: dict[str, Any], path: Path) -> None:
        self.value, self.path = value, path

    def of(self, name: str, kind: type) -> Any:
        found = self.value.get(name)
        if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
            raise SpaceError(f"{name} must be {_NAMES[kind]}, got {_brief(found)}", where=_at(self.path))
        return found

    def whole(self, name: str, low: int, high: int) -> int:
        found = self.of(name, int)
        if not low <= found <= high:
            raise SpaceError(f"{name}={found} must be from {low} to {high}", where=_at(self.path))
        return found

    @property
    def dtype(self) -> np.dtype:
        name = self.of("dtype", str)
        try:
            dtype = np.dtype(name)
        except (TypeError, ValueError):
            dtype = np.dtype(object)
        if dtype.kind not in "biuf" or dtype.itemsize > 8:
            raise SpaceError(f"dtype {name!r} is not one of numbers of at most 8 bytes", where=_at(self.path))
        return dtype

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.of("shape", list)
        if not all(type(size) is int and size >= 0 for size in shape) or math.prod(shape) > MOST_ITEMS or len(shape) > 32:
            raise SpaceError(f"shape {_brief(shape)} must be up to {MOST_ITEMS} elements", where=_at(self.path))
        return tuple(shape)

    def array(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """Return the numbers of the field ``name``, one for all elements or one each, exactly as ``dtype``."""
        found = self.value.get(name)
        numbers = found if isinstance(found, list) else [found]
        if isinstance(found, list) and len(numbers) != math.prod(shape):
            raise SpaceError(f"{name} has {len(numbers)} numbers for shape {list(shape)}", where=_at(self.path))
        plain = [FINITE.get(number, number) if isinstance(number, str) else number for number in numbers]
        wanted: tuple[type, ...] = {"b": (bool,), "f": (float,)}.get(dtype.kind, (int,))
        if not all(type(number) in wanted for number in plain):
            raise SpaceError(f"{name} must be numbers of {dtype}, got {_brief(found)}", where=_at(self.path))
        with np.errstate(over="ignore"):  # a number too wide becomes infinite, and is refused as such
            array = np.array(plain, dtype)
        if any(there != number for there, number in zip(array.tolist(), plain, strict=True)):
            raise SpaceError(f"{name}={_brief(found)} does not fit {dtype}", where=_at(self.path))
        return array.reshape(shape) if isinstance(found, list) else np.full(shape, array[0], dtype)


def _box(fields: Fields) -> gs.Box:
    dtype, shape = fields.dtype, fields.shape
    low, high = fields.array("low", dtype, shape), fields.array("high", dtype, shape)
    space = gs.Box(low, high, dtype=dtype)
    for name in ("bounded_below", "bounded_above"):
        if name in fields.value:
            setattr(space, name, fields.array(name, np.dtype(bool), shape))
    return space


def _discrete(fields: Fields) -> gs.Discrete:
    dtype = fields.dtype
    if dtype.kind not in "iu":
        raise SpaceError(f"dtype {dtype} of a Discrete must be one of integers", where=_at(fields.path))
    info = np.iinfo(dtype)
    n, start = fields.whole("n", 1, int(info.max)), fields.whole("start", int(info.min), int(info.max))
    return gs.Discrete(n, start=start, dtype=dtype)


def _multi_discrete(fields: Fields) -> gs.MultiDiscrete:
    dtype, shape = fields.dtype, fields.shape
    if dtype.kind not in "iu":
        raise SpaceError(f"dtype {dtype} of a MultiDiscrete must be one of integers", where=_at(fields.path))
    nvec, start = fields.array("nvec", dtype, shape), fields.array("start", dtype, shape)
    return gs.MultiDiscrete(nvec, dtype, start=start)


def _multi_binary(fields: Fields) -> gs.MultiBinary:
    n = fields.value.get("n")
    sizes = n if isinstance(n, list) else [n]
    if not all(type(size) is int and size > 0 for size in sizes) or math.prod(sizes) > MOST_ITEMS:
        raise SpaceError(f"n must be whole numbers from 1 up, got {_brief(n)}", where=_at(fields.path))
    return gs.MultiBinary(n)  # type: ignore[arg-type]


def _text(fields: Fields) -> gs.Text:
    longest = fields.whole("max_length", 0, MOST_ITEMS)
    shortest, charset = fields.whole("min_length", 0, longest), fields.of("charset", str)
    return gs.Text(longest, min_length=shortest, charset=frozenset(charset))


def _dict(fields: Fields) -> gs.Dict:
    pairs = fields.of("spaces", list)
    if not all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], KEYS) for pair in pairs):
        raise SpaceError("spaces of a Dict must be pairs [key, space]", where=_at(fields.path))
    if len({pair[0] for pair in pairs}) != len(pairs):
        raise SpaceError("spaces of a Dict has a key twice", where=_at(fields.path))
    return gs.Dict([(key, _read(part, (*fields.path, key))) for key, part in pairs])


def _parts(fields: Fields) -> list[gs.Space]:
    return [_read(part, (*fields.path, i)) for i, part in enumerate(fields.of("spaces", list))]


def _sequence(fields: Fields) -> gs.Sequence:
    part = _read(fields.value.get("space"), (*fields.path, "items"))
    return bound(gs.Sequence(part, stack=fields.of("stack", bool)), fields.whole("max_length", 1, MOST_ITEMS))


READERS: dict[str, Callable[[Fields], gs.Space]] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": _multi_binary,
    "Text": _text,
    "Dict": _dict,
    "Tuple": lambda fields: gs.Tuple(_parts(fields)),
    "OneOf": lambda fields: gs.OneOf(_parts(fields)),
    "Sequence": _sequence,
}

_NAMES = {int: "a whole number", str: "text", bool: "true or false", list: "a list"}


def _at(path: Path) -> str:
    return f"space {path_name(path)!r}" if path else "the space"


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
