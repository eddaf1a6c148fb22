"""Values that may pass between an agent's process and ours: JSON, and tuple, set, frozenset, bytes, complex as tagged JSON.

``{"__tuple__": [...]}``, ``{"__set__": [...]}``, ``{"__frozenset__": [...]}``, ``{"__bytes__": "hex"}``, ``{"__complex__": [re, im]}``
and, where a key is no text or looks like a tag, ``{"__dict__": [[key, value], ...]}``. What is not among these cannot be named, so
nothing of an agent's own making, with an ``__eq__`` of its own, ever gets here. Needs the standard library only: it is used on both
sides of the sandbox.
"""

from __future__ import annotations

import json
from typing import Any

DEPTH = 64
"""of nested values, at most"""


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
    if isinstance(value, bytes | bytearray):
        return {"__bytes__": bytes(value).hex()}
    if isinstance(value, complex):
        return {"__complex__": [float(value.real), float(value.imag)]}
    raise ValueError(
        f"a value of type {type(value).__name__} cannot be passed on; use those of JSON, or tuple, set, bytes, complex"
    )


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
        if tag == "__bytes__":
            return bytes.fromhex(content)
        if tag == "__complex__":
            real, imaginary = content
            return complex(float(real), float(imaginary))
    except (TypeError, ValueError) as error:  # not a sequence, or a member of a set that cannot be one
        raise ValueError(f"{tag} with {content!r:.60}: {error}") from None
    if any(key.startswith("__") for key in data):
        raise ValueError(f"unknown tag in {data!r:.60}")
    return {key: from_plain(item, depth - 1) for key, item in data.items()}
