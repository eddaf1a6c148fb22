"""Priorities of many items, from which some are drawn in proportion (Schaul et al. 2016, arXiv:1511.05952).

A tree of sums over the weights: setting and drawing ``n`` items of ``size`` takes ``n * log(size)``. Every sum is that of its two
children, so the tree depends on the weights alone and not on how they came about.
"""

from __future__ import annotations

import numpy as np


class SumTree:
    def __init__(self, size: int) -> None:
        self.size = size
        self._leaves = 1 << max(size - 1, 1).bit_length()
        self._sums = np.zeros(2 * self._leaves)
        """the root is 1, the children of node i are 2 i and 2 i + 1"""
        self.count = 0
        """items with a weight above 0"""

    @property
    def total(self) -> float:
        return float(self._sums[1])

    def __getitem__(self, index: np.ndarray | slice) -> np.ndarray:
        """Return the weights of some items."""
        return self._sums[self._leaves : self._leaves + self.size][index]

    def set(self, index: np.ndarray, weight: np.ndarray | float) -> None:
        """Set the weights of the items ``index``; of an item that is named twice, the last counts."""
        nodes = np.asarray(index) + self._leaves
        changed = np.unique(nodes)
        before = np.count_nonzero(self._sums[changed])
        self._sums[nodes] = weight
        self.count += int(np.count_nonzero(self._sums[changed]) - before)
        while nodes.size and nodes[0] > 1:
            nodes = np.unique(nodes >> 1)
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def draw(self, chance: np.ndarray) -> np.ndarray:
        """Return the items at the points ``chance`` (0 to 1) of the cumulated weights."""
        left = np.asarray(chance, np.float64) * self.total
        nodes = np.ones(len(left), np.int64)
        while nodes.size and nodes[0] < self._leaves:
            nodes = 2 * nodes
            below = self._sums[nodes]
            # rounding must not lead to where nothing is
            right = (left >= below) & (self._sums[nodes + 1] > 0)
            left = np.where(right, left - below, np.minimum(left, below))
            nodes = nodes + right
        return nodes - self._leaves
