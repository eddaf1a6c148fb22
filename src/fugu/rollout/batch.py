"""A batch: named columns of tensors with one leading axis of segments.

The row convention, everywhere in fugu (``emulation/env.py`` says how environments write it):

- Row t of a segment holds ``obs[t]``, the ``action[t]`` taken on it, and what that action produced: ``reward[t]``,
  ``terminated[t]``, ``truncated[t]``, and ``cost[t]``, one number per kind, where the environment has costs. There is no ``done``.
- The row after an ending holds the final observation; its action goes nowhere and its ``mask`` is False. The row after that
  starts the next episode and has ``first``. An episode may start and end anywhere in a segment.
- ``mask=False`` also marks agents that are dead, absent or waiting. Masked rows enter no loss, no mean and no priority.
- Recurrent state is zeroed where ``first`` is True, before the row is looked at, in rollout and in training.

Columns are ``[segments, horizon, ...]``, except those that a segment has once (``columns.py`` is their table). In memory either axis
may come first: rollouts on a CPU lay segments one after the other, those on a GPU rows of the same time. All columns of a batch lie
alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fugu.emulation.columns import present
from fugu.emulation.env import Rows
from fugu.ops.gather import compact, pick
from fugu.rollout.acting import Carry, Seen
from fugu.rollout.columns import BOOTSTRAPS, PER_SEGMENT, check_free
from fugu.spaces.views import TORCH_DTYPES
from fugu.vector.vecenv import VecEnv


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of segments, so that what learning finds out about them can be sent back."""

    take: Callable[[Mapping[str, Tensor], Tensor | None], None]
    """function that takes columns, and the indices of their segments in the source's batch; None: all of them"""
    segments: Tensor | None = None

    def of(self, index: Tensor) -> Origin:
        """Return the origin of the segments with these indices."""
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
        """Return the batch without gaps in memory: a part of a batch on a GPU is copied, so that its rows can be flattened.

        Observations stay where they are: they are most of a batch, and a policy reads them once, in any order of memory.
        """
        return self._with(compact(self.columns, self.columns["reward"], once=self.once, but=("obs",)))

    def also(self, **columns: Tensor) -> Batch:
        """Return the batch with more columns, or replaced ones."""
        return self._with({**self.columns, **columns})

    def also_once(self, **columns: Tensor) -> Batch:
        """Return the batch with more columns that a segment has once, ``[segments, ...]``."""
        return Batch({**self.columns, **columns}, self.once | columns.keys(), self.origin)

    def without(self, *names: str) -> Batch:
        """Return the batch without some columns."""
        return self._with({name: column for name, column in self.columns.items() if name not in names})

    def hand_back(self, **columns: Tensor) -> None:
        """Send what was found out about these segments back to the source; nothing happens if it keeps none of it."""
        if self.origin is not None:
            self.origin.take(columns, self.origin.segments)

    def _with(self, columns: Mapping[str, Tensor], origin: Origin | None = None) -> Batch:
        return Batch(columns, self.once, origin or self.origin)

    def rows(self, index: Tensor) -> Batch:
        """Return the segments with these indices, whole: copies with the memory layout of the originals.

        On a GPU, where the segments' rows of one step are neighbours in memory, all columns are copied in one launch.
        """
        origin = None if self.origin is None else self.origin.of(index)
        return self._with(pick(self.columns, index, self.columns["reward"], once=self.once), origin)

    def part(self, start: int, stop: int) -> Batch:
        """Return the segments from ``start`` to ``stop``, as views."""
        origin = None if self.origin is None else self.origin.of(torch.arange(start, min(stop, self.segments)))
        return self._with({name: column[start:stop] for name, column in self.columns.items()}, origin)

    def to(self, device: torch.device) -> Batch:
        return self._with({name: column.to(device, non_blocking=True) for name, column in self.columns.items()})


