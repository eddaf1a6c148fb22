"""Environments whose worlds, rows and statistics stay on one device: what a learner on that device holds instead of a ``VecEnv``.

``reset`` and ``step`` write into ``DeviceRows`` the caller gives (rows of its own slabs, usually): ``step(action, rows)`` takes the
actions for the rows last written, and writes what they produced (``reward``, ``terminated``, ``truncated``, ``cost`` and what else
the environment says) and the next row (``obs``, ``first``, ``mask``, ``action_mask``), by the convention of ``emulation/env.py``.
Nothing is copied to the CPU and nothing waits, so a CUDA graph can capture ``step``. Who steps the worlds is behind
``DeviceWorlds``: kernels compiled from C++ headers (``device_native.py``) or torch functions (``emulation/tensor.py``). The seeds are
those of every other backend.

Actions are not checked: what a policy samples is in its space, and a kernel cannot raise. A C++ environment takes a choice outside
its space for the nearest inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from gymnasium import spaces as gs
from torch import Tensor

from fugu.emulation.columns import present
from fugu.emulation.env import NAMED, EnvSpec
from fugu.emulation.native import draw_seeds
from fugu.emulation.saved import check_form, check_values, no_valid, unfit
from fugu.emulation.stats import Drained, EpisodeLog, check_logged
from fugu.errors import CallOrderError, SpaceError
from fugu.spaces import Layout
from fugu.spaces.views import TORCH_DTYPES
from fugu.vector.config import VectorConfig
from fugu.vector.runner import agent_slices
from fugu.vector.seeds import chosen_seeds
from fugu.vector.vecenv import means_of


@dataclass(slots=True, eq=False)
class DeviceRows:
    """The rows of all agents as tensors on the device, each in one piece."""

    obs: Tensor
    """[agents, *row_shape] of the layout's dtype"""
    first: Tensor
    """[agents] bool; ``obs`` is the first of its episode"""
    mask: Tensor
    """[agents] bool; an action on ``obs`` counts"""
    action_mask: Tensor | None
    """[agents, choices] bool; None where the environment offers none"""
    reward: Tensor
    """[agents] float32; produced by the previous action, as are the flags below"""
    terminated: Tensor
    """[agents] bool"""
    truncated: Tensor
    """[agents] bool"""
    cost: Tensor | None = None
    """[agents, costs] float32; None where the environment has none"""
    extra: dict[str, Tensor] = field(default_factory=dict)
    """columns beyond these, by name"""

    @classmethod
    def of(cls, columns: Mapping[str, Tensor]) -> DeviceRows:
        """Make rows of columns by name."""
        extra = {name: column for name, column in columns.items() if name not in NAMED}
        return cls(**{name: columns.get(name) for name in NAMED}, extra=extra)  # type: ignore[arg-type]

    @property
    def columns(self) -> dict[str, Tensor]:
        """Return all columns there are, by name."""
        found = {name: getattr(self, name) for name in NAMED}
        return {**{name: column for name, column in found.items() if column is not None}, **self.extra}

    def __getitem__(self, name: str) -> Tensor:
        """Return a column by its name."""
        return self.columns[name]


class DeviceWorlds(Protocol):
    """Steps the worlds of a ``DeviceVec``; arguments have been checked."""

    spec: EnvSpec
    num_choices: int
    """columns of the action mask; 0 where the environment offers none"""
    can_snapshot: bool
    """whether a saved state can be checked, and so be restored"""

    def reset(self, seeds: Tensor, rows: DeviceRows) -> None:
        """``seeds`` [worlds] int64 on the device; negative: go on with the random numbers there are."""

    def step(self, action: Tensor, rows: DeviceRows) -> None: ...

    def drain(self) -> Drained:
        """Return the episodes that ended since the last call."""

    def state(self) -> dict[str, Tensor]:
        """All that a world remembers between two steps: the very tensors."""

    def check(self, saved: Mapping[str, Tensor]) -> None:
        """Refuse values for ``state``, of its shapes and types and on the CPU, that the worlds cannot be in."""


