"""On-policy rollouts of environments that live on the policy's device: nothing leaves the device, nothing asks the host.

In: a ``DeviceVec`` and, at each call, an actor. Out: a ``Batch`` of one segment per agent over memory that is allocated once. The
slabs lie time-major, ``[horizon, agents, ...]``, so that a step writes neighbours side by side; the batch shows them as ``[agents,
horizon, ...]``. All addresses stay the same from batch to batch, so that the whole of ``next`` can be captured in a CUDA graph and
replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fugu.emulation.columns import present
from fugu.emulation.saved import check_form, check_obs, check_values
from fugu.rollout.acting import Act, Actor, Carry, Forms, Seen, zeros
from fugu.rollout.batch import Batch
from fugu.rollout.columns import BOOTSTRAPS, PER_SEGMENT, check_free
from fugu.rollout.source import Experience, Source
from fugu.rollout.vec_state import restore_carry, saved_carry
from fugu.spaces.views import TORCH_DTYPES
from fugu.vector.device import DeviceRows, DeviceVec
from fugu.vector.vecenv import EpisodeLog, VecEnv


class Slab:
    """The rows of one horizon. Columns of the row that waits for an action are ``[horizon + 1, agents, ...]``: the last row is the
    one after the horizon. All others are ``[horizon, agents, ...]``, and ``after`` is ``[agents, ...]``."""

    def __init__(
        self, vec: DeviceVec | VecEnv, horizon: int, device: torch.device, acted: Forms, *, choices: int | None = None
    ) -> None:
        """``acted``: columns that a policy keeps of a row. ``choices``: columns of the action mask, if other than those of ``vec``."""
        agents, self.horizon, self.device = vec.num_agents, horizon, device
        choices = vec.num_choices if choices is None else choices
        self.next: dict[str, Tensor] = {}
        self.outcome: dict[str, Tensor] = {}
        check_free(vec.spec, acted)
        for form in present(vec.spec, choices):
            waits = form.when == "next"
            made = torch.zeros((horizon + waits, agents, *form.shape), dtype=TORCH_DTYPES[form.dtype], device=device)
            (self.next if waits else self.outcome)[form.name] = made
        self.acted = {
            name: torch.zeros((horizon, agents, *shape), dtype=dtype, device=device) for name, (shape, dtype) in acted.items()
        }
        """columns that the policy fills"""
        said = {kept: acted[name][0] for name, kept in BOOTSTRAPS.items() if name in acted}
        self.after = {kept: torch.zeros((agents, *shape), device=device) for kept, shape in said.items()}
        """the policy's outputs on the row after the last"""
        # where these numbers lie must not change: what is learned from a batch may be recorded once and replayed
        self._rows = torch.zeros((), dtype=torch.int64, device=device)
        self._acted, self._ended = (torch.zeros(agents, dtype=torch.bool, device=device) for _ in range(2))
        self.team = vec.spec.num_agents > 1
        """True if a world has several agents, which may wait for each other"""

    def __getitem__(self, name: str) -> Tensor:
        """Return a column by name."""
        return next(part[name] for part in (self.next, self.outcome, self.acted, self.after) if name in part)

    def rows(self, t: int) -> DeviceRows:
        """Return the memory that step ``t`` writes to."""
        columns = {name: column[t + 1] for name, column in self.next.items()}
        columns |= {name: column[t] for name, column in self.outcome.items()}
        return DeviceRows.of(columns)

    def start_over(self) -> None:
        """Begin with the row after the last horizon."""
        for column in self.next.values():
            column[0].copy_(column[-1])

    def seen(self, t: int, agents: slice = slice(None), **more: Any) -> Seen:
        """Return row ``t`` as a policy sees it, for some agents."""
        mask = self.next.get("action_mask")
        return Seen(
            self.next["obs"][t, agents],
            self.next["first"][t, agents],
            self.outcome["reward"][
                t - 1, agents
            ],  # of the horizon before, for row 0: it is not overwritten until the last step
            self.next["mask"][t, agents],
            None if mask is None else mask[t, agents],
            training=True,
            **more,
        )

    def into(self, t: int) -> dict[str, Tensor]:
        """Return the memory for the policy's columns at ``t``; after the last row only its values are needed."""
        if t < self.horizon:
            return {name: column[t] for name, column in self.acted.items()}
        scratch = {name: torch.empty_like(column[0]) for name, column in self.acted.items()}
        return {**scratch, **{name: self.after[kept] for name, kept in BOOTSTRAPS.items() if kept in self.after}}

    def experience(self, first_carry: Mapping[str, Tensor], version: int, episodes: Callable[[], EpisodeLog]) -> Experience:
        """Return all of it as experience, in the same memory each time; views."""
        columns = {name: column[:-1] for name, column in self.next.items()} | self.outcome | self.acted
        seen = {name: column.transpose(0, 1) for name, column in columns.items()} | dict(first_carry)
        if self.team:
            seen["acts_after"] = self.next["mask"][-1]
        mask, ended = columns["mask"], columns["terminated"] | columns["truncated"]  # [horizon, agents], in one piece
        self._rows.copy_(mask.sum())
        self._acted.copy_(mask.any(0))
        self._ended.copy_(ended.any(0))
        batch = Batch(seen | self.after, PER_SEGMENT | first_carry.keys())
        return Experience(batch, self._rows, version, episodes, self._acted, self._ended)


