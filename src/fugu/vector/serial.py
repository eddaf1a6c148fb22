"""The reference backend: every environment in this process, one after the other, on the caller's time.

Environments that compute their steps elsewhere are set going when their actions are sent, and ``finish`` waits for the first group that
is complete. They are late when they were waited for as long as a step may take and none came to its end meanwhile: neither a caller
that learns in between nor a long queue before them makes them late.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fugu.emulation.env import Infos, spec_of
from fugu.emulation.factory import Factory
from fugu.errors import EnvError
from fugu.vector.buffers import Buffers
from fugu.vector.config import VectorConfig
from fugu.vector.deadline import Deadline, build_here, close_here, release, run_here
from fugu.vector.runner import STEP, Options, Runner, agent_slices, check_budget, check_distinct, shared_spec, split
from fugu.vector.shard import POLL_S, Shard

MOST_S = 10 * POLL_S
"""counted of one look at steps that are computed elsewhere: if it took longer, this process was stopped meanwhile (Ctrl-Z)"""


class Serial(Runner):
    """One shard per group; a group runs when ``finish`` is asked for it, if not elsewhere from ``start`` on."""

    shares_workers = True

    def __init__(self, factories: Sequence[Factory], config: VectorConfig) -> None:
        self._config = config
        self._split = split(config.num_envs, config.num_batches, config.num_batches)
        self._shards: list[Shard] = []
        self._deadline = Deadline()
        try:
            for envs in self._split.envs:
                part = [factories[i] for i in envs]
                self._shards.append(build_here(part, envs.start, self._deadline, config))
            made = [env for shard in self._shards for env in shard.envs]
            check_distinct(made)
            specs = [spec_of(env) for env in made]
            self.spec = shared_spec(specs)
        except BaseException:
            self.close()
            raise
        self.env_agents = agent_slices([spec.num_agents for spec in specs])
        self.group_agents = [
            slice(self.env_agents[envs.start].start, self.env_agents[envs.stop - 1].stop) for envs in self._split.envs
        ]
        self.buffers = Buffers(self.spec, config.num_envs, self.env_agents[-1].stop, groups=self.group_agents)
        for shard, agents in zip(self._shards, self.group_agents, strict=True):
            shard.bind(self.buffers, agents.start)
        self._orders: dict[int, tuple[int, int, Options]] = {}
        self._under_way: dict[int, float] = {}
        """groups whose steps are computed elsewhere -> seconds that they were waited for in vain"""
        self._errors: dict[int, BaseException] = {}
        """groups that could not be set going -> why"""

    @property
    def restarts(self) -> int:
        return sum(shard.restarts for shard in self._shards)

    def take_actions(self, group: int, action: Any, slot: int) -> None:
        self.buffers.write_action(group, action, slot)
        self.buffers.check_actions(group, slot)

    def drain(self) -> None:
        """Return None: the statistics are not kept here."""

    def start(self, group: int, command: int, slot: int, options: Options = None) -> None:
        self._orders[group] = (command, slot, options)
        if command == STEP and self._shards[group].deferred:
            try:
                with self._deadline(self._config.step_timeout, self._shards[group], "step"):
                    self._shards[group].begin(slot)
                self._under_way[group] = 0.0
            except EnvError as error:  # for ``finish`` to raise, as where nothing happens before
                self._errors[group] = error

    def finish(self, groups: Sequence[int]) -> tuple[int, Infos]:
        group = self._first_complete(groups)
        command, slot, options = self._orders.pop(group)
        if group in self._errors:
            raise self._errors.pop(group)
        if self._under_way.pop(group, None) is None:
            infos = run_here(self._shards[group], command, slot, options, self._deadline, self._config)
        else:
            with self._deadline(self._config.step_timeout, self._shards[group], "step"):
                infos = self._shards[group].finish(slot)
        if self._config.on_error == "restart":
            check_budget(self.restarts, self._config, infos)
        return group, infos

    def _first_complete(self, groups: Sequence[int]) -> int:
        """Wait for the first of ``groups``, in the order given, that is not still computed elsewhere."""
        left = self._left(groups)
        while True:
            now = time.monotonic()
            for group in groups:
                if group not in self._under_way or self._complete(group):
                    return group
            self._shards[groups[0]].wait(self._orders[groups[0]][1], min(POLL_S, self._config.step_timeout))
            before, left = left, self._left(groups)
            spent = min(time.monotonic() - now, MOST_S)
            for group in groups:
                self._under_way[group] = self._under_way[group] + spent if left == before else 0.0

    def _left(self, groups: Sequence[int]) -> int:
        """Count the steps of these groups that had not ended when last looked at."""
        return sum(self._shards[group].awaited for group in groups)

    def _complete(self, group: int) -> bool:
        shard, slot, limit = self._shards[group], self._orders[group][1], self._config.step_timeout
        with self._deadline(limit, shard, "step"):
            while not shard.ready(slot):
                if self._under_way[group] <= limit:
                    return False
                shard.give_up(slot, self._deadline.error())
        return True

    def abandon(self, group: int) -> None:
        """Forget the group; what is computed elsewhere is dropped by the reset that follows."""
        self._orders.pop(group, None)
        self._under_way.pop(group, None)
        self._errors.pop(group, None)

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
