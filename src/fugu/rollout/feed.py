"""On-policy rollouts of environments on the CPU by a policy on a GPU: environments step while the GPU chooses for others.

In: a ``VecEnv`` of one or more batches and, at each call, ``act``. Out: a ``Batch`` in the slabs of ``rollout/device.py``, on the GPU.
Rows cross once, straight from the memory that the environments write, which is pinned for that; actions come back the same way. What
one batch needs at one time (copy rows, choose, keep, copy actions) is recorded as a CUDA graph, so that it costs the host one launch.

Half of the batches step at a time while the GPU works on the others; the order is fixed, so that results do not depend on timing.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fugu.cuda.graph import Recorded
from fugu.cuda.half import weights_stay
from fugu.emulation.env import Rows
from fugu.rollout.batch import Batch
from fugu.rollout.device import Columns, Slab
from fugu.rollout.onpolicy import Actor, Clock, Saved, Stopped
from fugu.spaces.views import TORCH_DTYPES
from fugu.vector.vecenv import VecEnv

NEXT = ("obs", "first", "mask", "action_mask")
"""columns of the row that waits for an action"""
OUTCOME = ("reward", "terminated", "truncated", "cost")
"""columns that the action before it produced"""


class Feed(Saved):
    static, unattended = True, False

    def __init__(
        self,
        vec: VecEnv,
        horizon: int,
        columns: Columns,
        *,
        state_size: int = 0,
        device: torch.device,
        generators: Sequence[torch.Generator] = (),
        clock: Clock | None = None,
    ) -> None:
        self.vec, self.horizon, self.device = vec, horizon, device
        self._clock = clock or (lambda _: nullcontext())
        self._generators = generators
        choices = vec.num_choices if vec.masks_actions else 0
        self.slab = Slab.zeros(vec.obs_layout, vec.num_agents, choices, horizon, device, columns, len(vec.spec.costs))
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        layout = vec.action_layout
        self._pinned = Pinned(vec.memory) if device.type == "cuda" else None
        """kept so that the memory stays pinned"""
        shape = (vec.num_agents, *layout.row_shape)
        self._actions = torch.zeros(shape, dtype=TORCH_DTYPES[layout.dtype_name], pin_memory=device.type == "cuda")
        self._state = torch.zeros((vec.num_agents, state_size), device=device) if state_size else None
        self._first_state = torch.zeros((vec.num_agents, state_size), device=device) if state_size else None
        self._work: dict[tuple[int, int, int], Recorded] = {}
        """by first agent, time and where the rows lie"""
        self._act: Actor | None = None
        self._said = False
        self._ahead = max(1, len(vec.groups) // 2)
        """batches that step at a time"""

    @property
    def segments(self) -> int:
        return self.vec.num_agents

    # --- a batch ---

    def next(self, act: Actor, stop: Callable[[], bool] = bool) -> Batch:
        """Let all agents act ``horizon`` times. ``stop`` is asked after every step; True raises ``Stopped``."""
        self._act = act
        self.slab.start_over()
        if self._state is not None and self._first_state is not None:
            self._first_state.copy_(self._state)
        time = {group.start: 0 for group in self.vec.groups}
        waiting: deque[tuple[slice, Any]] = deque()  # for their actions, oldest first; all of them parked
        for _ in self.vec.groups:
            rows = self.vec.unpark()
            assert rows is not None
            waiting.append((rows.agents, self._launch(rows, 0)))
            self.vec.park()
        stepping = 0
        while waiting or stepping:
            while waiting and stepping < self._ahead:
                group, done = waiting.popleft()
                with self._clock("inference"):
                    if done is not None:
                        done.synchronize()
                with self._clock("env"):
                    self.vec.unpark()
                    self.vec.send(self._actions[group].numpy())
                stepping += 1
            with self._clock("env"):
                rows = self.vec.recv()
            stepping -= 1
            t = time[rows.agents.start] = time[rows.agents.start] + 1
            done = self._launch(rows, t)
            self.vec.park()
            if t < self.horizon:
                waiting.append((rows.agents, done))
            if stop():
                raise Stopped
        self._say_why()
        return self.slab.batch(self._first_state)

    def _say_why(self) -> None:
        why = next((work.failure for work in self._work.values() if work.failure), None)
        if why is not None and not self._said:
            self._said = True
            warnings.warn(
                f"choosing actions could not be recorded as a CUDA graph and runs step by step, which is slower: {why}",
                RuntimeWarning,
                stacklevel=3,
            )

    def _launch(self, rows: Rows, t: int) -> Any:
        """Set the GPU to work on these rows; the event after which their actions can be read."""
        key = (rows.agents.start, t, rows.obs.ctypes.data)
        if key not in self._work:
            self._work[key] = Recorded(lambda: self._choose(rows, t), self.device, self._generators, self._pool)
        with self._clock("copy"):
            self._work[key]()
            if self.device.type != "cuda":
                return None
            event = torch.cuda.Event()
            event.record()
            return event

    def _choose(self, rows: Rows, t: int) -> None:
        assert self._act is not None
        slab, group = self.slab, rows.agents
        if t > 0:  # row 0 is there since the batch before
            self._take(rows, t)
        state = None if self._state is None else self._state[group]
        mask = None if slab.action_mask is None else slab.action_mask[t, group]
        into = {name: column[group] for name, column in slab.into(t).items()}
        with (
            weights_stay()
        ):  # of its own: what is rounded in one graph must not be read by another, which may be replayed alone
            done = self._act(slab.obs[t, group], state, slab.first[t, group], mask, into=into)
        for name, column in done.columns.items():
            into[name].copy_(column)
        if t == self.horizon:  # the action is not taken: the next policy chooses its own
            return
        if state is not None and done.state is not None:
            state.copy_(done.state)
        self._actions[group].copy_(done.env_action, non_blocking=True)

    def _take(self, rows: Rows, t: int) -> None:
        """Copy what the environments wrote: the outcome of row ``t - 1``, and row ``t``."""
        group = rows.agents
        for name, to in [(name, t) for name in NEXT] + [(name, t - 1) for name in OUTCOME]:
            column = getattr(self.slab, name)
            if column is not None and to >= 0:
                column[to, group].copy_(_tensor(getattr(rows, name)), non_blocking=True)

    # --- starting and restarting ---

    def restart(self, seed: int) -> None:
        """Start all environments anew."""
        self.vec.async_reset(seed)
        for _ in self.vec.groups:
            self._take(self.vec.recv(), self.horizon)
            self.vec.park()
        self._settle()
        self.vec.drain_log()
        if self._state is not None:
            self._state.zero_()

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        super().restore(saved)
        for _ in self.vec.groups:
            rows = self.vec.unpark()
            assert rows is not None
            self._take(rows, self.horizon)
            self.vec.park()
        self._settle()

    def _settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Pinned:
    """Memory ``(address, bytes)`` that the GPU may copy from and to while the host goes on; let go with the object."""

    def __init__(self, memory: tuple[int, int]) -> None:
        self.address = memory[0]
        runtime: Any = torch.cuda.cudart()
        self.worked = int(runtime.cudaHostRegister(*memory, 0)) == 0
        """else copies wait for each other, which is slower but right"""

    def __del__(self) -> None:
        if self.worked:
            runtime: Any = torch.cuda.cudart()
            runtime.cudaHostUnregister(self.address)


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array)
