"""On-policy rollouts of environments on the CPU by a policy on a GPU: environments step while the GPU chooses for others.

In: a ``VecEnv`` of one or more batches and, at each call, ``act``. Out: a ``Batch`` in the slabs of ``rollout/device.py``, on the GPU.
Rows cross once, in one copy (``rollout/transfer.py``) straight from the memory that the environments write, which is pinned for that;
actions come back the same way. What one batch needs at one time (copy rows, choose, keep, copy actions) is recorded as a CUDA graph,
so that it costs the host one launch.

Where all batches share their threads, half of them step while the GPU works on the others; where each has workers of its own, a
batch steps as soon as its actions are there (``VecEnv.stepping_at_once``). Every batch has a stream, random numbers and memory for its
graphs of its own (``Lane``), so that the work of two of them may overlap. What comes of a batch depends on that batch alone, so that
results do not depend on timing.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from fugu.cuda.graph import Recorded
from fugu.cuda.half import weights_stay
from fugu.emulation.env import Rows
from fugu.rollout.batch import Batch
from fugu.rollout.device import Columns, Slab
from fugu.rollout.onpolicy import Actor, Clock, Saved, Stopped
from fugu.rollout.transfer import Pinned, Transfer
from fugu.spaces.views import TORCH_DTYPES
from fugu.vector.seeds import env_seeds
from fugu.vector.vecenv import VecEnv


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
        clock: Clock | None = None,
    ) -> None:
        self.vec, self.horizon, self.device = vec, horizon, device
        self._clock = clock or (lambda _: nullcontext())
        choices = vec.num_choices if vec.masks_actions else 0
        self.slab = Slab.zeros(vec.obs_layout, vec.num_agents, choices, horizon, device, columns, len(vec.spec.costs))
        self.slab.team = vec.spec.num_agents > 1
        layout = vec.action_layout
        self._pinned = Pinned(vec.memory) if device.type == "cuda" else None
        """kept so that the memory stays pinned"""
        shape = (vec.num_agents, *layout.row_shape)
        self._actions = torch.zeros(shape, dtype=TORCH_DTYPES[layout.dtype_name], pin_memory=device.type == "cuda")
        self._state = torch.zeros((vec.num_agents, state_size), device=device) if state_size else None
        self._first_state = torch.zeros((vec.num_agents, state_size), device=device) if state_size else None
        self._lanes = {group.start: Lane(device, Transfer(vec.memory, self.slab)) for group in vec.groups}
        """by first agent"""
        self._seed(vec.config.seed)
        self._act: Actor | None = None
        self._said = False

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
        with self._side_by_side():
            self._collect(stop)
        self._say_why()
        return self.slab.batch(self._first_state)

    @contextmanager
    def _side_by_side(self) -> Iterator[None]:
        """Inside, lanes go on from what the current stream has been given so far; outside it from what lanes have."""
        current = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        for lane in self._lanes.values():
            if current is not None:
                lane.stream.wait_stream(current)
        try:
            yield
        finally:
            for lane in self._lanes.values():
                if current is not None:
                    current.wait_stream(lane.stream)

    def _collect(self, stop: Callable[[], bool]) -> None:
        time = {group.start: 0 for group in self.vec.groups}
        waiting: deque[slice] = deque()  # for their actions, oldest first; all of them parked
        for _ in self.vec.groups:
            rows = self.vec.unpark()
            assert rows is not None
            self._launch(rows, 0)
            waiting.append(rows.agents)
            self.vec.park()
        stepping = 0
        while waiting or stepping:
            stepping += self._send(waiting, self.vec.stepping_at_once - stepping, wait=True)
            with self._clock("env"):
                rows = self.vec.recv()
                self.vec.park()
            stepping -= 1
            # cores that have nothing to do come first: launching takes the host a while
            stepping += self._send(waiting, self.vec.stepping_at_once - stepping, wait=False)
            t = time[rows.agents.start] = time[rows.agents.start] + 1
            self._launch(rows, t)
            if t < self.horizon:
                waiting.append(rows.agents)
            if stop():
                raise Stopped

    def _send(self, waiting: deque[slice], count: int, *, wait: bool) -> int:
        """Set up to ``count`` batches going whose actions are there, in their order, or wait for these; how many it were."""
        sent = 0
        while waiting and sent < count and (wait or self._lanes[waiting[0].start].done):
            group = waiting.popleft()
            with self._clock("inference"):
                self._lanes[group.start].wait()
            with self._clock("env"):
                self.vec.unpark(group)
                self.vec.send(self._actions[group].numpy())
            sent += 1
        return sent

    def _launch(self, rows: Rows, t: int) -> None:
        """Set the GPU to work on these rows."""
        lane = self._lanes[rows.agents.start]
        with self._clock("copy"), lane.current():
            lane.work(lambda: self._choose(rows, t), (t, rows.obs.ctypes.data))
            lane.mark()

    def _choose(self, rows: Rows, t: int) -> None:
        assert self._act is not None
        slab, group, lane = self.slab, rows.agents, self._lanes[rows.agents.start]
        if t > 0:  # row 0 is there since the batch before
            lane.take(rows, t)
        state = None if self._state is None else self._state[group]
        mask = None if slab.action_mask is None else slab.action_mask[t, group]
        into = {name: column[group] for name, column in slab.into(t).items()}
        with (
            weights_stay()
        ):  # of its own: what is rounded in one graph must not be read by another, which may be replayed alone
            done = self._act(slab.obs[t, group], state, slab.first[t, group], mask, into=into, generator=lane.generator)
        for name, column in done.columns.items():
            into[name].copy_(column)
        if t == self.horizon:  # the action is not taken: the next policy chooses its own
            return
        if state is not None and done.state is not None:
            state.copy_(done.state)
        self._actions[group].copy_(done.env_action, non_blocking=True)

    def _say_why(self) -> None:
        why = next((why for lane in self._lanes.values() if (why := lane.failure)), None)
        if why is not None and not self._said:
            self._said = True
            warnings.warn(
                f"choosing actions could not be recorded as a CUDA graph and runs step by step, which is slower: {why}",
                RuntimeWarning,
                stacklevel=3,
            )

    # --- starting and restarting ---

    def restart(self, seed: int) -> None:
        """Start all environments anew."""
        self._settle()
        self._seed(seed)
        self.vec.async_reset(seed)
        for _ in self.vec.groups:
            self._take_last(self.vec.recv())
        self._settle()
        self.vec.drain_log()
        if self._state is not None:
            self._state.zero_()

    def snapshot(self) -> dict[str, Tensor]:
        saved = super().snapshot()
        if saved:  # else the environments start anew, and the random numbers with them
            saved["generators"] = torch.stack([lane.generator.get_state() for lane in self._lanes.values()])
        return saved

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self._settle()
        super().restore(saved)
        states = saved.get("generators", ())
        if len(states) == len(self._lanes):  # else they go on as they are: it was made in other batches
            for lane, state in zip(self._lanes.values(), states, strict=True):
                lane.generator.set_state(state.clone())
        for _ in self.vec.groups:
            rows = self.vec.unpark()
            assert rows is not None
            self._take_last(rows)
        self._settle()

    def _take_last(self, rows: Rows) -> None:
        """To where the next batch begins from."""
        self._lanes[rows.agents.start].take(rows, self.horizon)
        self.vec.park()

    def _seed(self, seed: int) -> None:
        for lane, own in zip(self._lanes.values(), env_seeds(seed, len(self._lanes)).tolist(), strict=True):
            lane.generator.manual_seed(own)

    def _settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Lane:
    """What one batch has of its own on the device, so that its work runs beside that of others: a stream, random numbers, and
    memory of graphs, which two that run at the same time must not share."""

    def __init__(self, device: torch.device, take: Transfer) -> None:
        self.device, self.take = device, take
        on_gpu = device.type == "cuda"
        self.stream: Any = torch.cuda.Stream(device) if on_gpu else None
        self.generator = torch.Generator(device)
        self._pool = torch.cuda.graph_pool_handle() if on_gpu else None
        self._done: Any = torch.cuda.Event() if on_gpu else None
        self._recorded: dict[tuple[int, int], Recorded] = {}

    def work(self, function: Callable[[], None], key: tuple[int, int]) -> None:
        """Do what ``function`` does; by a graph from the second time on. ``key``: time, and where the rows lie."""
        if key not in self._recorded:
            self._recorded[key] = Recorded(function, self.device, [self.generator], self._pool)
        self._recorded[key]()

    def current(self) -> AbstractContextManager[Any]:
        """Inside, torch works on this lane's stream."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def mark(self) -> None:
        """Remember what the lane has been given so far, for ``wait``."""
        if self._done is not None:
            self._done.record(self.stream)

    @property
    def done(self) -> bool:
        """Whether that is done."""
        return self._done is None or self._done.query()

    def wait(self) -> None:
        """Let the host wait until that is done."""
        if self._done is not None:
            self._done.synchronize()

    @property
    def failure(self) -> str | None:
        """Why something could not be recorded."""
        return next((work.failure for work in self._recorded.values() if work.failure), None)
