"""Native environments, thousands at once: one array of worlds, stepped by threads of this process, without Python or the GIL.

The engine (native/engine.h) writes straight into the buffers, checks the actions, and keeps the statistics; per-agent infos are
built only if asked for (``infos="all"`` or ``"episode"``), because at millions of steps per second they would be all the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fugu.emulation.env import Infos
from fugu.emulation.native import RESET, columns, descriptions, draw_seeds, native_spec
from fugu.emulation.saved import unsound
from fugu.errors import ConfigError, SpaceError
from fugu.native import native
from fugu.vector.buffers import Buffers
from fugu.vector.config import VectorConfig, usable_cores
from fugu.vector.runner import Drained, Options, Runner, agent_slices, split
from fugu.vector.seeds import KEEP

TAKEN, OTHER_FORM = -1, -2
"""what ``Worlds.take`` says if all is well, and of actions that are not an array like the one in the buffers"""


class Native(Runner):
    """Groups of worlds over one engine. ``num_workers`` is the number of threads, the calling one included."""

    shares_workers = True

    def __init__(self, name: str, config: VectorConfig, settings: Mapping[str, Any]) -> None:
        self.spec = native_spec(name, settings)
        described = descriptions()[name]
        self.masks_actions = described["masks_actions"]
        self.can_snapshot = described["restores"]
        agents = self.spec.num_agents
        self.env_agents = agent_slices([agents] * config.num_envs)
        self.group_agents = [
            slice(envs.start * agents, envs.stop * agents)
            for envs in split(config.num_envs, config.num_batches, config.num_batches).envs
        ]
        self.buffers = Buffers(self.spec, config.num_envs, config.num_envs * agents, groups=self.group_agents)
        threads = config.num_workers or min(usable_cores(), max(1, config.num_envs // 64))
        self._bounds = [0, *(part.stop // agents for part in self.group_agents)]
        self._fresh = set(range(len(self.group_agents)))
        """groups that were never reset"""
        self._worlds = native.Worlds(name, config.num_envs, dict(settings), self._bounds, threads)
        parts = [[columns(rows) for rows in slots] for slots in self.buffers.rows]
        self._worlds.bind(self.buffers.seeds, self.buffers.action, parts)
        self.step_now = self._worlds.step
        """without Python between"""

    @property
    def state_bytes(self) -> int:
        """Return how many bytes the worlds themselves take, beside their rows."""
        return self._worlds.state_bytes

    @property
    def state(self) -> bytes:
        """Return the state of all worlds: what they simulate, their random numbers, and their running episodes."""
        return self._worlds.state

    @state.setter
    def state(self, state: bytes) -> None:
        if len(state) != self._worlds.state_bytes:
            raise ConfigError(
                f"the saved state has {len(state)} bytes, but {len(self.env_agents)} worlds of {self.spec.name} have "
                f"{self._worlds.state_bytes}: it is of another environment, number of environments or version"
            )
        if (world := self._worlds.restore(state)) >= 0:
            raise unsound(world, self.spec.name)
        self._fresh.clear()

    def take_actions(self, group: int, action: Any, slot: int) -> None:
        agent = OTHER_FORM if action is None else self._worlds.take(group, action)
        if agent == OTHER_FORM:
            self.buffers.write_action(group, action, slot)
            agent = self._worlds.bad_action(group)
        if agent != TAKEN:
            self.buffers.write_action(group, action, slot)  # what comes after the bad one was not copied
            try:
                self.buffers.check_actions(group, slot)  # forgives where nobody acts
            except SpaceError:
                if len(self.buffers.action_layout.leaves) > 1:
                    raise  # it names the part
            agent = self._worlds.bad_action(group)
            if agent != TAKEN:
                raise self._outside(agent)

    def drain(self) -> Drained:
        return self._worlds.drain()

    def start(self, group: int, command: int, slot: int, options: Options = None) -> None:
        if options is not None:
            raise ConfigError(f"{self.spec.name} takes no reset options; its settings are given to make(env_kwargs=...)")
        if command == RESET and group in self._fresh:
            self._fresh.remove(group)
            draw_seeds(self.buffers.seeds[self._bounds[group] : self._bounds[group + 1]])
        if command == RESET:
            self._keep(group, slot)
        self._worlds.start(group, command, slot)

    def _keep(self, group: int, slot: int) -> None:
        """Copy the rows of the worlds that a reset leaves alone."""
        kept = self.buffers.seeds[self._bounds[group] : self._bounds[group + 1]] == KEEP
        if kept.any():
            agents = np.repeat(kept, self.spec.num_agents)
            new, old = self.buffers.rows[group][slot], self.buffers.rows[group][1 - slot]
            for name in new.columns:
                new[name][agents] = old[name][agents]

    def finish(self, groups: Sequence[int]) -> tuple[int, Infos]:
        self._worlds.finish(groups[0])
        return groups[0], {}

    def abandon(self, group: int) -> None:
        self._worlds.finish(group)

    def call(self, kind: str, name: str, args: Sequence[Any], kwargs: dict[str, Any], envs: Sequence[int]) -> list[Any]:
        if name == "render" and kind == "call":
            return [self._worlds.render(i) for i in envs]
        raise ConfigError(f"{self.spec.name} is a native environment: it has no Python attribute {name!r}")

    def _outside(self, agent: int) -> SpaceError:
        got = self.buffers.action[agent].tolist()
        return SpaceError(f"actions: {got} at agent {agent} is outside {self.spec.action_space}")

    def close(self) -> None:
        """Do nothing: threads and worlds go with the object."""
