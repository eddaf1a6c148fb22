"""Values that may pass between an agent's process and ours: JSON, and other plain types as tagged JSON.

``{"__tuple__": [...]}``, ``{"__set__": [...]}``, ``{"__frozenset__": [...]}``, ``{"__bytes__": "hex"}``, ``{"__complex__": [re, im]}``,
``{"__deque__": [...]}``, ``{"__range__": [start, stop, step]}``, ``{"__fraction__": [numerator, denominator]}``,
``{"__decimal__": "text"}``, ``{"__date__": "iso"}`` (also datetime and time), ``{"__timedelta__": [days, seconds, microseconds]}``,
``{"__keys__": [...]}`` (also values and items of a dict) and, where a key is no text or looks like a tag,
``{"__dict__": [[key, value], ...]}``. What is not among these cannot be named, so nothing of an agent's own making, with an ``__eq__``
of its own, ever gets here. Needs the standard library only: it is used on both sides of the sandbox.
"""

from __future__ import annotations

import json
import sys
from typing import Any

DEPTH = 64
"""of nested values, at most"""
_VIEWS = {type({}.keys()): "__keys__", type({}.values()): "__values__", type({}.items()): "__items__"}


def encode(value: Any) -> bytes:
    """Return ``value`` as JSON text; ValueError where it has no such form."""
    return json.dumps(to_plain(value), separators=(",", ":")).encode()


def decode(data: bytes) -> Any:
    """Return the value that ``data`` stands for; ValueError if it is not what ``encode`` writes, however hostile it is."""
    try:
        return from_plain(json.loads(data))
    except RecursionError:
        raise ValueError("nested too deep") from None


def to_plain(value: Any, depth: int = DEPTH) -> Any:
    """Return ``value`` as JSON can hold it; ValueError for other types, for what is too deep, and for cycles.

    An instance of a subclass (a Counter, a namedtuple, an int that claims to equal everything) goes as the data of what it extends.
    """
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if depth == 0:
        raise ValueError(f"nested more than {DEPTH} deep, or in a circle")
    if isinstance(value, list):
        return [to_plain(item, depth - 1) for item in list.__iter__(value)]
    if isinstance(value, tuple):
        return {"__tuple__": [to_plain(item, depth - 1) for item in tuple.__iter__(value)]}
    if isinstance(value, dict):
        pairs = [[to_plain(key, depth - 1), to_plain(item, depth - 1)] for key, item in dict.items(value)]
        plain = all(isinstance(key, str) and not key.startswith("__") for key, _ in pairs)
        return dict(pairs) if plain else {"__dict__": pairs}
    if isinstance(value, set):
        return {"__set__": sorted((to_plain(item, depth - 1) for item in set.__iter__(value)), key=repr)}
    if isinstance(value, frozenset):
        return {"__frozenset__": sorted((to_plain(item, depth - 1) for item in frozenset.__iter__(value)), key=repr)}
    if isinstance(value, bytearray):
        return {"__bytes__": bytearray.hex(value)}
    kind: Any
    for kind, tag in _VIEWS.items():
        if isinstance(value, kind):
            return {tag: [to_plain(item, depth - 1) for item in kind.__iter__(value)]}
    if isinstance(value, _loaded("collections", "deque")):
        return {"__deque__": [to_plain(item, depth - 1) for item in _loaded("collections", "deque").__iter__(value)]}
    plain_leaf = leaf(value)
    if plain_leaf is None:
        raise ValueError(
            f"a value of type {type(value).__name__} cannot be passed on; use those of JSON, or tuple, set, bytes, complex"
        )
    return plain_leaf


