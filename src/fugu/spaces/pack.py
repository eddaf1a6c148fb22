"""Value <-> row: write one sample of a space into a row of bytes and read it back, checking it on the way.

In: a value as an env returns it (nested dicts, tuples, arrays, numbers, strings) and a row of ``layout.row_shape``.
Out: the row, written in place, or a ``SpaceError`` that names the leaf, what was expected and what came.

``pack`` and ``unpack`` below are the readable reference and know every space. ``native/pack.h`` does the same for trees
of Dict, Tuple, arrays, integers and text in a fraction of the time; whatever it does not recognise it leaves to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces as gs

from fugu.errors import SpaceError
from fugu.native import native
from fugu.spaces.layout import Layout, Node, path_name



class Packer:
    """Writes values of ``layout.space`` into rows and reads them back.

    ``finite`` refuses NaN and infinity, ``cast`` allows another dtype of the same kind (float64 for float32).
    """

    def __init__(self, layout: Layout, *, finite: bool = True, cast: bool = False) -> None:
        self.layout = layout
        self.finite = finite
        self.cast = cast
        self.plan = _plan(layout, layout.root, finite)
        """nested tuples for the native packer, or None where only the reference can do it"""
        self.fast = native.Plan(self.plan) if native is not None and self.plan is not None else None
        """the native packer, None where there is none"""

    def pack(self, value: Any, row: np.ndarray) -> None:
        """Write ``value`` into ``row`` (``layout.row_shape``, contiguous)."""
        if self.fast is not None and self.fast.pack(value, row):
            return
        self.pack_reference(value, row)

    def pack_reference(self, value: Any, row: np.ndarray) -> None:
        """What ``pack`` means, in plain Python; also what explains a value that does not fit."""
        _pack(self, self.layout.root, value, self._leaf_views(row), ())

    def unpack(self, row: np.ndarray) -> Any:
        """The value stored in ``row``; arrays are copies."""
        return _unpack(self.layout, self.layout.root, self._leaf_views(row), ())

    def unpack_batch(self, rows: np.ndarray) -> tuple[Any, ...]:
        """The values of a batch of rows."""
        return tuple(self.unpack(row) for row in rows)

    def _leaf_views(self, row: np.ndarray) -> list[np.ndarray]:
        if row.shape != self.layout.row_shape or row.dtype != self.layout.dtype:
            raise SpaceError(
                f"a row of this layout is {self.layout.dtype}{list(self.layout.row_shape)}, got {row.dtype}{list(row.shape)}"
            )
        return self.layout.leaf_views(row)


def _pack(packer: Packer, node: Node, value: Any, views: list[np.ndarray], at: tuple[int, ...]) -> None:
    """Write ``value`` at ``node``; ``at`` indexes the leading axes of the Sequences around it."""
    space = node.space
    if isinstance(space, gs.Dict):
        if not isinstance(value, Mapping):
            raise SpaceError(f"{_at(node)}: expected a dict with keys {list(node.keys)}, got {_show(value)}")
        missing, extra = set(node.keys) - set(value), set(value) - set(node.keys)
        if missing or extra:
            raise SpaceError(
                f"{_at(node)}: expected the keys {list(node.keys)}; "
                + "; ".join(f"{what} {sorted(map(str, keys))}" for what, keys in (("missing", missing), ("unknown", extra)) if keys)
            )
        for key, child in zip(node.keys, node.children, strict=True):
            _pack(packer, child, value[key], views, at)
    elif isinstance(space, gs.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(node.children):
            raise SpaceError(f"{_at(node)}: expected a tuple of {len(node.children)}, got {_show(value)}")
        for child, part in zip(node.children, value, strict=True):
            _pack(packer, child, part, views, at)
    elif isinstance(space, gs.OneOf):
        _pack_one_of(packer, node, value, views, at)
    elif isinstance(space, gs.Sequence):
        _pack_sequence(packer, node, value, views, at)
    elif node.codes:
        _pack_text(node, value, views[node.leaf], at)
    else:
        views[node.leaf][at] = _checked_array(packer, node, value)


def _pack_one_of(packer: Packer, node: Node, value: Any, views: list[np.ndarray], at: tuple[int, ...]) -> None:
    if not isinstance(value, tuple) or len(value) != 2 or not 0 <= int(value[0]) < len(node.children):
        raise SpaceError(f"{_at(node)}: expected (choice below {len(node.children)}, value), got {_show(value)}")
    choice = int(value[0])
    views[node.leaf][at] = choice
    for option, child in enumerate(node.children):
        if option != choice:
            _zero(child, views, at)
    _pack(packer, node.children[choice], value[1], views, at)


def _pack_sequence(packer: Packer, node: Node, value: Any, views: list[np.ndarray], at: tuple[int, ...]) -> None:
    items = _items(node, value)
    if len(items) > node.maximum:
        raise SpaceError(
            f"{_at(node)}: a Sequence of {len(items)} does not fit the declared maximum of {node.maximum}; "
            f"raise it with fugu.spaces.bound(space, max_length={len(items)})"
        )
    _zero(node.children[0], views, at)
    views[node.leaf][at] = len(items)
    for i, item in enumerate(items):
        _pack(packer, node.children[0], item, views, (*at, i))


def _items(node: Node, value: Any) -> list[Any]:
    """The elements of a Sequence value, whether it came as a tuple or stacked."""
    space = node.space
    assert isinstance(space, gs.Sequence)
    if not space.stack:
        if not isinstance(value, tuple | list):
            raise SpaceError(f"{_at(node)}: expected a tuple of values, got {_show(value)}")
        return list(value)
    from gymnasium.vector.utils import iterate

    return list(iterate(space.stacked_feature_space, value))


def _pack_text(node: Node, value: Any, view: np.ndarray, at: tuple[int, ...]) -> None:
    out = view[at]
    if not isinstance(value, str):
        raise SpaceError(f"{_at(node)}: expected a str, got {_show(value)}")
    if len(value) > out.shape[-1]:
        raise SpaceError(f"{_at(node)}: text of {len(value)} characters does not fit max_length={out.shape[-1]}: {value!r}")
    unknown = sorted(set(value) - set(node.codes))
    if unknown:
        raise SpaceError(f"{_at(node)}: characters {unknown} are not in the space's charset; add them to Text(charset=...)")
    out[...] = 0
    out[: len(value)] = [node.codes[char] for char in value]


def _checked_array(packer: Packer, node: Node, value: Any) -> np.ndarray:
    """``value`` as an array of the leaf's dtype and shape, or an error that says what is wrong with it."""
    leaf = packer.layout.leaves[node.leaf]
    shape, dtype = leaf.shape[leaf.lead :], leaf.dtype
    try:
        array = np.asarray(value)
    except ValueError:
        raise SpaceError(f"{_at(node)}: expected {dtype}{list(shape)}, got {_show(value)}") from None
    if array.dtype.kind not in "biuf":
        raise SpaceError(f"{_at(node)}: expected {dtype}{list(shape)}, got {_show(value)}")
    if array.shape != shape:
        raise SpaceError(
            f"{_at(node)}: the space says shape {list(shape)}, got {list(array.shape)}. "
            "Return that shape or declare the space with the shape you return"
        )
    typed = isinstance(value, np.ndarray | np.generic)
    allowed = "same_kind" if packer.cast or not typed else "equiv"
    if typed and not np.can_cast(array.dtype, dtype, allowed) and not (leaf.space.dtype is not None and _integer_scalar(leaf, array)):
        raise SpaceError(
            f"{_at(node)}: the space says {dtype}, got {array.dtype}. "
            f"Return value.astype(np.{dtype.name}), or declare the space with dtype=np.{array.dtype.name}"
            + (", or allow it with cast=True" if np.can_cast(array.dtype, dtype, "same_kind") else "")
        )
    if not typed and not _kind_fits(array.dtype.kind, dtype.kind):
        raise SpaceError(f"{_at(node)}: the space says {dtype}, got {_show(value)}")
    if isinstance(leaf.space, gs.Discrete | gs.MultiDiscrete):
        low = np.asarray(leaf.space.start)
        count = leaf.space.n if isinstance(leaf.space, gs.Discrete) else leaf.space.nvec
        if ((array < low) | (array - low >= count)).any():
            raise SpaceError(f"{_at(node)}: {array.tolist()} is outside {leaf.space}")
    if isinstance(leaf.space, gs.MultiBinary) and ((array != 0) & (array != 1)).any():
        raise SpaceError(f"{_at(node)}: {array.tolist()} is outside {leaf.space}")
    if not typed and array.dtype.kind in "iu" and dtype.kind in "iu":
        info = np.iinfo(dtype)
        if array.size and (int(array.min()) < info.min or int(array.max()) > info.max):
            raise SpaceError(f"{_at(node)}: {array.tolist()} does not fit {dtype}")
    out = array.astype(dtype, copy=False)
    if packer.finite and dtype.kind == "f" and not np.isfinite(out).all():
        where = np.argwhere(~np.isfinite(np.atleast_1d(out)))[0].tolist()
        raise SpaceError(
            f"{_at(node)}: {np.atleast_1d(out)[tuple(where)]} at index {where}; an observation must be finite. "
            "Fix the env, or allow it with check_finite=False"
        )
    return out


