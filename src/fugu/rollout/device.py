"""On-policy rollouts of environments that live where the policy does: nothing leaves the device, nothing asks the host.

In: a ``DeviceVec`` and, at each call, ``act``. Out: a ``Batch`` of one segment per agent over memory that is allocated once. The slabs
lie time-major, ``[horizon, agents, ...]``, so that a step writes neighbours side by side; the batch shows them as ``[agents, horizon,
...]``. All addresses stay the same from batch to batch, so that the whole of ``next`` can be captured in a CUDA graph and replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fugu.rollout.batch import BOOTSTRAPS, Batch
from fugu.rollout.onpolicy import Act, Actor
from fugu.spaces import Layout
from fugu.spaces.views import TORCH_DTYPES
from fugu.vector.device import DeviceRows, DeviceVec
from fugu.vector.vecenv import EpisodeLog

Columns = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""what a policy keeps of a row: shape and dtype, by name"""


@dataclass
class Slab:
    """The rows of one horizon. Row ``horizon`` of the first four is what comes after it."""

    obs: Tensor
    """[horizon + 1, agents, *row_shape]"""
    first: Tensor
    """[horizon + 1, agents]"""
    mask: Tensor
    """[horizon + 1, agents]"""
    action_mask: Tensor | None
    """[horizon + 1, agents, choices]; None: the environments forbid nothing"""
    reward: Tensor
    """[horizon, agents]"""
    terminated: Tensor
    truncated: Tensor
    bootstrap: Tensor
    """[agents]"""
    cost: Tensor | None = None
    """[horizon, agents, costs]; None: the environments have none"""
    cost_bootstrap: Tensor | None = None
    """[agents, costs]; None: nobody foretells them"""
    acted: dict[str, Tensor] = field(default_factory=dict)
    """what the policy did, by column: [horizon, agents, ...]"""
    team: bool = False
    """whether there are several agents in a world, who may wait for each other"""

    @classmethod
    def zeros(
        cls, layout: Layout, agents: int, choices: int, horizon: int, device: torch.device, columns: Columns, costs: int = 0
    ) -> Slab:
        def zeros(*shape: int, dtype: torch.dtype = torch.bool) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            obs=zeros(horizon + 1, agents, *layout.row_shape, dtype=TORCH_DTYPES[layout.dtype_name]),
            first=zeros(horizon + 1, agents),
            mask=zeros(horizon + 1, agents),
            action_mask=zeros(horizon + 1, agents, choices) if choices else None,
            reward=zeros(horizon, agents, dtype=torch.float32),
            terminated=zeros(horizon, agents),
            truncated=zeros(horizon, agents),
            bootstrap=zeros(agents, dtype=torch.float32),
            cost=zeros(horizon, agents, costs, dtype=torch.float32) if costs else None,
            cost_bootstrap=zeros(agents, *columns["cost_value"][0], dtype=torch.float32) if "cost_value" in columns else None,
            acted={name: zeros(horizon, agents, *shape, dtype=dtype) for name, (shape, dtype) in columns.items()},
        )

    def rows(self, t: int) -> DeviceRows:
        """Where step ``t`` writes to."""
        return DeviceRows(
            obs=self.obs[t + 1],
            first=self.first[t + 1],
            mask=self.mask[t + 1],
            action_mask=None if self.action_mask is None else self.action_mask[t + 1],
            reward=self.reward[t],
            terminated=self.terminated[t],
            truncated=self.truncated[t],
            cost=None if self.cost is None else self.cost[t],
        )

    def start_over(self) -> None:
        """What came after the last horizon is what this one begins with."""
        for column in (self.obs, self.first, self.mask, self.action_mask):
            if column is not None:
                column[0].copy_(column[-1])

    def into(self, t: int) -> dict[str, Tensor]:
        """Where what the policy does at ``t`` is kept; after the last row only its values are of interest."""
        if t < len(self.reward):
            return {name: column[t] for name, column in self.acted.items()}
        values = {name: getattr(self, column) for name, column in BOOTSTRAPS.items() if name in self.acted}
        return {**{name: torch.empty_like(column[0]) for name, column in self.acted.items()}, **values}

    def batch(self, first_state: Tensor | None) -> Batch:
        """All of it as a batch; views."""
        columns = {
            "obs": self.obs[:-1],
            "first": self.first[:-1],
            "mask": self.mask[:-1],
            "reward": self.reward,
            "terminated": self.terminated,
            "truncated": self.truncated,
            **self.acted,
        }
        if self.action_mask is not None:
            columns["action_mask"] = self.action_mask[:-1]
        if self.cost is not None:
            columns["cost"] = self.cost
        seen = {name: column.transpose(0, 1) for name, column in columns.items()}
        if first_state is not None:
            seen["state"] = first_state
        if self.cost_bootstrap is not None:
            seen["cost_bootstrap"] = self.cost_bootstrap
        if self.team:
            seen["acts_after"] = self.mask[-1]
        return Batch({**seen, "bootstrap": self.bootstrap})


