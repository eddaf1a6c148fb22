"""The memory of a replay: the last rows of every agent, all columns of them, ``[agents, capacity, ...]``.

Rows are counted from the first that was ever written: row r of an agent is in slot ``r % capacity``, and the rows from ``begin`` to
``end`` are there. In: ``[agents, steps, ...]`` columns that follow the last ones. Out: segments of consecutive rows.

Where environments were started anew, the row after another is not what followed from it. There the earlier one becomes what ends an
episode by the row convention: a row on which nobody acted, after one that was truncated.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping

import torch
from torch import Tensor

from fugu.rollout.acting import Forms

ALL_TRUE = "action_mask"
"""column that a batch has only where something is forbidden"""


class Ring:
    def __init__(self, agents: int, capacity: int, forms: Forms, device: torch.device) -> None:
        self.agents, self.capacity, self.device = agents, capacity, device
        self.columns = {name: _untouched((agents, capacity, *shape), dtype, device) for name, (shape, dtype) in forms.items()}
        self.end = 0

    @property
    def begin(self) -> int:
        return max(0, self.end - self.capacity)

    def write(self, columns: Mapping[str, Tensor]) -> None:
        """Write the rows that follow, in place of the oldest where the ring is full. A column that is missing stays as it is."""
        steps = columns["mask"].shape[1]
        skipped = max(0, steps - self.capacity)
        self.end += skipped
        before, slots = self.end, self._slots(self.end, self.end + steps - skipped)
        if ALL_TRUE in columns and ALL_TRUE not in self.columns:
            shape = (self.agents, self.capacity, *columns[ALL_TRUE].shape[2:])
            self.columns[ALL_TRUE] = torch.ones(shape, dtype=torch.bool, device=self.device)
        for name, kept in self.columns.items():
            start = skipped
            for slot in slots:
                stop = start + slot.stop - slot.start
                if name in columns:
                    kept[:, slot] = columns[name][:, start:stop].to(self.device, non_blocking=True)
                elif name == ALL_TRUE:
                    kept[:, slot] = True
                start = stop
        self.end += steps - skipped
        if columns["first"].any():
            self._end_what_was_cut_off(before)

    def _end_what_was_cut_off(self, start: int) -> None:
        """Put ends where the rows from ``start`` on do not follow from those before them."""
        first, mask = self.columns["first"], self.columns["mask"]
        rows = torch.arange(max(start, self.begin + 1), self.end, device=self.device)
        here, before, earlier = rows % self.capacity, (rows - 1) % self.capacity, (rows - 2) % self.capacity
        cut = first[:, here] & mask[:, before]
        if not cut.any():
            return
        mask[:, before] &= ~cut
        ended = cut & mask[:, earlier] & ~self.columns["terminated"][:, earlier] & (rows - 2 >= self.begin)
        self.columns["truncated"][:, earlier] |= ended

    def rows(self, start: int, stop: int) -> dict[str, Tensor]:
        """Return copies of the rows from ``start`` to ``stop`` of all agents, on the CPU."""
        slots = self._slots(start, stop)
        return {name: torch.cat([kept[:, slot].cpu() for slot in slots], 1) for name, kept in self.columns.items()}

    def segments(self, agent: Tensor, row: Tensor, horizon: int) -> dict[str, Tensor]:
        """Return ``horizon`` rows each, beginning with ``row [n]`` of ``agent [n]``: ``[n, horizon, ...]``, copies."""
        flat = self.flat(agent, row, horizon)
        return {name: kept.flatten(0, 1)[flat] for name, kept in self.columns.items()}

    def flat(self, agent: Tensor, row: Tensor, horizon: int) -> Tensor:
        """Return ``[n, horizon]``: where these rows are, counted over all agents, on the ring's device."""
        slot = (row[:, None] + torch.arange(horizon)) % self.capacity
        return (agent[:, None] * self.capacity + slot).to(self.device)

    def replace(self, name: str, flat: Tensor, values: Tensor) -> None:
        """Write a column of some rows anew; of a row that is there twice, the last one counts."""
        order = flat.reshape(-1).sort(stable=True)
        last = torch.ones_like(order.values, dtype=torch.bool)
        last[:-1] = order.values[1:] != order.values[:-1]
        chosen = order.indices[last]
        kept = self.columns[name]
        kept.view(-1, *kept.shape[2:])[flat.reshape(-1)[chosen]] = values.reshape(-1, *kept.shape[2:])[chosen].to(kept)

    def _slots(self, start: int, stop: int) -> list[slice]:
        """Return the slots of the rows from ``start`` to ``stop``, in order: one piece, or two where the ring begins anew."""
        if start == stop:
            return [slice(0, 0)]
        low, high = start % self.capacity, (stop - 1) % self.capacity + 1
        return [slice(low, high)] if low < high else [slice(low, self.capacity), slice(0, high)]


def row_bytes(forms: Forms) -> int:
    """Return the bytes of a row of columns of these forms."""
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in forms.values())


def _untouched(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros whose memory the system gives page by page as it is written: a large replay that is hardly filled takes little.
    A training keeps malloc from asking the system, so that its zeros are written at once."""
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or size == 0:
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
