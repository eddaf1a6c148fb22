"""A batch: named columns of tensors with one leading axis of segments.

The row convention, everywhere in fugu (``emulation/env.py`` says how environments write it):

- Row t of a segment holds ``obs[t]``, the ``action[t]`` taken on it, and what that action produced: ``reward[t]``,
  ``terminated[t]``, ``truncated[t]``, and ``cost[t]``, one number per kind, where the environment has costs. There is no ``done``.
- The row after an ending holds the final observation; its action goes nowhere and its ``mask`` is False. The row after that
  starts the next episode and has ``first``. An episode may start and end anywhere in a segment.
- ``mask=False`` also marks agents that are dead, absent or waiting. Masked rows enter no loss, no mean and no priority.
- Recurrent state is zeroed where ``first`` is True, before the row is looked at, in rollout and in training.

Columns are ``[segments, horizon, ...]``, except those that a segment has once: ``PER_SEGMENT``. In memory either axis may come
first: rollouts on a CPU lay segments one after the other, those on a GPU rows of the same time. All columns of a batch lie alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fugu.ops.gather import compact, pick

PER_SEGMENT = frozenset(
    {
        *("state", "bootstrap", "bootstrap_now", "cost_bootstrap", "acts_after"),
        *("priority", "importance", "agent", "group", "score", "round"),
    }
)
"""state: of the recurrent core before the first row; bootstrap: value of the observation after the last row, cost_bootstrap: what is
expected to be paid from there on; bootstrap_now, and value_now for rows: what the network said there, in the units that values have
since ``prepare``; acts_after: mask of the row after the last, where agents may wait for each other; priority: how likely a
segment is drawn; importance: what a segment drawn by priority counts for; agent: which one of its world a segment
belongs to; group, score, round: see ``episodes.py``"""

BOOTSTRAPS = {"value": "bootstrap", "cost_value": "cost_bootstrap"}
"""what a policy says of rows and is also asked of the row after the last one -> the column that keeps that"""


@dataclass(frozen=True, slots=True)
class Batch:
    columns: Mapping[str, Tensor]

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
        """The same without gaps in memory: a part of a batch on a GPU is copied, so that its rows can be flattened.

        Observations stay where they are: they are most of a batch, and a policy reads them once, in whatever order they lie.
        """
        return Batch(compact(self.columns, self.columns["reward"], once=PER_SEGMENT, but=("obs",)))

    def also(self, **columns: Tensor) -> Batch:
        """The same batch with more columns, or other ones."""
        return Batch({**self.columns, **columns})

    def rows(self, index: Tensor) -> Batch:
        """The segments ``index`` names, whole; copies that lie in memory as the originals do.

        On a GPU, where segments of a step are neighbours in memory, all columns are copied in one launch.
        """
        return Batch(pick(self.columns, index, self.columns["reward"], once=PER_SEGMENT))

    def part(self, start: int, stop: int) -> Batch:
        """These segments; views."""
        return Batch({name: column[start:stop] for name, column in self.columns.items()})

    def to(self, device: torch.device) -> Batch:
        return Batch({name: column.to(device, non_blocking=True) for name, column in self.columns.items()})