class DeviceVec:
    """``num_envs`` worlds with ``num_agents`` agents in all on ``device``."""

    def __init__(self, worlds: DeviceWorlds, config: VectorConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        self.spec = worlds.spec
        self.num_envs = config.num_envs
        self.env_agents = agent_slices([self.spec.num_agents] * config.num_envs)
        self.num_agents: int = self.env_agents[-1].stop
        self.observation_space: gs.Space = self.spec.observation_space
        """of one agent"""
        self.action_space: gs.Space = self.spec.action_space
        """of one agent"""
        self.obs_layout = Layout(self.observation_space)
        self.action_layout = Layout(self.action_space)
        self.num_choices = worlds.num_choices
        """columns of the action mask; 0 where the environment offers none"""
        self.worlds = worlds
        """who steps them"""
        self.can_snapshot = worlds.can_snapshot
        if config.episode_infos:
            check_logged(config.episode_infos, worlds.drain(), self.spec)
        self._fresh = True
        """never reset"""
        self._closed = False
        agents = self.num_agents
        self._form = {
            form.name: ((agents, *form.shape), TORCH_DTYPES[form.dtype]) for form in present(self.spec, self.num_choices)
        }
        self._action_form = (agents, *self.action_layout.row_shape), TORCH_DTYPES[self.action_layout.dtype_name]

    def rows(self) -> DeviceRows:
        """Fresh rows to write into."""
        return DeviceRows.of(
            {name: torch.zeros(shape, dtype=dtype, device=self.device) for name, (shape, dtype) in self._form.items()}
        )

    def reset(self, seed: int | Sequence[int | None] | None, rows: DeviceRows) -> None:
        """Start all worlds anew and write their first rows. Without ``seed``: the config's, the first time."""
        self._check_open()
        self._check_rows(rows)
        seeds = np.full(self.num_envs, -1, np.int64)
        chosen_seeds(self.config.seed if seed is None and self._fresh else seed, seeds)
        if self._fresh:
            draw_seeds(seeds)
        self._fresh = False
        self.worlds.reset(torch.from_numpy(seeds).to(self.device), rows)

    def step(self, action: Tensor, rows: DeviceRows) -> None:
        """``action`` is ``[agents, *row_shape]`` of the action layout's dtype, on the device."""
        if self._fresh:
            self._check_open()
            raise CallOrderError("step() before reset(): call reset() first")
        self._check_rows(rows)
        self._check("action", action, self._action_form)
        self.worlds.step(action, rows)

    def drain_log(self) -> EpisodeLog:
        """Return means over the episodes that ended since the last call (of any agent). Waits for the device: call it rarely."""
        return means_of(self.worlds.drain(), self.spec.costs)

    def snapshot(self) -> dict[str, Tensor]:
        """Copies of the worlds' states on the CPU. The rows that wait for actions are the caller's."""
        self._check_can_snapshot()
        if self._fresh:
            raise CallOrderError("snapshot() before reset(): there is nothing to save")
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.worlds.state().items()}

    def restore(self, saved: dict[str, Tensor]) -> None:
        """Go on where ``snapshot`` was taken. The number of environments must be the same. A snapshot may come from anywhere: one
        that these environments cannot be in raises a ConfigError, and they stay as they are."""
        self._check_open()
        self._check_can_snapshot()
        own, of = self.worlds.state(), f"{self.num_envs} environments of {self.spec.name}"
        for name in {**own, **saved}:
            if name not in own or name not in saved:
                raise unfit(name, of, "is unknown" if name in saved else "is missing")
            check_form(name, saved[name], own[name], of)
            if saved[name].dtype == torch.bool:  # what other numbers mean is the environment's business
                check_values(name, saved[name].cpu().numpy(), of)
        self.worlds.check(saved)
        for name, tensor in own.items():
            tensor.copy_(saved[name])
        self._fresh = False

    def close(self) -> None:
        """No further step; memory goes with the object. Safe to call twice."""
        self._closed = self._fresh = True

    def __enter__(self) -> DeviceVec:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        worlds = type(self.worlds).__name__
        return f"DeviceVec({self.spec.name}, {self.num_envs} envs, {self.num_agents} agents, {worlds} on {self.device})"

    def _check_rows(self, rows: DeviceRows) -> None:
        columns = rows.columns
        for name in {**self._form, **columns}:
            self._check(name, columns.get(name), self._form.get(name))

    def _check(self, name: str, tensor: Tensor | None, form: tuple[tuple[int, ...], torch.dtype] | None) -> None:
        """Kernels take addresses: what does not fit would be written over something else."""
        if form is None or tensor is None:
            if form is not None:
                raise SpaceError(f"{name}: expected {form[1]}{list(form[0])}, got None")
            if tensor is not None:
                raise SpaceError(f"{name}: {self.spec.name} offers none; give None")
            return
        if tensor.shape != form[0] or tensor.dtype != form[1] or tensor.device != self.device:
            got = f"{tensor.dtype}{list(tensor.shape)} on {tensor.device}"
            raise SpaceError(f"{name}: expected {form[1]}{list(form[0])} on {self.device}, got {got}")
        if not tensor.is_contiguous():
            raise SpaceError(f"{name}: rows must lie in one piece, got strides {list(tensor.stride())}; give a row of a slab")

    def _check_can_snapshot(self) -> None:
        if not self.can_snapshot:
            raise no_valid(self.spec.name)

    def _check_open(self) -> None:
        if self._closed:
            raise CallOrderError("this vector env is closed")