Whole = Callable[[Slab], None]
"""fills a slab from row 0 on in one go, columns of the policy included"""


class DeviceRollout:
    static = unattended = True

    def __init__(
        self, vec: DeviceVec, horizon: int, columns: Columns, *, state_size: int = 0, whole: Whole | None = None
    ) -> None:
        self.vec, self.horizon, self.device = vec, horizon, vec.device
        self.whole = whole
        costs = len(vec.spec.costs)
        self.slab = Slab.zeros(vec.obs_layout, vec.num_agents, vec.num_choices, horizon, vec.device, columns, costs)
        self.slab.team = vec.spec.num_agents > 1
        self._state = torch.zeros((vec.num_agents, state_size), device=vec.device) if state_size else None
        self._first_state = torch.zeros((vec.num_agents, state_size), device=vec.device) if state_size else None

    @property
    def segments(self) -> int:
        return self.vec.num_agents

    # --- a batch ---

    def next(self, act: Actor, stop: Callable[[], bool] = bool) -> Batch:
        """Let all agents act ``horizon`` times. ``stop`` is not asked: a horizon on a device takes milliseconds."""
        slab = self.slab
        slab.start_over()
        if self.whole is not None:
            self.whole(slab)
        else:
            self._step_by_step(act)
        return slab.batch(self._first_state)

    def _step_by_step(self, act: Actor) -> None:
        slab, state = self.slab, self._state
        if state is not None and self._first_state is not None:
            self._first_state.copy_(state)
        for t in range(self.horizon):
            done = self._act(act, t, state)
            self.vec.step(done.env_action, slab.rows(t))
            state = done.state
        self._act(act, self.horizon, state)  # for its value; the action is not taken: the next policy chooses its own
        if self._state is not None and state is not None:
            self._state.copy_(state)

    def _act(self, act: Actor, t: int, state: Tensor | None) -> Act:
        slab = self.slab
        into = slab.into(t)
        done = act(slab.obs[t], state, slab.first[t], None if slab.action_mask is None else slab.action_mask[t], into=into)
        for name, column in done.columns.items():
            into[name].copy_(column)
        return done

    def drain_log(self) -> EpisodeLog:
        return self.vec.drain_log()

    # --- starting and restarting ---

    def restart(self, seed: int) -> None:
        """Start all environments anew."""
        self.vec.reset(seed, self.slab.rows(self.horizon - 1))
        self.vec.drain_log()
        if self._state is not None:
            self._state.zero_()

    @property
    def can_snapshot(self) -> bool:
        return self.vec.can_snapshot

    def snapshot(self) -> dict[str, Tensor]:
        """What a checkpoint needs to go on between two batches exactly here."""
        saved = {f"vec.{name}": tensor for name, tensor in self.vec.snapshot().items()}
        slab = self.slab
        last = {"obs": slab.obs, "first": slab.first, "mask": slab.mask, "action_mask": slab.action_mask}
        saved.update({f"row.{name}": column[-1].cpu().clone() for name, column in last.items() if column is not None})
        if self._state is not None:
            saved["recurrent"] = self._state.cpu().clone()
        return saved

    def took(self, saved: Mapping[str, Tensor]) -> bool:
        """Whether a source of this kind made the snapshot, and not one with its environments elsewhere."""
        return "row.obs" in saved

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self.vec.restore({name.removeprefix("vec."): tensor for name, tensor in saved.items() if name.startswith("vec.")})
        for name, tensor in saved.items():
            if name.startswith("row."):
                getattr(self.slab, name.removeprefix("row."))[-1].copy_(tensor)
        if self._state is not None:
            self._state.copy_(saved["recurrent"])
