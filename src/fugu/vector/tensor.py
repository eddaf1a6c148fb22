"""A ``TensorEnv`` (emulation/tensor.py) on the CPU behind ``VecEnv``: torch steps all worlds of a group at once, in this process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fugu.emulation.env import Infos
from fugu.emulation.native import draw_seeds
from fugu.emulation.saved import check_values
from fugu.emulation.tensor import RowTensors, TensorWorlds
from fugu.errors import ConfigError
from fugu.vector.buffers import Buffers
from fugu.vector.config import VectorConfig
from fugu.vector.runner import RESET, Drained, Options, Runner, agent_slices, split
from fugu.vector.seeds import KEEP


class Tensors(Runner):
    """One array of worlds per group; a group runs when ``finish`` is asked for it."""

    shares_workers = True
    can_snapshot = True

    def __init__(self, make: Callable[[], Any], config: VectorConfig) -> None:
        self._envs = split(config.num_envs, config.num_batches, config.num_batches).envs
        self._worlds = [
            TensorWorlds(make(), len(envs), torch.device("cpu"), compile=bool(config.compile)) for envs in self._envs
        ]
        self.spec = self._worlds[0].spec
        agents = self.spec.num_agents
        self.env_agents = agent_slices([agents] * config.num_envs)
        self.group_agents = [slice(envs.start * agents, envs.stop * agents) for envs in self._envs]
        self.buffers = Buffers(self.spec, config.num_envs, config.num_envs * agents, groups=self.group_agents)
        self._rows = [[RowTensors(rows) for rows in slots] for slots in self.buffers.rows]
        self._actions = [torch.from_numpy(self.buffers.action[part]) for part in self.group_agents]
        self._fresh = set(range(len(self._envs)))
        """groups that were never reset"""
        self._orders: dict[int, tuple[int, int]] = {}

    @property
    def state(self) -> bytes:
        """Return the state of all worlds: what they simulate, their random numbers, and their running episodes."""
        return b"".join(tensor.numpy().tobytes() for worlds in self._worlds for tensor in worlds.state().values())

    @state.setter
    def state(self, state: bytes) -> None:
        own = [tensor for worlds in self._worlds for tensor in worlds.state().values()]
        needed = sum(tensor.nbytes for tensor in own)
        if len(state) != needed:
            raise ConfigError(
                f"the saved state has {len(state)} bytes, but {len(self.env_agents)} worlds of {self.spec.name} have {needed}: "
                "it is of another environment, number of environments or version"
            )
        ends = list(itertools.accumulate(tensor.nbytes for tensor in own))
        parts = [state[end - tensor.nbytes : end] for tensor, end in zip(own, ends, strict=True)]
        for tensor, part in zip(own, parts, strict=True):
            if tensor.dtype == torch.bool:
                check_values("state", np.frombuffer(part, np.bool_), f"{len(self.env_agents)} environments of {self.spec.name}")
        for tensor, part in zip(own, parts, strict=True):
            tensor.copy_(torch.frombuffer(bytearray(part), dtype=tensor.dtype).view(tensor.shape))
        self._fresh.clear()

    def take_actions(self, group: int, action: Any, slot: int) -> None:
        self.buffers.write_action(group, action, slot)
        self.buffers.check_actions(group, slot)

    def drain(self) -> Drained:
        parts = [worlds.drain() for worlds in self._worlds]
        values = {name: sum(part[3][name] for part in parts) for name in parts[0][3]}
        return sum(part[0] for part in parts), sum(part[1] for part in parts), sum(part[2] for part in parts), values

    def start(self, group: int, command: int, slot: int, options: Options = None) -> None:
        if options is not None:
            raise ConfigError(f"{self.spec.name} takes no reset options; its settings are given to make(env_kwargs=...)")
        self._orders[group] = (command, slot)

    def finish(self, groups: Sequence[int]) -> tuple[int, Infos]:
        group = groups[0]
        command, slot = self._orders.pop(group)
        if command == RESET:
            seeds = self.buffers.seeds[self._envs[group].start : self._envs[group].stop]
            if (seeds == KEEP).any():
                raise ConfigError(
                    f"{self.spec.name} computes all worlds at once and resets none alone; backend='process' has one each"
                )
            if group in self._fresh:
                self._fresh.remove(group)
                draw_seeds(seeds)
            self._worlds[group].reset(torch.from_numpy(seeds), self._rows[group][slot])
        else:
            self._worlds[group].step(self._actions[group], self._rows[group][slot])
        return group, {}

    def abandon(self, group: int) -> None:
        self._orders.pop(group, None)

    def call(self, kind: str, name: str, args: Sequence[Any], kwargs: dict[str, Any], envs: Sequence[int]) -> list[Any]:
        raise ConfigError(
            f"{self.spec.name} computes all worlds at once: no single one has an attribute {name!r}; backend='process' has one each"
        )

    def close(self) -> None:
        """Do nothing: the worlds go with the object."""
