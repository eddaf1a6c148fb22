"""On-policy rollouts: every agent acts ``horizon`` times (``passes`` times over) and the batch is handed on.

In: a vector env and, at each call, an actor. Out: a batch of ``passes * num_agents`` segments over memory that is allocated
once, valid until the next call; segment s belongs to agent ``s % num_agents``.

Batches of the vector env arrive in any order; each fills its own rows, and one that has filled them is parked until all have. So
all actions of a batch come from one policy, whatever the order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext

import torch
from torch import Tensor

from fugu.emulation.env import Rows
from fugu.rollout.acting import Actor, Forms, zeros
from fugu.rollout.batch import Batch, Segments, seen_of
from fugu.rollout.columns import BOOTSTRAPS, PER_SEGMENT
from fugu.rollout.lost import Lost
from fugu.rollout.source import Clock, Experience, Source, Stopped
from fugu.rollout.vec_state import restore_vec, snapshot_vec
from fugu.vector.vecenv import VecEnv


class OnPolicy(Source):
    vec: VecEnv

    def __init__(
        self,
        vec: VecEnv,
        horizon: int,
        *,
        passes: int = 1,
        carry: Forms | None = None,
        device: torch.device | str = "cpu",
        clock: Clock | None = None,
    ) -> None:
        """``carry``: what the policy takes along from row to row."""
        self.vec = vec
        self.horizon, self.passes = horizon, passes
        self.segments = vec.num_agents * passes
        self.device = torch.device(device)
        self._clock = clock or nullcontext
        self._memory = Segments(vec, self.segments, horizon, self.device)
        self._lost = Lost.noted_in(vec)
        self._acts_after = torch.zeros(self.segments, dtype=torch.bool) if vec.spec.num_agents > 1 else None
        """mask of the row after the last, which matters if agents may wait for each other"""
        self._carry = zeros(carry or {}, vec.num_agents, self.device)
        self._first_carry = zeros(carry or {}, self.segments, self.device)
        """carry before the first row of each segment"""
        self._once = PER_SEGMENT | self._carry.keys()
        self._time = {group.start: 0 for group in vec.groups}
        """first agent of a group -> rows it has filled, counted over all passes"""

    # --- a batch ---

    def next(self, actor: Actor, stop: Callable[[], bool] = bool) -> Experience:
        """Let all agents act ``passes * horizon`` times. ``stop`` is asked after every step; True raises ``Stopped``."""
        for group in self._time:
            self._time[group] = 0
        parked = open_groups = len(self._time)
        todo = self.passes * self.horizon
        self._memory.begin()
        while open_groups:
            with self._clock("env"):
                rows = None
                if parked:
                    parked -= 1
                    rows = self.vec.unpark()
                if rows is None:
                    rows = self.vec.recv()
            group = rows.agents
            if self._time[group.start]:
                with self._clock("copy"):
                    place = self._where(group, self._time[group.start] - 1)
                    self._memory.keep_outcome(rows, *place)
                    if self._lost is not None:
                        self._lost.note(rows, *place)
            if self._time[group.start] == todo:
                self.vec.park()
                self._look_after(rows, actor)
                open_groups -= 1
                continue
            self._act(rows, actor)
            if stop():
                raise Stopped
        return self._experience(actor.version)

    def _experience(self, version: int) -> Experience:
        columns = {**self._memory.columns(), **self._first_carry}
        if self._acts_after is not None:
            columns["acts_after"] = self._acts_after
        mask, log = columns["mask"], self.vec.drain_log()
        ended = columns["terminated"] | columns["truncated"]
        acted, ended = (column.any(1).view(self.passes, -1).any(0) for column in (mask, ended))
        found = Experience(Batch(columns, self._once), int(mask.sum()), version, lambda: log, acted, ended)
        return found if self._lost is None else self._lost.marked(found)

    def _act(self, rows: Rows, actor: Actor) -> None:
        group, time = rows.agents, self._time[rows.agents.start]
        segments, t = self._where(group, time)
        carry = {name: column[group] for name, column in self._carry.items()}
        if t == 0:
            for name, column in carry.items():
                self._first_carry[name][segments] = column
        seen = seen_of(rows, carry or None, self.device)
        with self._clock("inference"):
            done = actor.act(seen)
        with self._clock("env"):
            self.vec.send(done.env_action.cpu().numpy())
        with self._clock("copy"):
            self._memory.keep_next(rows, segments, t, masked=seen.action_mask is not None)
            self._memory.keep_acted(done.columns, segments, t)
            for name, column in carry.items():
                column.copy_(done.carry[name])  # type: ignore[index]
            if t == 0 and time:
                self._keep_after(rows, time - 1, done.columns)
        self._time[group.start] = time + 1

    def _look_after(self, rows: Rows, actor: Actor) -> None:
        """Ask for the values of the rows after the batch. The action is not taken: the next policy chooses its own."""
        if not self._memory.acted.keys() & BOOTSTRAPS.keys():
            return
        with self._clock("inference"):
            carry = {name: column[rows.agents] for name, column in self._carry.items()}
            said = actor.act(seen_of(rows, carry or None, self.device)).columns
            self._keep_after(rows, self.passes * self.horizon - 1, said)

    def _keep_after(self, rows: Rows, time: int, said: Mapping[str, Tensor]) -> None:
        """Keep ``rows``, and the policy's outputs ``said`` on them, as those after the row at ``time``."""
        segments = self._where(rows.agents, time)[0]
        if self._acts_after is not None:
            self._acts_after.numpy()[segments] = rows.mask
        self._memory.keep_after(said, segments)

    def _where(self, group: slice, time: int) -> tuple[slice, int]:
        """Return the segments of a group, and the row in them, after ``time`` rows of the batch."""
        passed, t = divmod(time, self.horizon)
        base = passed * self.vec.num_agents
        return slice(base + group.start, base + group.stop), t

    # --- starting and restarting ---

    def restart(self, seed: int) -> None:
        self.vec.async_reset(seed)
        for _ in self._time:
            self.vec.recv()
            self.vec.park()
        self.vec.drain_log()
        for column in self._carry.values():
            column.zero_()

    @property
    def can_snapshot(self) -> bool:
        return self.vec.can_snapshot

    def snapshot(self) -> dict[str, Tensor]:
        return snapshot_vec(self.vec, self._carry)

    def fits(self, saved: Mapping[str, Tensor]) -> bool:
        return "obs" in saved

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        restore_vec(self.vec, self._carry, saved)
