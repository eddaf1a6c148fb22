"""On-policy rollouts: every agent acts ``horizon`` times (``passes`` times over) and the batch is handed on.

In: a vector env and, at each call, ``act``. Out: a ``Batch`` of ``passes * num_agents`` segments over memory that is allocated
once, valid until the next call; segment s belongs to agent ``s % num_agents``.

Batches of the vector env arrive in any order; each fills its own rows, and one that has filled them is parked until all have. So
all actions of a batch come from one policy, whatever the order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fugu.emulation.env import Rows
from fugu.rollout.batch import BOOTSTRAPS, Batch
from fugu.spaces.views import TORCH_DTYPES
from fugu.vector.vecenv import EpisodeLog, VecEnv


@dataclass(slots=True)
class Act:
    """What a policy did on some rows."""

    env_action: Tensor
    """[rows, *row_shape] what the environment gets, where the policy is"""
    state: Tensor | None
    """[rows, state_size] of the recurrent core, after these rows"""
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    """what is stored beside the rows: ``action``, and whatever the algorithm wants to see again (logprob, value, ...)"""


class Actor(Protocol):
    def __call__(
        self,
        obs: Tensor,
        state: Tensor | None,
        first: Tensor,
        action_mask: Tensor | None,
        *,
        greedy: bool = False,
        into: Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> Act:
        """With ``into``, where columns are to be kept, it may write them there itself and leave them out of what it returns. With
        ``generator`` all that is random comes from there, and not from a generator of its own."""
        ...


FLAGS = ("terminated", "truncated", "first", "mask")


class Stopped(KeyboardInterrupt):
    """The rollout was asked to stop before it was complete. Not an ``Exception``, so that no environment swallows it."""


Clock = Callable[[str], AbstractContextManager[None]]


class Saved:
    """Snapshots of a source whose environments are a ``VecEnv``: their states, the rows that wait for actions, and what the policy
    remembers."""

    vec: VecEnv
    _state: Tensor | None

    def drain_log(self) -> EpisodeLog:
        return self.vec.drain_log()

    @property
    def can_snapshot(self) -> bool:
        return self.vec.can_snapshot

    def snapshot(self) -> dict[str, Tensor]:
        """What a checkpoint needs to go on between two batches exactly here; empty if the environments cannot be saved."""
        if not self.can_snapshot:
            return {}
        saved = {name: torch.from_numpy(array) for name, array in self.vec.snapshot().items()}
        if self._state is not None:
            saved["recurrent"] = self._state.cpu().clone()
        return saved

    def took(self, saved: Mapping[str, Tensor]) -> bool:
        """Whether a source of this kind made the snapshot, and not one with its environments elsewhere."""
        return "obs" in saved

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self.vec.restore({name: tensor.numpy() for name, tensor in saved.items() if name not in ("recurrent", "generators")})
        if self._state is not None:
            self._state.copy_(saved["recurrent"])


class OnPolicy(Saved):
    static = unattended = False

    def __init__(
        self,
        vec: VecEnv,
        horizon: int,
        *,
        passes: int = 1,
        state_size: int = 0,
        device: torch.device | str = "cpu",
        clock: Clock | None = None,
    ) -> None:
        self.vec = vec
        self.horizon, self.passes = horizon, passes
        self.device = torch.device(device)
        self._clock = clock or (lambda _: nullcontext())
        agents, segments = vec.num_agents, vec.num_agents * passes
        layout = vec.obs_layout
        pin = self.device.type == "cuda"  # so that copies to the card need not wait
        self._written: dict[str, Tensor] = {
            "obs": torch.zeros((segments, horizon, *layout.row_shape), dtype=TORCH_DTYPES[layout.dtype_name], pin_memory=pin),
            "reward": torch.zeros((segments, horizon), pin_memory=pin),
            **{name: torch.zeros((segments, horizon), dtype=torch.bool, pin_memory=pin) for name in FLAGS},
        }
        if vec.spec.costs:
            self._written["cost"] = torch.zeros((segments, horizon, len(vec.spec.costs)), pin_memory=pin)
        """columns the environments fill, on the CPU"""
        self._arrays = {name: column.numpy() for name, column in self._written.items()}
        self._action_mask: Tensor | None = None
        """[segments, horizon, choices]; made when an environment first forbids something"""
        self._forbidden = False
        """whether one has in this batch"""
        self._acted: dict[str, Tensor] = {}
        """columns the policy fills, where the learner is; made when the first act shows what they are"""
        self._bootstraps: dict[str, Tensor] = {"bootstrap": torch.zeros(segments, device=self.device)}
        """what the policy says of the row after the last one, by column"""
        self._acts_after = torch.zeros(segments, dtype=torch.bool) if vec.spec.num_agents > 1 else None
        """mask of that row, which is of interest where agents may wait for each other"""
        self._state = torch.zeros((agents, state_size), device=self.device) if state_size else None
        self._first_state = torch.zeros((segments, state_size), device=self.device) if state_size else None
        self._time = {group.start: 0 for group in vec.groups}
        """first agent of a group -> rows it has filled, counted over all passes"""

    @property
    def segments(self) -> int:
        return self.vec.num_agents * self.passes

    # --- a batch ---

    def next(self, act: Actor, stop: Callable[[], bool] = bool) -> Batch:
        """Let all agents act ``passes * horizon`` times. ``stop`` is asked after every step; True raises ``Stopped``."""
        for group in self._time:
            self._time[group] = 0
        parked = len(self._time)
        todo = self.passes * self.horizon
        open_groups = parked
        self._forbidden = False
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
                self._write_outcome(rows, self._time[group.start] - 1)
            if self._time[group.start] == todo:
                self.vec.park()
                self._write_bootstrap(rows, act)
                open_groups -= 1
                continue
            self._act(rows, act)
            if stop():
                raise Stopped
        columns = {**self._written, **self._acted, **self._bootstraps}
        if self._forbidden and self._action_mask is not None:
            columns["action_mask"] = self._action_mask
        if self._first_state is not None:
            columns["state"] = self._first_state
        if self._acts_after is not None:
            columns["acts_after"] = self._acts_after
        return Batch(columns)

    def _act(self, rows: Rows, act: Actor) -> None:
        group, time = rows.agents, self._time[rows.agents.start]
        segments, t = self._where(group, time)
        state = None
        if self._state is not None:
            state = self._state[group]
            if t == 0:
                self._first_state[segments] = state  # type: ignore[index]
        obs, first, action_mask = self._inputs(rows)
        with self._clock("inference"):
            done = act(obs, state, first, action_mask)
        with self._clock("env"):
            self.vec.send(done.env_action.cpu().numpy())
        with self._clock("copy"):
            arrays = self._arrays
            arrays["obs"][segments, t] = rows.obs
            arrays["first"][segments, t] = rows.first
            arrays["mask"][segments, t] = rows.mask
            if action_mask is not None and self._action_mask is None:
                shape = (len(arrays["reward"]), self.horizon, self.vec.num_choices)
                self._action_mask = torch.ones(shape, dtype=torch.bool, pin_memory=self.device.type == "cuda")
            if self._action_mask is not None:
                self._action_mask.numpy()[segments, t] = rows.action_mask
                self._forbidden |= action_mask is not None
            if self._state is not None and done.state is not None:
                self._state[group] = done.state
            for name, column in done.columns.items():
                self._column(name, column)[segments, t] = column
            if t == 0 and time:  # the row after the last one of the pass before
                self._keep_after(rows, time - 1, done.columns)
        self._time[group.start] = time + 1

    def _write_outcome(self, rows: Rows, time: int) -> None:
        segments, t = self._where(rows.agents, time)
        with self._clock("copy"):
            self._arrays["reward"][segments, t] = rows.reward
            self._arrays["terminated"][segments, t] = rows.terminated
            self._arrays["truncated"][segments, t] = rows.truncated
            if rows.cost is not None:
                self._arrays["cost"][segments, t] = rows.cost

    def _write_bootstrap(self, rows: Rows, act: Actor) -> None:
        """The values of what comes after the batch. The action is not taken: the next policy chooses its own."""
        if not self._acted.keys() & BOOTSTRAPS.keys():
            return
        with self._clock("inference"):
            state = None if self._state is None else self._state[rows.agents]
            obs, first, action_mask = self._inputs(rows)
            self._keep_after(rows, self.passes * self.horizon - 1, act(obs, state, first, action_mask).columns)

    def _keep_after(self, rows: Rows, time: int, said: Mapping[str, Tensor]) -> None:
        """``rows``, and what is ``said`` of them, come after the one at ``time``."""
        segments = self._where(rows.agents, time)[0]
        if self._acts_after is not None:
            self._acts_after.numpy()[segments] = rows.mask
        for name, column in BOOTSTRAPS.items():
            if name not in said:
                continue
            if column not in self._bootstraps:
                shape = (self.vec.num_agents * self.passes, *said[name].shape[1:])
                self._bootstraps[column] = torch.zeros(shape, device=self.device)
            self._bootstraps[column][segments] = said[name]

    def _inputs(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor | None]:
        """Observation, first, and the action mask if it forbids anything, as tensors where the policy is."""
        mask = None
        if rows.action_mask is not None and not rows.action_mask.all():
            mask = torch.from_numpy(rows.action_mask)
        obs, first = torch.from_numpy(rows.obs), torch.from_numpy(rows.first)
        if self.device.type == "cpu":
            return obs, first, mask
        return obs.to(self.device), first.to(self.device), None if mask is None else mask.to(self.device)

    def _where(self, group: slice, time: int) -> tuple[slice, int]:
        """The segments of a group, and the row in them, after ``time`` rows of the batch."""
        passed, t = divmod(time, self.horizon)
        base = passed * self.vec.num_agents
        return slice(base + group.start, base + group.stop), t

    def _column(self, name: str, like: Tensor) -> Tensor:
        if name not in self._acted:
            shape = (self.vec.num_agents * self.passes, self.horizon, *like.shape[1:])
            self._acted[name] = torch.zeros(shape, dtype=like.dtype, device=self.device)
        return self._acted[name]

    # --- starting and restarting ---

    def restart(self, seed: int) -> None:
        """Start all environments anew."""
        self.vec.async_reset(seed)
        for _ in self._time:
            self.vec.recv()
            self.vec.park()
        self.vec.drain_log()
        if self._state is not None:
            self._state.zero_()
