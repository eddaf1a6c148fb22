"""Worlds of a C++ environment on a device: kernels compiled from the same headers as the CPU's engine, one thread per world.

The arithmetic is the CPU's (no contraction, exact division and roots), so the same seeds and actions give the same bytes. On
device "cpu" the kernels are emulated, slowly, for tests; to step on the CPU use ``backend="native"``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from fugu.emulation.env import discrete_choices
from fugu.emulation.native import descriptions, native_spec
from fugu.emulation.saved import unsound
from fugu.emulation.stats import Drained
from fugu.errors import ConfigError
from fugu.native import native
from fugu.spaces import Layout
from fugu.vector.device import DeviceRows
from fugu.vector.device_worlds import WorldParts, block_size, kernel_source, worlds_module

WARP = 32
LOG_COLUMNS = 11
"""LogSum of native/world.h: episodes (int64), summed returns, lengths and 8 values of the environment's own and costs (float64)"""
ONE_STORE = (4, 8, 16)
"""bytes of a world's observations that a thread writes with one instruction, which needs them aligned to their size"""
WORLDS_OF_SLOT = 16
"""a kernel may sum up the episodes of as few worlds as these"""
MAX_WORLDS = 2**31 - 1024


class NativeDevice:
    """``num_envs`` worlds of the native environment ``env`` (a name, or a header's path)."""

    def __init__(self, env: str, num_envs: int, settings: Mapping[str, Any], device: torch.device) -> None:
        if num_envs > MAX_WORLDS:
            raise ConfigError(f"num_envs={num_envs} is more than a device counts; at most {MAX_WORLDS}")
        self._source = source = kernel_source(env)
        self.spec = native_spec(source.name, settings)
        described = descriptions()[source.name]
        self.num_choices = discrete_choices(self.spec.action_space) if described["masks_actions"] else 0
        self._params, self._time_limit = native.device_settings(source.name, dict(settings))
        self._log_names: tuple[str, ...] = (*described["logs"], *described["costs"])
        module = worlds_module(source, device)
        self._reset = module.kernel("reset_worlds", "pisp" + "p" * 8)
        self._step = module.kernel("step_worlds", "pisip" + "p" * 9)
        self._num_envs, self._device = num_envs, device
        obs_bytes = self.spec.num_agents * Layout(self.spec.observation_space).nbytes
        self.can_snapshot: bool = described["restores"]
        self._settings = dict(settings)
        self._one_store = obs_bytes if obs_bytes in ONE_STORE else 1
        staged = (0 if obs_bytes in ONE_STORE else obs_bytes) + self.spec.num_agents * self.num_choices
        self._block = block_size(num_envs, staged)
        self._shared = self._block * staged
        self._grid = -(-num_envs // self._block)
        self._words = torch.zeros((described["world_bytes"] // 4, num_envs), dtype=torch.int32, device=device)
        slots = max(self._grid * self._block // WARP, -(-num_envs // WORLDS_OF_SLOT))
        self._logs = torch.zeros((slots, LOG_COLUMNS), dtype=torch.int64, device=device)

    def reset(self, seeds: Tensor, rows: DeviceRows) -> None:
        arguments = (self._words, self._num_envs, self._params, seeds, *self._columns(rows))
        with self._current_device():
            self._reset(self._grid, self._block, *arguments, shared=self._shared)

    def step(self, action: Tensor, rows: DeviceRows) -> None:
        arguments = (self._words, self._num_envs, self._params, self._time_limit, action, *self._columns(rows), self._logs)
        with self._current_device():
            self._step(self._grid, self._block, *arguments, shared=self._shared)

    def drain(self) -> Drained:
        sums = torch.cat([self._logs[:, :1].sum(0).double(), self._logs.view(torch.float64)[:, 1:].sum(0)]).cpu().tolist()
        self._logs.zero_()
        values = dict(zip(self._log_names, sums[3:], strict=False))
        return int(sums[0]), sums[1], sums[2], values

    @property
    def parts(self) -> WorldParts:
        return WorldParts(self._source, self._words, self._params, self._time_limit, self._logs)

    def state(self) -> dict[str, Tensor]:
        return {"state": self._words}

    def check(self, saved: Mapping[str, Tensor]) -> None:
        world = native.first_unsound(self._source.name, self._settings, saved["state"].cpu().contiguous().numpy())
        if world >= 0:
            raise unsound(world, self.spec.name)

    def _current_device(self) -> AbstractContextManager[Any]:
        """Kernels start on the current device's stream, which need not be this one's."""
        return nullcontext() if self._device.type == "cpu" else torch.cuda.device(self._device)

    def _columns(self, rows: DeviceRows) -> tuple[Tensor | None, ...]:
        if rows.obs.data_ptr() % self._one_store:
            raise ConfigError(f"obs must start at a multiple of {self._one_store} bytes; give a row of a slab")
        return (
            rows.obs,
            rows.first,
            rows.mask,
            rows.action_mask,
            rows.reward,
            rows.terminated,
            rows.truncated,
            rows.cost,
        )
