"""Value <-> row: write one sample of a space into a row of bytes and read it back, checking it on the way.

In: a value as an env returns it (nested dicts, tuples, arrays, numbers, strings) and a row of ``layout.row_shape``.
Out: the row, written in place, or a ``SpaceError`` that names the leaf, what was expected and what came.

What is checked is what a row cannot hold: type, dtype, shape, keys, length, characters, the range of choices, and finite
numbers if asked. The bounds of a Box and the least length of a Text are a matter for ``check_env``.

``pack_reference`` and ``unpack`` are the readable reference and know every space. ``native/pack.h`` does the same for trees
of Dict, Tuple, arrays, integers and text in a fraction of the time; whatever it does not recognise it leaves to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces as gs

from fugu.errors import SpaceError
from fugu.native import native
from fugu.spaces.layout import Layout, Leaf, Node, path_name


class Packer:
    """Writes values of ``layout.space`` into rows and reads them back.

    ``finite`` refuses NaN and infinity, ``cast`` allows another dtype of the same kind (float64 for float32).
    """

    def __init__(self, layout: Layout, *, finite: bool = True, cast: bool = False) -> None:
        self.layout = layout
        self.finite = finite
        self.cast = cast
        self.ranges = [leaf.choice_range() for leaf in layout.leaves]
        """per leaf, lowest and highest value where values are choices"""
        tree = _plan(self, layout.root)
        row = ("row", layout.dtype.num, layout.row_shape, tree)
        self.fast = native.Plan(row) if native is not None and tree is not None else None
        """the native packer, None where there is none or where only the reference can do it"""

    def pack(self, value: Any, row: np.ndarray) -> None:
        """Write ``value`` into ``row`` (``layout.row_shape``, contiguous). A value that does not fit may leave it half written."""
        if self.fast is not None and self.fast.pack(value, row):
            return
        self.pack_reference(value, row)

    def pack_reference(self, value: Any, row: np.ndarray) -> None:
        """Pack in plain Python. This is what ``pack`` means, and what explains a value that does not fit."""
        if not isinstance(row, np.ndarray):
            raise SpaceError(
                f"expected a row to write into, got {_show(row)}", fix="of one-number rows take rows[i, ...], not rows[i]"
            )
        _pack(self, self.layout.root, value, self._leaf_views(row), ())

    def unpack(self, row: np.ndarray) -> Any:
        """Return the value stored in ``row``; arrays are copies."""
        return unpack_node(self.layout.root, self._leaf_views(row), ())

    def unpack_batch(self, rows: np.ndarray) -> tuple[Any, ...]:
        """Return the values of a batch of rows."""
        return tuple(self.unpack(row) for row in rows)

    def _leaf_views(self, row: np.ndarray) -> list[np.ndarray]:
        layout = self.layout
        if row.shape != layout.row_shape or row.dtype != layout.dtype:
            expected = f"{layout.dtype}{list(layout.row_shape)}"
            raise SpaceError(f"a row of this layout is {expected}, got {row.dtype}{list(row.shape)}")
        return layout.leaf_views(row)


def _pack(packer: Packer, node: Node, value: Any, views: list[np.ndarray], at: tuple[int, ...]) -> None:
    """Write ``value`` at ``node``; ``at`` indexes the leading axes of the Sequences around it."""
    space = node.space
    if isinstance(space, gs.Dict | gs.Tuple):
        _check_parts(node, value)
        for key, child in zip(node.keys, node.children, strict=True):
            _pack(packer, child, value[key], views, at)
    elif isinstance(space, gs.OneOf):
        _pack_one_of(packer, node, value, views, at)
    elif isinstance(space, gs.Sequence):
        _pack_sequence(packer, node, value, views, at)
    elif node.codes is not None:
        _pack_text(node, node.codes, value, views[node.leaf][at])
    else:
        views[node.leaf][at] = _checked_array(packer, node.leaf, value)


def _check_parts(node: Node, value: Any) -> None:
    """Refuse all but a mapping with exactly the keys of a Dict, or a tuple or list of the length of a Tuple."""
    if isinstance(node.space, gs.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(node.children):
            raise SpaceError(f"expected a tuple of {len(node.children)}, got {_show(value)}", where=_at(node))
        return
    if not isinstance(value, Mapping):
        raise SpaceError(f"expected a dict with keys {list(node.keys)}, got {_show(value)}", where=_at(node))
    missing, extra = set(node.keys) - set(value), set(value) - set(node.keys)
    if missing or extra:
        found = [
            f"{what} {', '.join(sorted(map(repr, keys)))}" for what, keys in (("missing", missing), ("unknown", extra)) if keys
        ]
        raise SpaceError(f"expected the keys {list(node.keys)}; {'; '.join(found)}", where=_at(node))


def _pack_one_of(packer: Packer, node: Node, value: Any, views: list[np.ndarray], at: tuple[int, ...]) -> None:
    if not isinstance(value, tuple) or len(value) != 2:
        raise SpaceError(f"expected (choice below {len(node.children)}, value), got {_show(value)}", where=_at(node))
    choice = int(_checked_array(packer, node.leaf, value[0]))
    views[node.leaf][at] = choice
    for option, child in enumerate(node.children):
        if option != choice:
            _zero(child, views, at)
    _pack(packer, node.children[choice], value[1], views, at)


def _pack_sequence(packer: Packer, node: Node, value: Any, views: list[np.ndarray], at: tuple[int, ...]) -> None:
    space = node.space
    assert isinstance(space, gs.Sequence)
    if space.stack:
        items = _unstack(node.children[0], value)
    elif isinstance(value, tuple | list):
        items = value
    else:
        raise SpaceError(f"expected a tuple of values, got {_show(value)}", where=_at(node))
    if len(items) > node.maximum:
        raise SpaceError(
            f"a Sequence of {len(items)} does not fit the declared maximum of {node.maximum}",
            where=_at(node),
            fix=f"raise it with fugu.spaces.bound(space, max_length={len(items)})",
        )
    _zero(node.children[0], views, at)
    views[node.leaf][at] = len(items)
    for i, item in enumerate(items):
        _pack(packer, node.children[0], item, views, (*at, i))


def _unstack(node: Node, value: Any) -> Sequence[Any]:
    """Return the elements of a stacked Sequence value; ``node`` is that of one element.

    Gymnasium stacks arrays along a new first axis, Dicts and Tuples part by part, and leaves the rest as tuples.
    """
    space = node.space
    if not isinstance(space, gs.Dict | gs.Tuple):
        if not isinstance(value, np.ndarray | tuple | list) or (isinstance(value, np.ndarray) and value.ndim == 0):
            raise SpaceError(f"expected stacked values, got {_show(value)}", where=_at(node))
        return list(value)
    _check_parts(node, value)
    children = dict(zip(node.keys, node.children, strict=True))
    parts = {key: _unstack(child, value[key]) for key, child in children.items() if _has_leaves(child)}
    lengths = [len(part) for part in parts.values()]
    if len(set(lengths)) > 1:
        raise SpaceError(f"expected parts stacked to one length, got lengths {lengths}", where=_at(node))
    items = [[parts[key][i] if key in parts else value[key] for key in node.keys] for i in range(max(lengths, default=0))]
    return [tuple(item) if isinstance(space, gs.Tuple) else dict(zip(node.keys, item, strict=True)) for item in items]


def _has_leaves(node: Node) -> bool:
    """Return False for an empty Dict or Tuple: stacked, nothing in it tells how often it was stacked."""
    return node.leaf >= 0 or any(map(_has_leaves, node.children))


def _stack(node: Node, items: Sequence[Any]) -> Any:
    """Stack elements: the inverse of ``_unstack``."""
    space = node.space
    if isinstance(space, gs.Dict | gs.Tuple):
        parts = [_stack(child, [item[key] for item in items]) for key, child in zip(node.keys, node.children, strict=True)]
        return tuple(parts) if isinstance(space, gs.Tuple) else dict(zip(node.keys, parts, strict=True))
    if node.codes is not None or node.children:
        return tuple(items)
    out = np.zeros((len(items), *(space.shape or ())), space.dtype)
    for i, item in enumerate(items):
        out[i] = item
    return out


def _pack_text(node: Node, codes: dict[str, int], value: Any, out: np.ndarray) -> None:
    if not isinstance(value, str):
        raise SpaceError(f"expected a str, got {_show(value)}", where=_at(node))
    if len(value) > len(out):
        raise SpaceError(f"text of {len(value)} characters does not fit max_length={len(out)}: {value!r}", where=_at(node))
    unknown = sorted(set(value) - set(codes))
    if unknown:
        raise SpaceError(
            f"characters {unknown} are not in the space's charset", where=_at(node), fix="add them to Text(charset=...)"
        )
    out[...] = 0
    out[: len(value)] = [codes[character] for character in value]


def _checked_array(packer: Packer, index: int, value: Any) -> np.ndarray:
    """Return ``value`` as an array of the leaf's dtype and shape, or raise an error that says what is wrong with it."""
    leaf = packer.layout.leaves[index]
    name, dtype = leaf.name or "value", leaf.dtype
    array = _as_array(leaf, name, value)
    if isinstance(value, bool | int | float | list | tuple) and not isinstance(value, np.generic):
        if array.size and not _kind_fits(array.dtype.kind, dtype.kind):
            raise SpaceError(f"the space says {dtype}, got {_show(value)}", where=name)
    elif not _dtype_fits(leaf, array.dtype, packer.cast):
        raise SpaceError(
            f"the space says {dtype}, got {array.dtype}",
            where=name,
            fix=f"Return value.astype(np.{dtype.name}), or declare the space with dtype=np.{array.dtype.name}"
            + (
                ", or let fugu convert it: cast=True in make(), --vector.cast in training"
                if np.can_cast(array.dtype, dtype, "same_kind")
                else ""
            ),
        )
    if dtype.kind in "iu" and array.dtype != dtype and array.size:
        info = np.iinfo(dtype)
        if int(array.min()) < info.min or int(array.max()) > info.max:
            raise SpaceError(f"{_brief(array.tolist())} does not fit {dtype}", where=name)
    with np.errstate(over="ignore"):  # a float too wide becomes infinite, and is refused as such
        out = array.astype(dtype, copy=False)
    choices = packer.ranges[index]
    if choices is not None and ((out < choices[0]) | (out > choices[1])).any():
        raise SpaceError(f"{_brief(array.tolist())} is outside {leaf.space}", where=name)
    if packer.finite and dtype.kind == "f" and not np.isfinite(out).all():
        where = np.argwhere(~np.isfinite(np.atleast_1d(out)))[0].tolist()
        raise SpaceError(
            f"{np.atleast_1d(out)[tuple(where)]} at index {where}; an observation must be finite",
            where=name,
            fix="Fix the env, or allow it with check_finite=False",
        )
    return out


