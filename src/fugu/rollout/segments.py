"""The memory of a rollout on the CPU: what environments and a policy say of rows, put where the batch wants it.

Columns that environments write lie in the CPU's memory, those of the policy where it is. All are allocated once, those of the policy when
it first says what they are.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fugu.emulation.columns import NEXT, OUTCOME, RowColumn, present
from fugu.emulation.env import Rows
from fugu.rollout.acting import Carry, Seen
from fugu.rollout.columns import BOOTSTRAPS
from fugu.spaces.views import TORCH_DTYPES
from fugu.vector.vecenv import VecEnv


class Segments:
    """``segments`` of ``horizon`` rows of the agents of ``vec``."""

    def __init__(self, vec: VecEnv, segments: int, horizon: int, device: torch.device) -> None:
        self.count, self.horizon, self.device = segments, horizon, device
        self._pin = device.type == "cuda"  # so that copies to the card need not wait
        self._choices = vec.num_choices
        self.written: dict[str, Tensor] = {
            column.name: torch.zeros((segments, horizon, *shape), dtype=dtype, pin_memory=self._pin)
            for column, shape, dtype in ((each, *_form(each, vec)) for each in present(vec.spec) if each.name != "action_mask")
        }
        """columns the environments fill, on the CPU"""
        self.arrays = {name: column.numpy() for name, column in self.written.items()}
        self._next = [column.name for column in NEXT if column.name in self.arrays]
        self._outcome = [column.name for column in OUTCOME if column.name in self.arrays]
        self._action_mask: Tensor | None = None
        """[segments, horizon, choices]; made when an environment first forbids something"""
        self._forbidden = False
        """whether one has in this batch"""
        self.acted: dict[str, Tensor] = {}
        """columns the policy fills, where the learner is"""
        self.after: dict[str, Tensor] = {}
        """what the policy says of the row after the last one, by column"""

    def begin(self) -> None:
        """Start a batch: nothing has been forbidden in it so far."""
        if self._forbidden and self._action_mask is not None:
            self._action_mask.fill_(True)  # also in rows that this batch does not come to
        self._forbidden = False

    def keep_next(self, rows: Rows, place: slice, t: int, *, masked: bool) -> None:
        """Keep the rows that wait for an action as row ``t`` of the segments ``place``. ``masked``: some actions are forbidden."""
        for name in self._next:
            self.arrays[name][place, t] = getattr(rows, name)
        if masked and self._action_mask is None:
            shape = (self.count, self.horizon, self._choices)
            self._action_mask = torch.ones(shape, dtype=torch.bool, pin_memory=self._pin)
        if self._action_mask is not None:
            self._action_mask.numpy()[place, t] = rows.action_mask
            self._forbidden |= masked

    def keep_outcome(self, rows: Rows, place: slice, t: int) -> None:
        """Keep what the action of row ``t`` produced."""
        for name in self._outcome:
            self.arrays[name][place, t] = getattr(rows, name)

    def keep_acted(self, columns: Mapping[str, Tensor], place: slice, t: int) -> None:
        """Keep what the policy said of row ``t``."""
        for name, column in columns.items():
            if name not in self.acted:
                shape = (self.count, self.horizon, *column.shape[1:])
                self.acted[name] = torch.zeros(shape, dtype=column.dtype, device=self.device)
            self.acted[name][place, t] = column

    def keep_after(self, columns: Mapping[str, Tensor], place: slice) -> None:
        """Keep what the policy says of the row after the last."""
        for name, kept in BOOTSTRAPS.items():
            if name not in columns:
                continue
            if kept not in self.after:
                self.after[kept] = torch.zeros((self.count, *columns[name].shape[1:]), device=self.device)
            self.after[kept][place] = columns[name]

    def columns(self) -> dict[str, Tensor]:
        """Return all that was kept of the batch, by name."""
        columns = {**self.written, **self.acted, **self.after}
        if self._forbidden and self._action_mask is not None:
            columns["action_mask"] = self._action_mask
        return columns


def seen_of(rows: Rows, carry: Carry | None, device: torch.device, *, training: bool = True) -> Seen:
    """Return the rows as the policy sees them: views on a CPU, copies elsewhere. The action mask only where it forbids something."""
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


def _form(column: RowColumn, vec: VecEnv) -> tuple[tuple[int, ...], torch.dtype]:
    if column.name == "obs":
        return vec.obs_layout.row_shape, TORCH_DTYPES[vec.obs_layout.dtype_name]
    return column.shape(vec.spec), TORCH_DTYPES[np.dtype(column.dtype).name]