def _integer_scalar(leaf: Any, array: np.ndarray) -> bool:
    """Any integer type may stand for a Discrete value: its range is checked anyway."""
    return isinstance(leaf.space, gs.Discrete) and array.dtype.kind in "iub"


def _kind_fits(got: str, want: str) -> bool:
    """Python numbers carry no width: whole numbers go into any number, real ones only into floats."""
    return want == "f" if got == "f" else want in "iuf" if got in "iu" else want in "biuf"


def _zero(node: Node, views: list[np.ndarray], at: tuple[int, ...]) -> None:
    if node.leaf >= 0:
        views[node.leaf][at] = 0
    for child in node.children:
        _zero(child, views, at)


def _unpack(layout: Layout, node: Node, views: Sequence[np.ndarray], at: tuple[int, ...]) -> Any:
    space = node.space
    if isinstance(space, gs.Dict):
        return {key: _unpack(layout, child, views, at) for key, child in zip(node.keys, node.children, strict=True)}
    if isinstance(space, gs.Tuple):
        return tuple(_unpack(layout, child, views, at) for child in node.children)
    if isinstance(space, gs.OneOf):
        choice = int(views[node.leaf][at])
        return (np.int64(choice), _unpack(layout, node.children[choice], views, at))
    if isinstance(space, gs.Sequence):
        items = tuple(_unpack(layout, node.children[0], views, (*at, i)) for i in range(int(views[node.leaf][at])))
        if not space.stack:
            return items
        from gymnasium.vector.utils import concatenate, create_empty_array

        feature = space.feature_space
        return concatenate(feature, items, create_empty_array(feature, n=len(items)))
    if node.codes:
        chars = list(node.codes)
        return "".join(chars[code - 1] for code in views[node.leaf][at] if code)
    value = views[node.leaf][at]
    return value.copy() if value.ndim else value[()]