Whole = Callable[[Slab], None]
"""function that fills a slab from row 0 on in one go, the policy's columns included"""


class DeviceRollout(Source):
    static = unattended = True
    vec: DeviceVec

    def __init__(
        self, vec: DeviceVec, horizon: int, columns: Forms, *, carry: Forms | None = None, whole: Whole | None = None
    ) -> None:
        """``columns``: what the policy keeps of a row. ``carry``: what it takes along from row to row."""
        self.vec, self.horizon, self.device = vec, horizon, vec.device
        self.segments = vec.num_agents
        self.whole = whole
        self.slab = Slab(vec, horizon, vec.device, columns)
        self._carry = zeros(carry or {}, vec.num_agents, vec.device)
        self._first_carry = zeros(carry or {}, vec.num_agents, vec.device)

    # --- a batch ---

    def next(self, actor: Actor, stop: Callable[[], bool] = bool) -> Experience:
        """Let all agents act ``horizon`` times. ``stop`` is not asked: a horizon on a device takes milliseconds."""
        self.slab.start_over()
        if self.whole is not None:
            self.whole(self.slab)
        else:
            self._step_by_step(actor)
        return self.slab.experience(self._first_carry, actor.version, self.vec.drain_log)

    def _step_by_step(self, actor: Actor) -> None:
        slab, carry = self.slab, dict(self._carry)
        for name, column in carry.items():
            self._first_carry[name].copy_(column)
        for t in range(self.horizon):
            done = self._act(actor, t, carry)
            self.vec.step(done.env_action, slab.rows(t))
            carry = dict(done.carry or {})
        self._act(actor, self.horizon, carry)  # for its value; the action is not taken: the next policy chooses its own
        for name, column in self._carry.items():
            column.copy_(carry[name])

    def _act(self, actor: Actor, t: int, carry: Carry) -> Act:
        into = self.slab.into(t)
        done = actor.act(self.slab.seen(t, carry=carry or None, into=into))
        for name, column in done.columns.items():
            into[name].copy_(column)
        return done

    # --- starting and restarting ---

    def restart(self, seed: int) -> None:
        self.vec.reset(seed, self.slab.rows(self.horizon - 1))
        self.vec.drain_log()
        for column in self._carry.values():
            column.zero_()

    @property
    def can_snapshot(self) -> bool:
        return self.vec.can_snapshot

    def snapshot(self) -> dict[str, Tensor]:
        if not self.can_snapshot:
            return {}
        saved = {f"vec.{name}": tensor for name, tensor in self.vec.snapshot().items()}
        saved.update({f"row.{name}": column[-1].cpu().clone() for name, column in self._last().items()})
        return saved | saved_carry(self._carry)

    def _last(self) -> dict[str, Tensor]:
        """Return the columns whose last row the next batch begins with."""
        return {**self.slab.next, "reward": self.slab.outcome["reward"]}

    def fits(self, saved: Mapping[str, Tensor]) -> bool:
        return "row.obs" in saved

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        last, of = self._last(), f"{self.vec.num_envs} environments of {self.vec.spec.name}"
        rows = {name: saved[f"row.{name}"] for name in last if f"row.{name}" in saved}
        for name, row in rows.items():
            check_form(name, row, last[name][-1], of)
            check_values(name, row.cpu().numpy(), of)
        check_obs(rows["obs"].cpu().numpy(), self.vec.obs_layout, of)
        self.vec.restore({name.removeprefix("vec."): tensor for name, tensor in saved.items() if name.startswith("vec.")})
        for name, row in rows.items():
            last[name][-1].copy_(row)
        restore_carry(self._carry, saved)
