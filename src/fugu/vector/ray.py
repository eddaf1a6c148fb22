"""Environments on the machines of a Ray cluster: an actor for each node, with a whole vector env of a contiguous range inside.

``ray_actor.py`` is the other side, ``ray_cluster.py`` starts and joins Ray. A step is one call to each node of the group: the actions
go there, one block of bytes comes back and is copied into the buffers. So the rows are those of any other backend, and a call, which
takes about a millisecond, is paid once for all environments of a node. Where environments are faster than that, nodes should act
themselves: ``rollout/fleet.py``.

Ray notices after a second that the process of a node died, and after a minute that a machine cannot be reached. So the time limits are
ours. Whatever becomes of a node, with ``on_error="restart"`` another takes its place: its rows are truncated, and the next are first.
"""

from __future__ import annotations

import contextlib
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fugu.emulation.build import is_compiled
from fugu.emulation.env import Infos
from fugu.errors import ConfigError, EnvError, EnvTimeout, WorkerDied, shared_class
from fugu.vector.buffers import Buffers
from fugu.vector.config import VectorConfig
from fugu.vector.parcel import Sealed, open_infos, pickled, unpack
from fugu.vector.ray_actor import Answer, Node, Opened, Order, read_block, shifted, versions
from fugu.vector.ray_nodes import GRACE_S, Member, Nodes
from fugu.vector.runner import RESET, STEP, Options, Runner, agent_slices, check_budget, shared_spec, split
from fugu.vector.shard import is_unscored, restart_seed, truncate

LOOK_S = 1.0
"""how often a signal's handler gets its turn while nodes are waited for"""
FAST_S, MEASURED = 0.005, 200
"""steps of a node that take less are not worth the call; so many are measured before that is said"""


