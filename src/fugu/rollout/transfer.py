"""Copies from the memory that environments on the CPU write to the slabs of a rollout on a GPU.

In: the rows of one batch of a ``VecEnv``, which lie in one block (``vector/buffers.py``). Out: row t of a ``Slab``, for these
agents. One copy of bytes crosses, gaps between columns included; on the other side one launch puts every column in its place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fugu.emulation.env import Rows
from fugu.ops.gather import copy_all
from fugu.rollout.device import Slab


class Transfer:
    """Copies the rows of one group from ``memory``, all bytes of the vector env, to ``slab``."""

    def __init__(self, memory: np.ndarray, slab: Slab) -> None:
        self._memory, self._slab = memory, slab
        self._received: Tensor | None = None
        """[bytes of a block] on the device"""

    def __call__(self, rows: Rows, t: int) -> None:
        """Copy what the environments wrote: the outcome of row ``t - 1``, and row ``t``. The host need not wait for it."""
        places: dict[str, Tensor] = {}
        for columns, to in ((self._slab.next, t), (self._slab.outcome, t - 1)):
            if to >= 0:
                places |= {name: _bytes(column[to, rows.agents]) for name, column in columns.items()}
        begin = {name: rows[name].ctypes.data - self._memory.ctypes.data for name in places}
        low, high = min(begin.values()), max(begin[name] + len(place) for name, place in places.items())
        sent = torch.from_numpy(self._memory[low:high])
        if self._received is None:
            self._received = torch.empty(len(sent), dtype=torch.uint8, device=self._slab.device)
        self._received.copy_(sent, non_blocking=True)
        copy_all([(self._received[begin[name] - low :][: len(place)], place) for name, place in places.items()])


def _bytes(rows: Tensor) -> Tensor:
    """Return the bytes of rows that lie in one piece, as a view."""
    return rows.view(torch.uint8).view(-1)


class Pinned:
    """Memory that the GPU may copy from and to while the host goes on; let go with the object."""

    def __init__(self, memory: np.ndarray) -> None:
        self.address = memory.ctypes.data
        runtime: Any = torch.cuda.cudart()
        self.worked = int(runtime.cudaHostRegister(self.address, memory.nbytes, 0)) == 0
        """True if it was pinned; if not, copies wait for each other, which is slower but right"""

    def __del__(self) -> None:
        if self.worked:
            runtime: Any = torch.cuda.cudart()
            runtime.cudaHostUnregister(self.address)
