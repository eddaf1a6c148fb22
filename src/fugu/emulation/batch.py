"""Batched values of a space, as Gymnasium's vector envs hand them over <-> rows.

In: a batch of observations in the form of ``gymnasium.vector.utils.batch_space``. Out: rows, written a leaf at a time for all
of them, checked. Gymnasium batches text, OneOf and Sequence as tuples of values; they are written row by row, and so is whatever
does not fit, to accept it slowly or to say what is wrong with which sub-env.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces as gs
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from fugu.errors import SpaceError
from fugu.spaces import Layout, Leaf, Packer
from fugu.spaces.layout import Node


class ObsBatch:
    """Writes batches of ``count`` observations; ``batched`` is the vector env's ``observation_space``."""

    def __init__(self, packer: Packer, batched: gs.Space, count: int) -> None:
        self.packer, self.batched, self.count = packer, batched, count
        self.by_leaf = _arrays_only(packer.layout.root)
        self._leaves = [(leaf, _limits(leaf)) for leaf in packer.layout.leaves]
        self._casting: Any = "same_kind" if packer.cast else "equiv"

    def write(self, obs: Any, rows: np.ndarray, views: list[np.ndarray]) -> None:
        """Write the observations ``obs`` into ``rows [count, *row_shape]``; ``views`` are its leaves."""
        if self.by_leaf and all(
            self._write_leaf(leaf, limits, view, obs) for (leaf, limits), view in zip(self._leaves, views, strict=True)
        ):
            return
        for i, item in enumerate(self.items(obs)):
            self.write_item(i, item, rows)

    def write_item(self, i: int, value: Any, rows: np.ndarray) -> None:
        try:
            self.packer.pack(value, rows[i : i + 1].reshape(self.packer.layout.row_shape))
        except SpaceError as error:
            raise error.of(sub_env=i) from None

    def items(self, obs: Any) -> list[Any]:
        """Return the observations of a batch one by one."""
        try:
            items = list(iterate(self.batched, obs))
        except Exception as error:
            raise SpaceError(f"the batch of observations does not fit {self.batched}: {error!r}") from error
        if len(items) != self.count:
            raise SpaceError(f"expected a batch of {self.count} observations, got {len(items)}")
        return items

    def _write_leaf(self, leaf: Leaf, limits: Any, view: np.ndarray, value: Any) -> bool:
        """Write one leaf of all observations. Return False if something about it is unexpected."""
        try:
            for key in leaf.path:
                value = value[key]
            value = np.asarray(value)
        except (KeyError, IndexError, TypeError, ValueError):
            return False
        if value.shape != view.shape or not np.can_cast(value.dtype, leaf.dtype, self._casting):
            return False
        if limits is not None and ((value < limits[0]) | (value > limits[1])).any():
            return False
        view[...] = value
        return not (self.packer.finite and leaf.dtype.kind == "f") or bool(np.isfinite(view).all())


class ActionBatch:
    """Turns action rows of ``space`` into batched actions. All arrays are copies: envs may keep what they are given."""

    def __init__(self, space: gs.Space) -> None:
        self.packer = Packer(Layout(space), finite=False)
        self.by_leaf = _arrays_only(self.packer.layout.root)

    def read(self, rows: np.ndarray) -> Any:
        layout = self.packer.layout
        if self.by_leaf:
            return layout.assemble([view.copy() for view in layout.leaf_views(rows)])
        empty: Any = create_empty_array(layout.space, len(rows))
        return concatenate(layout.space, self.packer.unpack_batch(rows), empty)


def _arrays_only(node: Node) -> bool:
    """Return True if a batch of the space is arrays alone."""
    if node.codes is not None or isinstance(node.space, gs.OneOf | gs.Sequence):
        return False
    return all(map(_arrays_only, node.children))


def _limits(leaf: Leaf) -> tuple[Any, Any] | None:
    """Return the lowest and highest value of a leaf that stands for choices."""
    space = leaf.space
    if isinstance(space, gs.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, gs.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return (0, 1) if isinstance(space, gs.MultiBinary) else None