def _as_array(leaf: Leaf, name: str, value: Any) -> np.ndarray:
    """Return ``value`` as an array of numbers with the leaf's shape and a dtype of its own."""
    shape = leaf.shape[leaf.lead :]
    try:
        array = np.asarray(value)
        if array.dtype == np.float64 and leaf.dtype == np.uint64 and isinstance(value, list | tuple):
            array = _large_whole_numbers(value, array)
    except Exception as error:  # ragged lists, or whatever an object's own __array__ raises
        raise SpaceError(f"expected {leaf.dtype}{list(shape)}, got {_show(value)}", where=name) from error
    if array.dtype.kind not in "biuf":
        raise SpaceError(f"expected {leaf.dtype}{list(shape)}, got {_show(value)}", where=name)
    if array.shape != shape:
        raise SpaceError(
            f"the space says shape {list(shape)}, got {list(array.shape)}",
            where=name,
            fix="Return that shape or declare the space with the shape you return",
        )
    return array


def _large_whole_numbers(value: Any, array: np.ndarray) -> np.ndarray:
    """Keep whole numbers whole: numpy reads a list of them as floats once some exceed int64 and others do not."""
    numbers = np.array(value, object)
    whole = all(isinstance(number, int | np.integer) for number in numbers.flat)
    return numbers.astype(np.uint64) if whole and numbers.min() >= 0 else array


