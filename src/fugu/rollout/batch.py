"""A batch: named columns of tensors with one leading axis of segments.

The row convention, everywhere in fugu (``emulation/env.py`` says how environments write it):

- Row t of a segment holds ``obs[t]``, the ``action[t]`` taken on it, and what that action produced: ``reward[t]``,
  ``terminated[t]``, ``truncated[t]``, and ``cost[t]``, one number per kind, where the environment has costs. There is no ``done``.
- The row after an ending holds the final observation; its action goes nowhere and its ``mask`` is False. The row after that
  starts the next episode and has ``first``. An episode may start and end anywhere in a segment.
- ``mask=False`` also marks agents that are dead, absent or waiting. Masked rows enter no loss, no mean and no priority.
- Recurrent state is zeroed where ``first`` is True, before the row is looked at, in rollout and in training.

Columns are ``[segments, horizon, ...]``, except those that a segment has once (``columns.py`` is their table). In memory either axis may come
first: rollouts on a CPU lay segments one after the other, those on a GPU rows of the same time. All columns of a batch lie alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fugu.ops.gather import compact, pick
from fugu.rollout.columns import PER_SEGMENT

@dataclass(frozen=True, slots=True)
class Origin:
    """Where segments came from, so that what learning finds of them can go back."""

    take: Callable[[Mapping[str, Tensor], Tensor | None], None]
    """takes columns and which segments of the source's batch they are of, all if None"""
    segments: Tensor | None = None

    def of(self, index: Tensor) -> Origin:
        """Return the origin of the segments that ``index`` names."""
        return Origin(self.take, index if self.segments is None else self.segments[index.to(self.segments.device)])


@dataclass(frozen=True, slots=True)
class Batch:
    columns: Mapping[str, Tensor]
    once: frozenset[str] = PER_SEGMENT
    """names of the columns that a segment has once"""
    origin: Origin | None = None

    def __getitem__(self, name: str) -> Tensor:
        return self.columns[name]

    def get(self, name: str) -> Tensor | None:
        return self.columns.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    @property
    def segments(self) -> int:
        return self.columns["reward"].shape[0]

    @property
    def horizon(self) -> int:
        return self.columns["reward"].shape[1]

    def compact(self) -> Batch:
        """Return the same without gaps in memory: a part of a batch on a GPU is copied, so that its rows can be flattened.

        Observations stay where they are: they are most of a batch, and a policy reads them once, in whatever order they lie.
        """
        return self._with(compact(self.columns, self.columns["reward"], once=self.once, but=("obs",)))

    def also(self, **columns: Tensor) -> Batch:
        """Return the same batch with more columns, or other ones."""
        return self._with({**self.columns, **columns})

    def also_once(self, **columns: Tensor) -> Batch:
        """Return the same batch with more columns that a segment has once, ``[segments, ...]``."""
        return Batch({**self.columns, **columns}, self.once | columns.keys(), self.origin)

    def without(self, *names: str) -> Batch:
        """Return the same batch without some columns."""
        return self._with({name: column for name, column in self.columns.items() if name not in names})

    def hand_back(self, **columns: Tensor) -> None:
        """Give the source what was found of these segments; nothing happens where it keeps none of it."""
        if self.origin is not None:
            self.origin.take(columns, self.origin.segments)

    def _with(self, columns: Mapping[str, Tensor], origin: Origin | None = None) -> Batch:
        return Batch(columns, self.once, origin or self.origin)

    def rows(self, index: Tensor) -> Batch:
        """Return the segments ``index`` names, whole; copies that lie in memory as the originals do.

        On a GPU, where segments of a step are neighbours in memory, all columns are copied in one launch.
        """
        origin = None if self.origin is None else self.origin.of(index)
        return self._with(pick(self.columns, index, self.columns["reward"], once=self.once), origin)

    def part(self, start: int, stop: int) -> Batch:
        """Return these segments; views."""
        origin = None if self.origin is None else self.origin.of(torch.arange(start, min(stop, self.segments)))
        return self._with({name: column[start:stop] for name, column in self.columns.items()}, origin)

    def to(self, device: torch.device) -> Batch:
        return self._with({name: column.to(device, non_blocking=True) for name, column in self.columns.items()})
