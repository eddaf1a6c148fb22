"""On-policy rollouts of environments on the CPU by a policy on a GPU: environments step while the GPU chooses for others.

In: a ``VecEnv`` of one or more batches and, at each call, an actor. Out: a ``Batch`` in the slabs of ``rollout/device.py``, on the GPU.
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

from fugu.emulation.env import Rows
from fugu.gpu.graph import Recorded
from fugu.ops.half import weights_stay
from fugu.rollout.acting import Actor, Forms, zeros
from fugu.rollout.device import Slab
from fugu.rollout.lost import Lost
from fugu.rollout.source import Clock, Experience, Source, Stopped
from fugu.rollout.transfer import Pinned, Transfer
from fugu.rollout.vec_state import restore_vec, snapshot_vec
from fugu.spaces.views import TORCH_DTYPES
from fugu.vector.seeds import env_seeds
from fugu.vector.vecenv import VecEnv


class Feed(Source):
    static = True
    vec: VecEnv

    def __init__(
        self,
        vec: VecEnv,
        horizon: int,
        columns: Forms,
        *,
        carry: Forms | None = None,
        device: torch.device,
        clock: Clock | None = None,
    ) -> None:
        """``columns``: what the policy keeps of a row. ``carry``: what it takes along from row to row."""
        self.vec, self.horizon, self.device = vec, horizon, device
        self.segments = vec.num_agents
        self._clock = clock or nullcontext
        self.slab = Slab(vec, horizon, device, columns, choices=vec.num_choices if vec.masks_actions else 0)
        layout = vec.action_layout
        self._pinned = Pinned(vec.memory) if device.type == "cuda" else None
        """kept so that the memory stays pinned"""
        shape = (vec.num_agents, *layout.row_shape)
        self._actions = torch.zeros(shape, dtype=TORCH_DTYPES[layout.dtype_name], pin_memory=device.type == "cuda")
        self._carry = zeros(carry or {}, vec.num_agents, device)
        self._first_carry = zeros(carry or {}, vec.num_agents, device)
        self._lanes = {group.start: Lane(device, Transfer(vec.memory, self.slab)) for group in vec.groups}
        """lanes by first agent"""
        self._seed(vec.config.seed)
        self._actor: Actor | None = None
        self._said = False
        self._lost = Lost.noted_in(vec, static=True)

    # --- a batch ---

    def next(self, actor: Actor, stop: Callable[[], bool] = bool) -> Experience:
        """Let all agents act ``horizon`` times. ``stop`` is asked after every step; True raises ``Stopped``."""
        self._actor = actor
        self.slab.start_over()
        for name, column in self._carry.items():
            self._first_carry[name].copy_(column)
        with self._side_by_side():
            self._collect(stop)
        self._say_why()
        log = self.vec.drain_log()
        found = self.slab.experience(self._first_carry, actor.version, lambda: log)
        return found if self._lost is None else self._lost.marked(found)

    @contextmanager
    def _side_by_side(self) -> Iterator[None]:
        """Order the streams: inside, lanes start after the current stream's work so far; outside, it goes on after theirs."""
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
            if self._lost is not None:
                self._lost.note(rows, rows.agents, t - 1)
            if t < self.horizon:
                waiting.append(rows.agents)
            if stop():
                raise Stopped

    def _send(self, waiting: deque[slice], count: int, *, wait: bool) -> int:
        """Send up to ``count`` batches whose actions are ready, oldest first (block if ``wait``). Returns the number sent."""
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
        assert self._actor is not None
        slab, group, lane = self.slab, rows.agents, self._lanes[rows.agents.start]
        if t > 0:  # row 0 is there since the batch before
            lane.take(rows, t)
        carry = {name: column[group] for name, column in self._carry.items()}
        into = {name: column[group] for name, column in slab.into(t).items()}
        seen = slab.seen(t, group, carry=carry or None, into=into, generator=lane.generator)
        with (
            weights_stay()
        ):  # of its own: what is rounded in one graph must not be read by another, which may be replayed alone
            done = self._actor.act(seen)
        for name, column in done.columns.items():
            into[name].copy_(column)
        if t == self.horizon:  # the action is not taken: the next policy chooses its own
            return
        for name, column in carry.items():
            column.copy_(done.carry[name])  # type: ignore[index]
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
        self._settle()
        self._seed(seed)
        self.vec.async_reset(seed)
        for _ in self.vec.groups:
            self._take_last(self.vec.recv())
        self._settle()
        self.vec.drain_log()
        for column in self._carry.values():
            column.zero_()

    @property
    def can_snapshot(self) -> bool:
        return self.vec.can_snapshot

    def snapshot(self) -> dict[str, Tensor]:
        saved = snapshot_vec(self.vec, self._carry)
        if saved:  # otherwise the environments start anew, and the random numbers with them
            saved["generators"] = torch.stack([lane.generator.get_state() for lane in self._lanes.values()])
        return saved

    def fits(self, saved: Mapping[str, Tensor]) -> bool:
        return "obs" in saved

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self._settle()
        restore_vec(self.vec, self._carry, saved)
        states = saved.get("generators", ())
        if len(states) == len(self._lanes):  # otherwise they go on as they are: it was made in other batches
            for lane, state in zip(self._lanes.values(), states, strict=True):
                lane.generator.set_state(state.clone())
        for _ in self.vec.groups:
            rows = self.vec.unpark()
            assert rows is not None
            self._take_last(rows)
        self._settle()

    def _take_last(self, rows: Rows) -> None:
        """Copy the last rows to where the next batch begins."""
        self._lanes[rows.agents.start].take(rows, self.horizon)
        self.vec.park()

    def _seed(self, seed: int) -> None:
        for lane, own in zip(self._lanes.values(), env_seeds(seed, len(self._lanes)).tolist(), strict=True):
            lane.generator.manual_seed(own)

    def _settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Lane:
    """The private state of one batch on the device, so that its work runs beside that of others: a stream, random numbers, and
    memory for graphs, which two that run at the same time must not share."""

    def __init__(self, device: torch.device, take: Transfer) -> None:
        self.device, self.take = device, take
        on_gpu = device.type == "cuda"
        self.stream: Any = torch.cuda.Stream(device) if on_gpu else None
        self.generator = torch.Generator(device)
        self._pool = torch.cuda.graph_pool_handle() if on_gpu else None
        self._done: Any = torch.cuda.Event() if on_gpu else None
        self._recorded: dict[tuple[int, int], Recorded] = {}

    def work(self, function: Callable[[], None], key: tuple[int, int]) -> None:
        """Do what ``function`` does; from the second time on by a graph. ``key``: time, and the address of the rows."""
        if key not in self._recorded:
            self._recorded[key] = Recorded(function, self.device, [self.generator], self._pool)
        self._recorded[key]()

    def current(self) -> AbstractContextManager[Any]:
        """Let torch work on this lane's stream inside."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def mark(self) -> None:
        """Mark the work that the lane has been given so far, for ``wait``."""
        if self._done is not None:
            self._done.record(self.stream)

    @property
    def done(self) -> bool:
        """Return whether the marked work is done."""
        return self._done is None or self._done.query()

    def wait(self) -> None:
        """Let the host wait until the marked work is done."""
        if self._done is not None:
            self._done.synchronize()

    @property
    def failure(self) -> str | None:
        """Return why something could not be recorded."""
        return next((work.failure for work in self._recorded.values() if work.failure), None)