class Ray(Runner):
    """Node n steps the environments of ``_split.envs[n]``."""

    shares_workers = False

    def __init__(self, env: Any, config: VectorConfig, arguments: dict[str, Any]) -> None:
        self._env, self._config, self._arguments = env, config, arguments
        if isinstance(env, list | tuple) and len(env) != config.num_envs:
            raise ConfigError(f"a list of {len(env)} environments needs num_envs={len(env)}, got num_envs={config.num_envs}")
        self._nodes = Nodes(Node, config, config.address, config.nodes)
        self._flying: dict[int, Any] = {}
        """node -> what it was asked last, until the answer is here"""
        self._answers: dict[int, Answer | EnvError] = {}
        self._orders: dict[int, tuple[int, int]] = {}
        self._due: dict[int, float] = {}
        self._reborn: set[int] = set()
        """nodes that were replaced, and whose environments begin with the next step"""
        self._inner: dict[int, int] = {}
        """node -> environments and workers that it has replaced"""
        self._restarts = 0
        self._spent: list[float] | None = []
        """seconds of the first steps; None once they have been looked at"""
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    # --- opening ---

    def _open(self) -> None:
        config = self._config
        places = self._nodes.cluster.places(self._count())
        self._split = split(config.num_envs, len(places), config.num_batches)
        for place, envs in zip(places, self._split.envs, strict=True):
            self._nodes.launch(envs, place, self._order(envs, place.sharing))
        deadline = time.monotonic() + config.start_timeout + GRACE_S
        opened: list[Opened] = [self._nodes.opened(member, deadline, versions()) for member in self._nodes.members]
        self.spec = shared_spec([each.spec for each in opened])
        self.env_agents = agent_slices([count for each in opened for count in each.agents])
        self.masks_actions = any(each.masks_actions for each in opened)
        self._agents = [slice(self.env_agents[e.start].start, self.env_agents[e.stop - 1].stop) for e in self._split.envs]
        """of each node"""
        self.group_agents = [
            slice(self._agents[nodes.start].start, self._agents[nodes.stop - 1].stop) for nodes in self._split.shards
        ]
        self.buffers = Buffers(self.spec, config.num_envs, self.env_agents[-1].stop, groups=self.group_agents)

    def _count(self) -> int:
        """Return the number of nodes: what the config says, or one per machine. Groups have whole nodes."""
        config = self._config
        if config.nodes is not None:
            return config.nodes
        machines = len(self._nodes.cluster.places(None))
        return min(max(machines // config.num_batches, 1) * config.num_batches, config.num_envs)

    def _order(self, envs: range, sharing: int) -> bytes:
        """Return what a node is to build: the same environments with the same settings, in one batch."""
        config = self._config
        one: dict[str, Any] = {
            "backend": "auto",
            "nodes": None,
            "address": None,
            "num_envs": len(envs),
            "batch_size": None,
            "order": "pipelined",
        }
        if config.num_workers is not None:
            one["num_workers"] = min(config.num_workers, len(envs))
        if is_compiled(self._env):  # a world in C++ neither fails nor hangs by itself
            one |= {"on_error": "raise", "isolate": None}
        part = list(self._env[envs.start : envs.stop]) if isinstance(self._env, list | tuple) else self._env
        return Order(part, self._arguments, replace(config, **one), sharing).sealed()

    # --- running ---

    @property
    def restarts(self) -> int:
        return self._restarts + sum(self._inner.values())

    def take_actions(self, group: int, action: Any, slot: int) -> None:
        self.buffers.write_action(group, action, slot)
        self.buffers.check_actions(group, slot)

    def drain(self) -> None:
        """Return None: the statistics are not kept here."""

    def start(self, group: int, command: int, slot: int, options: Options = None) -> None:
        limit = self._config.reset_timeout if command == RESET else self._config.step_timeout
        members = [self._nodes.members[node] for node in self._split.shards[group]]
        if any(member.starting is not None for member in members):  # in the place of one that was lost
            limit += self._config.start_timeout
        self._due[group] = time.monotonic() + limit + GRACE_S
        self._orders[group] = command, slot
        if options is not None:
            pickled(options, "the reset options")
        for node, member in zip(self._split.shards[group], members, strict=True):
            if command == RESET or node in self._reborn:
                seeds = self.buffers.seeds[member.envs.start : member.envs.stop]
                own = options[member.envs.start : member.envs.stop] if isinstance(options, list) else options
                self._flying[node] = member.actor.reset.remote(seeds.copy(), own)
            else:
                self._flying[node] = member.actor.step.remote(self.buffers.action[self._agents[node]])
        self._reborn.difference_update(self._split.shards[group])

    def finish(self, groups: Sequence[int]) -> tuple[int, Infos]:
        group = self._wait(groups)
        slot = self._orders[group][1]
        infos: Infos = {}
        errors: list[EnvError] = []
        for node in self._split.shards[group]:
            member, answer, agents = self._nodes.members[node], self._answers.pop(node), self._agents[node]
            try:
                if isinstance(answer, EnvError):
                    raise answer
                infos.update(self._read(member, answer, slot))
            except (WorkerDied, EnvTimeout) as error:
                if error.worker is not None:  # one of the node's own workers
                    errors.append(error)
                    continue
                self._lost(member, slot, error)
                told = {"restarted": "node", "error": str(error)}
                infos.update({agent: dict(told) for agent in range(agents.start, agents.stop)})
            except EnvError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        if self._config.on_error == "restart":
            check_budget(self.restarts, self._config, infos)
        return group, infos

    def _read(self, member: Member, answer: Answer, slot: int) -> Infos:
        """Copy what a node answered into the buffers; return the infos."""
        if answer.block is None:
            self._nodes.said(member, answer.mail, self._phase(member.number))
        assert answer.block is not None
        self._inner[member.number] = answer.restarts
        agents = self._agents[member.number]
        read_block(answer.block, self.buffers.part(slot, agents))
        self._measure(answer.seconds)
        if not answer.mail:
            return {}
        return shifted(open_infos(unpack(answer.mail), slice(0, agents.stop - agents.start)), agents.start)

    def _measure(self, seconds: float) -> None:
        """Warn once where a node's steps take less time than asking for them."""
        if self._spent is None:
            return
        self._spent.append(seconds)
        if len(self._spent) == MEASURED:
            middle, self._spent = sorted(self._spent)[MEASURED // 2], None
            if middle < FAST_S:
                warnings.warn(
                    f"a step of a node takes {1000 * middle:.1f} ms, about as long as asking for it: backend='ray' pays for slow "
                    f"environments. In a training, let the nodes act themselves: --rollout.nodes {len(self._nodes.members)}",
                    RuntimeWarning,
                    stacklevel=6,
                )

    def abandon(self, group: int) -> None:
        for node in self._split.shards[group]:
            if node in self._flying:
                with contextlib.suppress(EnvError):
                    self._fetch(node, self._flying.pop(node), self._due[group])
            self._answers.pop(node, None)

    def call(self, kind: str, name: str, args: Sequence[Any], kwargs: dict[str, Any], envs: Sequence[int]) -> list[Any]:
        content = pickled((args, kwargs), f"the arguments of {name!r}")
        asked = []
        for member in self._nodes.members:
            mine = [i for i in envs if i in member.envs]
            if mine:
                local = [i - member.envs.start for i in mine]
                asked.append((member, mine, member.actor.call.remote(kind, name, content, local)))
        results: dict[int, Any] = {}
        deadline = time.monotonic() + self._config.step_timeout + GRACE_S
        for member, mine, ref in asked:
            found = self._nodes.fetch(member, ref, "call", deadline)
            if found[:1] == b"-":
                self._nodes.said(member, found[1:], "call")
            for env, value in zip(mine, unpack(found[1:]), strict=True):
                results[env] = self._open_one(member, env, value)
        return [results[i] for i in envs]

    def _open_one(self, member: Member, env: int, value: Any) -> Any:
        try:
            return value.open() if isinstance(value, Sealed) else value
        except Exception as error:
            raise EnvError(
                f"an object that was sent by the env cannot be read here: {type(error).__name__}: {error}",
                node=member.name,
                envs=(env,),
                phase="call",
                remote_traceback="".join(traceback.format_exception(error)),
                cause=shared_class(error),
            ) from error

    def close(self) -> None:
        """Ask the nodes to close their environments, then end them, and Ray if it was started here."""
        self._nodes.close()

    # --- waiting, and what can go wrong meanwhile ---

    def _wait(self, groups: Sequence[int]) -> int:
        """Wait for the first of ``groups``, in the order given, all nodes of which have answered, died or run out of time."""
        while True:
            waited = {self._flying[node]: node for g in groups for node in self._split.shards[g] if node in self._flying}
            for group in groups:
                if not any(node in self._flying for node in self._split.shards[group]):
                    return group
            left = min(self._due[group] for group in groups) - time.monotonic()
            every = len(waited) if len(groups) == 1 else 1
            ready, _ = self._nodes.ray.wait(list(waited), num_returns=every, timeout=max(0.0, min(left, LOOK_S)))
            self._collect([waited[ref] for ref in ready])
            now = time.monotonic()
            for group in groups:
                for node in self._split.shards[group] if now > self._due[group] else ():
                    if self._flying.pop(node, None) is not None:
                        member = self._nodes.members[node]
                        self._answers[node] = self._nodes.late(member, self._phase(node), self._seeds(member.envs))

    def _collect(self, nodes: Sequence[int]) -> None:
        """Take the answers of nodes that have answered or died: all at once, one by one if that fails."""
        refs = [self._flying.pop(node) for node in nodes]
        if not any(self._nodes.members[node].starting is not None for node in nodes):
            with contextlib.suppress(self._nodes.ray.exceptions.RayError):
                self._answers.update(zip(nodes, self._nodes.ray.get(refs, timeout=self._config.step_timeout), strict=True))
                return
        deadline = time.monotonic() + self._config.step_timeout
        for node, ref in zip(nodes, refs, strict=True):
            try:
                self._answers[node] = self._fetch(node, ref, deadline)
            except EnvError as error:
                self._answers[node] = error

    def _fetch(self, node: int, ref: Any, deadline: float) -> Answer:
        member = self._nodes.members[node]
        if member.starting is not None:
            self._nodes.opened(member, deadline, versions())
        return self._nodes.fetch(member, ref, self._phase(node), deadline, self._seeds(member.envs))

    def _lost(self, member: Member, slot: int, error: EnvError) -> None:
        """Raise, or put a new node in its place whose episodes count as truncated. It starts while others go on, and is waited for when
        its rows are."""
        if self._config.on_error == "raise":
            raise error
        self._restarts += 1
        if self.restarts > self._config.max_restarts:
            raise error
        seeds = self.buffers.seeds[member.envs.start : member.envs.stop]
        seeds[:] = [restart_seed(abs(int(seed)), self._restarts) for seed in seeds]
        self._restarts += self._inner.pop(member.number, 0)
        self._nodes.replace(member, self._order(member.envs, member.place.sharing))
        self._reborn.add(member.number)
        agents = self._agents[member.number]
        lost, last = self.buffers.part(slot, agents), self.buffers.part(1 - slot, agents)
        truncate(lost, last.obs, unscored=is_unscored(self.spec.metadata))

    def _phase(self, node: int) -> str:
        group = next(g for g, nodes in enumerate(self._split.shards) if node in nodes)
        return "reset" if self._orders.get(group, (STEP,))[0] == RESET else "step"

    def _seeds(self, envs: range) -> tuple[int | None, ...]:
        if not hasattr(self, "buffers"):
            return ()
        return tuple(int(seed) if seed >= 0 else None for seed in self.buffers.seeds[envs.start : envs.stop])