class Segments:
    """The memory of a batch on the CPU: all columns of ``segments`` of ``horizon`` rows of ``vec``'s agents.

    Columns that environments write lie in the CPU's memory, the policy's columns on its device. All are allocated once, the
    policy's when its first row shows their shapes.
    """

    def __init__(self, vec: VecEnv, segments: int, horizon: int, device: torch.device) -> None:
        self.count, self.horizon, self.device = segments, horizon, device
        self._pin = device.type == "cuda"  # so that copies to the card need not wait
        self._choices = vec.num_choices
        check_free(vec.spec)
        self._spec = vec.spec
        forms = present(vec.spec, choices=0)
        self.written: dict[str, Tensor] = {
            form.name: torch.zeros((segments, horizon, *form.shape), dtype=TORCH_DTYPES[form.dtype], pin_memory=self._pin)
            for form in forms
        }
        """columns that environments fill, on the CPU"""
        self.arrays = {name: column.numpy() for name, column in self.written.items()}
        self._next = [form.name for form in forms if form.when == "next"]
        self.outcome = [form.name for form in forms if form.when == "outcome"]
        """which of them say what an action produced"""
        self._action_mask: Tensor | None = None
        """[segments, horizon, choices]; made when an environment first forbids an action"""
        self._forbidden = False
        """True if an environment has forbidden an action in this batch"""
        self.acted: dict[str, Tensor] = {}
        """columns that the policy fills, on the learner's device"""
        self.after: dict[str, Tensor] = {}
        """the policy's outputs on the row after the last, by column"""

    def begin(self) -> None:
        """Start a batch: nothing has been forbidden in it so far."""
        if self._forbidden and self._action_mask is not None:
            self._action_mask.fill_(True)  # also in rows that this batch does not come to
        self._forbidden = False

    def keep_next(self, rows: Rows, place: slice, t: int, *, masked: bool) -> None:
        """Keep the rows that wait for an action as row ``t`` of the segments ``place``. ``masked``: some actions are forbidden."""
        for name in self._next:
            self.arrays[name][place, t] = rows.columns[name]
        if masked and self._action_mask is None:
            shape = (self.count, self.horizon, self._choices)
            self._action_mask = torch.ones(shape, dtype=torch.bool, pin_memory=self._pin)
        if self._action_mask is not None:
            self._action_mask.numpy()[place, t] = rows.action_mask
            self._forbidden |= masked

    def keep_outcome(self, rows: Rows, place: slice, t: int) -> None:
        """Keep the outcome of the action of row ``t``."""
        for name in self.outcome:
            self.arrays[name][place, t] = rows.columns[name]

    def keep_acted(self, columns: Mapping[str, Tensor], place: slice, t: int) -> None:
        """Keep the policy's outputs on row ``t``."""
        for name, column in columns.items():
            if name not in self.acted:
                check_free(self._spec, columns)
                shape = (self.count, self.horizon, *column.shape[1:])
                self.acted[name] = torch.zeros(shape, dtype=column.dtype, device=self.device)
            self.acted[name][place, t] = column

    def keep_after(self, columns: Mapping[str, Tensor], place: slice) -> None:
        """Keep the policy's outputs on the row after the last."""
        for name, kept in BOOTSTRAPS.items():
            if name not in columns:
                continue
            if kept not in self.after:
                self.after[kept] = torch.zeros((self.count, *columns[name].shape[1:]), device=self.device)
            self.after[kept][place] = columns[name]

    def columns(self) -> dict[str, Tensor]:
        """Return all columns of the batch, by name."""
        columns = {**self.written, **self.acted, **self.after}
        if self._forbidden and self._action_mask is not None:
            columns["action_mask"] = self._action_mask
        return columns


def seen_of(rows: Rows, carry: Carry | None, device: torch.device, *, training: bool = True) -> Seen:
    """Return the rows as the policy sees them: views on a CPU, copies elsewhere. The action mask is included only if it forbids
    something."""
    mask = None
    if rows.action_mask is not None and not rows.action_mask.all():
        mask = torch.from_numpy(rows.action_mask)
    seen = Seen(
        torch.from_numpy(rows.obs),
        torch.from_numpy(rows.first),
        torch.from_numpy(rows.reward),
        torch.from_numpy(rows.mask),
        mask,
        carry,
        training,
    )
    if device.type != "cpu":
        for name in ("obs", "first", "reward", "mask", "action_mask"):
            column = getattr(seen, name)
            setattr(seen, name, None if column is None else column.to(device))
    return seen