def leaf(value: Any) -> dict[str, Any] | None:
    """Return an immutable value that holds no others as tagged JSON, or None for other types.

    Descriptors of the types themselves are asked, so that a subclass cannot lie about the data it extends. Modules are not imported for
    this: without its module there is no value of the type.
    """
    if isinstance(value, bytes):
        return {"__bytes__": bytes.hex(value)}
    if isinstance(value, complex):
        return {"__complex__": [complex.real.__get__(value), complex.imag.__get__(value)]}
    if isinstance(value, range):
        return {"__range__": [int(value.start), int(value.stop), int(value.step)]}
    Fraction = _loaded("fractions", "Fraction")
    if isinstance(value, Fraction):
        return {"__fraction__": [int(part.__get__(value)) for part in (Fraction._numerator, Fraction._denominator)]}
    Decimal = _loaded("decimal", "Decimal")
    if isinstance(value, Decimal):
        return {"__decimal__": Decimal.__str__(value)}
    for name in ("datetime", "date", "time"):  # a datetime is a date too
        kind = _loaded("datetime", name)
        if isinstance(value, kind):
            return {f"__{name}__": kind.isoformat(value)}
    timedelta = _loaded("datetime", "timedelta")
    if isinstance(value, timedelta):
        return {"__timedelta__": [part.__get__(value) for part in (timedelta.days, timedelta.seconds, timedelta.microseconds)]}
    return None


def _loaded(module: str, name: str) -> Any:
    """Return a type of the standard library, or () if its module has not been imported."""
    return getattr(sys.modules.get(module), name, ())


def from_leaf(tag: str, content: Any) -> Any:
    """Undo ``leaf``: return the value, or None for a tag that is not of one. Raises ValueError, TypeError or ArithmeticError."""
    if tag == "__bytes__":
        return bytes.fromhex(content)
    if tag == "__complex__":
        real, imaginary = content
        return complex(float(real), float(imaginary))
    if tag == "__range__":
        start, stop, step = content
        return range(start, stop, step)
    if tag == "__fraction__":
        from fractions import Fraction

        numerator, denominator = content
        if type(numerator) is not int or type(denominator) is not int:  # of a text the exponent could be huge
            raise ValueError("two whole numbers are needed")
        return Fraction(numerator, denominator)
    if tag == "__decimal__":
        from decimal import Decimal

        return Decimal(str.__str__(content))
    if tag in ("__date__", "__datetime__", "__time__"):
        import datetime

        return getattr(datetime, tag.strip("_")).fromisoformat(content)
    if tag == "__timedelta__":
        import datetime

        days, seconds, microseconds = content
        return datetime.timedelta(days, seconds, microseconds)
    return None


_SEQUENCES = {"__tuple__": tuple, "__set__": set, "__frozenset__": frozenset}


def from_plain(data: Any, depth: int = DEPTH) -> Any:
    """Undo ``to_plain``; ValueError where a tag is not followed by what it needs, and for what is too deep."""
    if not isinstance(data, list | dict):
        return data
    if depth == 0:
        raise ValueError(f"nested more than {DEPTH} deep")
    if isinstance(data, list):
        return [from_plain(item, depth - 1) for item in data]
    tag: str = next(iter(data)) if len(data) == 1 else ""
    content: Any = data.get(tag)
    try:
        if tag in _SEQUENCES and isinstance(content, list):
            return _SEQUENCES[tag](from_plain(item, depth - 1) for item in content)
        if tag == "__dict__" and isinstance(content, list):
            return {from_plain(key, depth - 1): from_plain(item, depth - 1) for key, item in content}
        if tag == "__deque__" and isinstance(content, list):
            return _deque(from_plain(item, depth - 1) for item in content)
        if tag in _VIEWS.values() and isinstance(content, list):
            return _view(tag, [from_plain(item, depth - 1) for item in content])
        value = from_leaf(tag, content) if tag.startswith("__") else None
        if value is not None:
            return value
    except (TypeError, ValueError, ArithmeticError) as error:  # not a sequence, or a member of a set that cannot be one
        raise ValueError(f"{tag} with {content!r:.60}: {error}") from None
    if any(key.startswith("__") for key in data):
        raise ValueError(f"unknown tag in {data!r:.60}")
    return {key: from_plain(item, depth - 1) for key, item in data.items()}


def _deque(items: Any) -> Any:
    from collections import deque

    return deque(items)


def _view(tag: str, items: list[Any]) -> Any:
    if tag == "__items__":
        return dict(items).items()
    return dict.fromkeys(items).keys() if tag == "__keys__" else dict(enumerate(items)).values()