def _kind_fits(got: str, want: str) -> bool:
    """Compare kinds alone, as Python numbers carry no width: whole ones go into any number, real ones into floats, bools into all."""
    return got == "b" or want == "f" or (got in "iu" and want in "iu")


def _dtype_fits(leaf: Leaf, got: np.dtype, cast: bool) -> bool:
    """Compare dtypes: an array's must be the leaf's, unless ``cast``; a choice may come as any integer, its range is checked."""
    if isinstance(leaf.space, gs.Discrete) and got.kind in "iub":
        return True
    return np.can_cast(got, leaf.dtype, "same_kind" if cast else "equiv")


def _zero(node: Node, views: list[np.ndarray], at: tuple[int, ...]) -> None:
    if node.leaf >= 0:
        views[node.leaf][at] = 0
    for child in node.children:
        _zero(child, views, at)


def unpack_node(node: Node, views: Sequence[np.ndarray], at: tuple[int, ...]) -> Any:
    """Return the value at ``node``; ``at`` indexes the axes in front of each leaf: of a batch, and of the Sequences around it."""
    space = node.space
    if isinstance(space, gs.Dict):
        return {key: unpack_node(child, views, at) for key, child in zip(node.keys, node.children, strict=True)}
    if isinstance(space, gs.Tuple):
        return tuple(unpack_node(child, views, at) for child in node.children)
    value = views[node.leaf][at]
    if isinstance(space, gs.OneOf):
        choice = _within(node, int(value), len(node.children) - 1)
        return (np.int64(choice), unpack_node(node.children[choice], views, at))
    if isinstance(space, gs.Sequence):
        length = _within(node, int(value), node.maximum)
        items = tuple(unpack_node(node.children[0], views, (*at, i)) for i in range(length))
        return _stack(node.children[0], items) if space.stack else items
    if node.codes is not None:
        _within(node, int(value.max(initial=0)), len(node.characters))
        return "".join(node.characters[code - 1] for code in value.tolist() if code)
    return value.copy() if value.ndim else value[()]