def _plan(layout: Layout, node: Node, finite: bool) -> Any:
    """The tree as nested tuples for ``native/pack.h``; None if it holds a OneOf or a Sequence."""
    space = node.space
    if isinstance(space, gs.Dict | gs.Tuple):
        parts = [_plan(layout, child, finite) for child in node.children]
        if any(part is None for part in parts):
            return None
        if isinstance(space, gs.Dict):
            return ("dict", tuple(node.keys), tuple(parts))
        return ("tuple", tuple(parts))
    if isinstance(space, gs.OneOf | gs.Sequence):
        return None
    leaf = layout.leaves[node.leaf]
    if node.codes:
        return ("text", leaf.offset, leaf.dtype.itemsize, leaf.shape[0], node.codes)
    ranged = None
    if isinstance(space, gs.Discrete):
        ranged = (np.array([space.start], np.int64), np.array([space.start + space.n - 1], np.int64))
    elif isinstance(space, gs.MultiDiscrete):
        start = space.start.astype(np.int64).ravel()
        ranged = (start, start + space.nvec.astype(np.int64).ravel() - 1)
    elif isinstance(space, gs.MultiBinary):
        size = int(np.prod(leaf.shape))
        ranged = (np.zeros(size, np.int64), np.ones(size, np.int64))
    return ("array", leaf.offset, leaf.dtype.num, leaf.dtype.itemsize, leaf.shape, finite and leaf.dtype.kind == "f", ranged)


def _at(node: Node) -> str:
    return path_name(node.path) or "value"


def _show(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype}{list(value.shape)}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
