"""One value of a space, or many, as a user holds them <-> rows.

In: a value as an environment gives it, or a batch of them: the arrays of the space's structure with a leading axis, as Gymnasium's
vector environments stack them, or a list of values. Out: rows ``[n, *row_shape]`` and whether it was one value. And back, in the same
form. What does not fit is the ``SpaceError`` of ``pack.py``, with the number of the value in the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gs

from fugu.errors import SpaceError
from fugu.spaces.layout import Layout, Leaf, Node
from fugu.spaces.pack import Packer


class Values:
    """Reads and writes values of ``space``. ``finite`` refuses NaN and infinity; numbers of another width are converted."""

    def __init__(self, space: gs.Space, *, finite: bool = True) -> None:
        self.layout = Layout(space)
        self.packer = Packer(self.layout, finite=finite, cast=True)
        self._ragged = _is_ragged(self.layout.root)
        """True if values of it cannot be stacked"""

    def rows(self, value: Any) -> tuple[np.ndarray, bool]:
        """Return rows ``[n, *row_shape]`` of ``value``, and True if it is one value."""
        count = self._count(value)
        if count is None:
            row = self.layout.zeros(1)
            self.packer.pack(value, row[0, ...])
            return row, True
        rows = self.layout.zeros(count)
        if not self._write_stacked(value, rows):
            for i in range(count):
                try:
                    self.packer.pack(_part(self.layout.root, value, i), rows[i, ...])
                except SpaceError as error:
                    raise SpaceError(error.problem, where=f"{error.where or 'value'} of number {i}", fix=error.fix) from None
        return rows, False

    def value(self, rows: np.ndarray, *, single: bool) -> Any:
        """Return the values of ``rows``: the only one, or all of them stacked, a tuple of them where they cannot be. Arrays may be
        views."""
        if single:
            found = self.packer.unpack(rows[0, ...])
            return int(found) if isinstance(self.layout.space, gs.Discrete) else found
        return self.packer.unpack_batch(rows) if self._ragged else self.layout.views(rows)

    def _count(self, value: Any) -> int | None:
        """Return the number of values; None if it is one, or none at all."""
        if self._ragged:
            return len(value) if isinstance(value, list) else None
        counts = _lengths(self.layout.root, self.layout.leaves, value)
        if len(counts) > 1:
            raise SpaceError(f"expected parts of one number of values, got {sorted(counts)}")
        return counts.pop() if counts else None

    def _write_stacked(self, value: Any, rows: np.ndarray) -> bool:
        """Write all values leaf by leaf. Returns False if there is anything to it, for which going through them one by one is."""
        found: list[Any] = []
        if self._ragged or not _collect(self.layout.root, value, found):
            return False
        for leaf, choices, given, into in zip(
            self.layout.leaves, self.packer.ranges, found, self.layout.leaf_views(rows), strict=True
        ):
            array = given if isinstance(given, np.ndarray) else np.asarray(given)
            discrete = isinstance(leaf.space, gs.Discrete) and array.dtype.kind in "iu"
            if array.shape != into.shape or not (array.dtype == leaf.dtype or discrete):
                return False
            if choices is not None and ((array < choices[0]) | (array > choices[1])).any():
                return False
            if self.packer.finite and leaf.dtype.kind == "f" and not np.isfinite(array).all():
                return False
            into[...] = array
        return True


def _is_ragged(node: Node) -> bool:
    return isinstance(node.space, gs.OneOf | gs.Sequence) or any(map(_is_ragged, node.children))


def _lengths(node: Node, leaves: tuple[Leaf, ...], value: Any) -> set[int]:
    """Return the lengths of the leading axes that the leaves in ``value`` have beyond those of the space."""
    if isinstance(node.space, gs.Dict | gs.Tuple):
        if isinstance(value, Mapping if isinstance(node.space, gs.Dict) else tuple):
            pairs = value if isinstance(value, Mapping) else dict(enumerate(value))
            parts = [(part, pairs[key]) for key, part in zip(node.keys, node.children, strict=True) if key in pairs]
            return set().union(*(_lengths(part, leaves, found) for part, found in parts))
        return {len(value)} if isinstance(value, list) or (isinstance(value, np.ndarray) and value.dtype == object) else set()
    if node.codes is not None:
        return {len(value)} if isinstance(value, list | tuple | np.ndarray) and len(np.shape(value)) == 1 else set()
    try:
        shape = np.shape(value)
    except ValueError:  # parts of different lengths
        return set()
    return {shape[0]} if len(shape) == len(leaves[node.leaf].shape) + 1 else set()


def _collect(node: Node, value: Any, into: list[Any]) -> bool:
    """Append the values of all leaves; False if something is missing, too much or text."""
    if not isinstance(node.space, gs.Dict | gs.Tuple):
        into.append(value)
        return node.codes is None
    if not isinstance(value, Mapping if isinstance(node.space, gs.Dict) else tuple) or len(value) != len(node.keys):
        return False
    try:
        return all(_collect(part, value[key], into) for key, part in zip(node.keys, node.children, strict=True))
    except KeyError:
        return False


def _part(node: Node, value: Any, i: int) -> Any:
    """Return value ``i`` of a batch, as far as it has the structure of the space."""
    parts = dict(zip(node.keys, node.children, strict=True))
    if isinstance(node.space, gs.Dict) and isinstance(value, Mapping):
        return {key: _part(parts[key], part, i) if key in parts else part for key, part in value.items()}
    if isinstance(node.space, gs.Tuple) and isinstance(value, tuple):
        return tuple(_part(parts[k], part, i) if k in parts else part for k, part in enumerate(value))
    try:
        return value[i]
    except (TypeError, IndexError):
        raise SpaceError(
            f"there is none in {type(value).__name__} {value!r:.60}", where="/".join(map(str, node.path))
        ) from None