def _within(node: Node, number: int, highest: int) -> int:
    if not 0 <= number <= highest:
        raise SpaceError(
            f"the row holds {number}, expected 0..{highest} for {node.space}; it was not packed here", where=_at(node)
        )
    return number


def _plan(packer: Packer, node: Node) -> Any:
    """Return the tree as nested tuples for ``native/pack.h``; None if it holds a OneOf or a Sequence."""
    space = node.space
    if isinstance(space, gs.Dict | gs.Tuple):
        parts = tuple(_plan(packer, child) for child in node.children)
        if None in parts:
            return None
        return ("dict", node.keys, parts) if isinstance(space, gs.Dict) else ("tuple", parts)
    if isinstance(space, gs.OneOf | gs.Sequence):
        return None
    leaf = packer.layout.leaves[node.leaf]
    if node.codes is not None:
        return ("text", leaf.offset, leaf.dtype.itemsize, leaf.shape[0], node.codes)
    choices = packer.ranges[node.leaf]
    ranged = None if choices is None else (choices[0].tobytes(), choices[1].tobytes())
    finite = packer.finite and leaf.dtype.kind == "f"
    return ("array", leaf.offset, leaf.dtype.num, leaf.shape, finite, isinstance(space, gs.Discrete), ranged)


def _at(node: Node) -> str:
    return path_name(node.path) or "value"


def _show(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype}{list(value.shape)}"
    return f"{type(value).__name__} {_brief(value)}"


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
