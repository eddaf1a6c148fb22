"""The processes that learn together, as one of them sees them.

Every rank has environments of its own and the same weights. What must be alike everywhere goes through this object: sums over all
rows, decisions that all have to take together, and seeds. ``ALONE`` is the one for a single process: it returns what it is given.

A loss is the sum of its ranks' losses. So divide by a sum over all ranks, not by a count of your own rows::

    weight = mask / ranks.sum(mask.sum())      # the same for one rank and for many
"""

from __future__ import annotations

import operator
from typing import Any, TypeVar

Tensor = TypeVar("Tensor")
"""a torch tensor; torch is not imported here"""

_APART = 0x9E3779B97F4A7C15
"""odd, so that multiples of it modulo 2**63 are all different"""


class Ranks:
    """A single process. Others have the same members."""

    rank = 0
    size = 1

    sum: Any = staticmethod(operator.pos)
    """returns the sum of a tensor of numbers over all ranks, in their order; all must ask for it at the same point"""

    any: Any = staticmethod(bool)
    """returns whether a flag is True on any rank"""

    def least(self, number: int) -> int:
        """Return the smallest of the ranks' whole numbers."""
        return number

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of ``x`` over all ranks, for what every rank has equally much of."""
        return x if self.size == 1 else self.sum(x) / self.size

    def broadcast(self, x: Any) -> Any:
        """Return what rank 0 gives."""
        return x

    def gather(self, x: Any) -> list[Any]:
        """Return what every rank gives, in their order."""
        return [x]

    def seed(self, seed: int) -> int:
        """Return a seed of this rank's own: ``seed`` itself on rank 0, an unrelated one on every other."""
        return seed if self.rank == 0 else (seed + self.rank * _APART) % 2**63


ALONE = Ranks()
