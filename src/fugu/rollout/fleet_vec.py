"""The environments of a fleet, as policies, checks and scores need to know them: spaces and agents, but no rows.

In: a config for all environments, and what each node is to make. Out: nodes that have made their environments, and their spec.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from fugu.emulation.env import EnvSpec
from fugu.errors import ConfigError
from fugu.rollout.fleet_node import Built, FleetNode, Opened, Order
from fugu.vector.config import VectorConfig
from fugu.vector.parcel import pickled
from fugu.vector.ray_actor import versions
from fugu.vector.ray_nodes import GRACE_S, Member, Nodes
from fugu.vector.runner import agent_slices, shared_spec, split

Orders = Callable[[int, range, int], Order]
"""function of a node's number, its environments, and how many nodes are on its machine, that returns what it makes"""


class FleetVec:
    def __init__(self, config: VectorConfig, nodes: int, address: str | None, orders: Orders) -> None:
        if nodes > config.num_envs:
            raise ConfigError(
                f"rollout.nodes={nodes} is more than num_envs={config.num_envs}; try --rollout.nodes {config.num_envs}"
            )
        self.config, self._orders = config, orders
        self.nodes = Nodes(FleetNode, config, address, nodes)
        self.restarts = 0
        """nodes that were replaced"""
        self.envs = split(config.num_envs, nodes, 1).envs
        """the environments of each node"""
        self._versions = {**versions(), "torch": torch.__version__}
        try:
            for number, (place, envs) in enumerate(zip(self.nodes.cluster.places(nodes), self.envs, strict=True)):
                self.nodes.launch(envs, place, self._order(number, envs, place.sharing))
            opened = [self.opened(member) for member in self.nodes.members]
            self.spec: EnvSpec = shared_spec([each.spec for each in opened])
        except BaseException:
            self.close()
            raise
        self.env_agents = agent_slices([count for each in opened for count in each.agents])
        self.agents = [slice(self.env_agents[e.start].start, self.env_agents[e.stop - 1].stop) for e in self.envs]
        """the agents of each node"""
        self.num_envs, self.num_agents = config.num_envs, self.env_agents[-1].stop
        self.observation_space, self.action_space = self.spec.observation_space, self.spec.action_space
        self.obs_layout = self.spec.obs_layout
        self.num_choices = self.spec.choices
        self.masks_actions = any(each.masks_actions for each in opened)

    def _order(self, number: int, envs: range, sharing: int) -> bytes:
        order = self._orders(number, envs, sharing)
        return pickled(order, "the environment", "Give it by name, file.py:Class, or as a function that makes it")

    def opened(self, member: Member) -> Opened:
        """Wait until a node has made its environments; return what they are."""
        return self.nodes.opened(member, time.monotonic() + self.config.start_timeout + GRACE_S, self._versions)

    def build(self) -> list[Built]:
        """Have all nodes make their algorithm and source."""
        refs = [member.actor.build.remote() for member in self.nodes.members]
        deadline = time.monotonic() + self.config.start_timeout + GRACE_S
        return [
            self.nodes.said(member, self.nodes.fetch(member, ref, "make", deadline), "make")
            for member, ref in zip(self.nodes.members, refs, strict=True)
        ]

    def replace(self, member: Member) -> Member:
        """Put another node in the place of one that was lost; it makes all it needs by itself, before what it is asked next."""
        fresh = self.nodes.replace(member, self._order(member.number, member.envs, member.place.sharing))
        fresh.actor.build.remote()
        return fresh

    def close(self) -> Any:
        return self.nodes.close()
