"""The reference backend: every environment in this process, one after the other, on the caller's time."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from fugu.emulation.env import Infos, spec_of
from fugu.emulation.factory import Factory
from fugu.errors import ConfigError, EnvError, EnvTimeout
from fugu.vector.buffers import Buffers
from fugu.vector.config import VectorConfig
from fugu.vector.deadline import Deadline, release
from fugu.vector.runner import RESET, Options, agent_slices, split
from fugu.vector.shard import Shard

CLOSE_S = 3.0
"""seconds for closing the environments of the calling process"""


class Serial:
    """One shard per group; a group runs when ``finish`` is asked for it."""

    def __init__(self, factories: Sequence[Factory], config: VectorConfig) -> None:
        self._config = config
        self._split = split(config.num_envs, config.num_batches, config.num_batches)
        self._shards: list[Shard] = []
        self._deadline = Deadline()
        try:
            for envs in self._split.envs:
                part = [factories[i] for i in envs]
                self._shards.append(build_here(part, envs.start, self._deadline, config))
            specs = [spec_of(env) for shard in self._shards for env in shard.envs]
            check_specs(specs)
        except BaseException:
            self.close()
            raise
        self.spec = specs[0]
        self.env_agents = agent_slices([spec.num_agents for spec in specs])
        self.group_agents = [
            slice(self.env_agents[envs.start].start, self.env_agents[envs.stop - 1].stop) for envs in self._split.envs
        ]
        self.buffers = Buffers(self.spec, config.num_envs, self.env_agents[-1].stop, groups=self.group_agents)
        for shard, agents in zip(self._shards, self.group_agents, strict=True):
            shard.bind(self.buffers, agents.start)
        self._orders: dict[int, tuple[int, int, Options]] = {}

    @property
    def restarts(self) -> int:
        return sum(shard.restarts for shard in self._shards)

    def take_actions(self, group: int, action: Any) -> None:
        self.buffers.write_action(self.group_agents[group], action)
        self.buffers.check_actions(self.group_agents[group])

    def drain(self) -> None:
        """The statistics are not kept here."""

    def start(self, group: int, command: int, slot: int, options: Options = None) -> None:
        self._orders[group] = (command, slot, options)

    def finish(self, groups: Sequence[int]) -> tuple[int, Infos]:
        group = groups[0]
        command, slot, options = self._orders.pop(group)
        infos = run_here(self._shards[group], command, slot, options, self._deadline, self._config)
        if self._config.on_error == "restart":
            check_budget(self.restarts, self._config, infos)
        return group, infos

    def abandon(self, group: int) -> None:
        self._orders.pop(group, None)

    def call(self, kind: str, name: str, args: Sequence[Any], kwargs: dict[str, Any], envs: Sequence[int]) -> list[Any]:
        out = []
        for i in envs:
            shard = next(s for s, part in zip(self._shards, self._split.envs, strict=True) if i in part)
            out += shard.call(kind, name, args, kwargs, [i - shard.first_env])
        return out

    def close(self) -> None:
        shards, self._shards = self._shards, []
        for shard in shards:
            close_here(shard, self._deadline)
        release()


def build_here(factories: Sequence[Factory], first_env: int, deadline: Deadline, config: VectorConfig) -> Shard:
    """A shard in the calling process, built within the timeout where that can be enforced."""
    shard = Shard(factories, first_env, infos=config.infos or "all", on_error=config.on_error, build=False)
    with deadline(config.start_timeout, shard, "make"):
        shard.build()
    return shard


def run_here(shard: Shard, command: int, slot: int, options: Options, deadline: Deadline, config: VectorConfig) -> Infos:
    """Run a shard in the calling process, within the timeout where that can be enforced."""
    phase, seconds = ("reset", config.reset_timeout) if command == RESET else ("step", config.step_timeout)
    with deadline(seconds, shard, phase):
        return shard.reset(slot, options) if command == RESET else shard.step(slot)


def close_here(shard: Shard, deadline: Deadline) -> None:
    """Close a shard in the calling process; an env that does not come to an end is left where it is."""
    try:
        with deadline(CLOSE_S, shard, "close"):
            shard.close()
    except EnvTimeout as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)


def check_budget(restarts: int, config: VectorConfig, infos: Infos) -> None:
    """Restarting for ever would hide an environment that is simply broken."""
    if restarts > config.max_restarts:
        last = next((info["error"] for info in infos.values() if "restarted" in info), "")
        raise EnvError(f"gave up after {restarts} restarts (max_restarts={config.max_restarts}); the last was: {last}")


def check_specs(specs: Sequence[Any]) -> None:
    """All environments of a batch must have the same spaces."""
    for i, spec in enumerate(specs):
        if what := specs[0].difference(spec):
            a, b = getattr(specs[0], what), getattr(spec, what)
            raise ConfigError(f"env {i} has another {what} than env 0; one batch needs one kind.\n  env 0: {a}\n  env {i}: {b}")
