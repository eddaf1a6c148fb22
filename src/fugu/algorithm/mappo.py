"""Multi-agent PPO: PPO with decentralised actors and a centralised critic (Yu et al. 2022, arXiv:2103.01955).

Actors choose by what their agent sees. Values, which only training needs, come from a network of its own, with an optimizer and a bound
on its gradient of its own, on what ``mappo.critic`` says: the state of the world, the observations of all its agents, or, with ``own``,
the agent's observation alone. The latter is independent PPO, and nothing else differs, so that the two can be compared.

To PPO's batch ``prepare`` adds ``agent`` and, where the critic sees all observations, ``together [segments, horizon, agents, *row]``.
Rows of agents that are dead, absent or waiting are masked as ever: they enter no loss and no statistics and have no advantage. What
the critic sees of an agent that is not there is the zeros that its row is filled with.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fugu.algorithm.config import MAPPOConfig, PPOConfig
from fugu.algorithm.contract import Metrics
from fugu.algorithm.make import load_weights, seeded
from fugu.algorithm.ppo import PPO, may_wait
from fugu.algorithm.scale import DecayingValueScale, PopArt
from fugu.errors import ConfigError
from fugu.ops.ppo_loss import explained_variance
from fugu.policy.actor_critic import Output
from fugu.policy.central import Actors, Critics, Parts, segments_together, together
from fugu.rollout.batch import Batch
from fugu.vector.device import DeviceVec
from fugu.vector.vecenv import VecEnv

if TYPE_CHECKING:
    from fugu.trainer.config import TrainConfig


MOST = 128
"""agents whose observations a critic sees together"""


def make(config: TrainConfig, vec: VecEnv | DeviceVec, device: torch.device) -> MAPPO:
    groups, sees = agent_groups(config.mappo, vec), critic_sees(config.mappo, vec)
    parts = Parts(vec.observation_space, config.mappo.state_key)
    told = config.mappo.agent_id and len(groups) > 1 and config.mappo.networks != "per_agent"
    actors = seeded(config.seed, lambda: Actors(parts, vec.action_space, config.policy, groups, told=told))
    critics = seeded(config.seed + 1, lambda: Critics(parts, config.policy, sees, groups, told=told))
    if config.policy.start is not None:
        load_weights(actors, config.policy.start)
    for net in (*actors.nets, *critics.nets):
        net.in_bf16 = config.precision == "bf16"
    actors, critics = actors.to(device).eval(), critics.to(device).eval()
    return MAPPO(actors, critics, config.ppo, config.mappo, num_agents=vec.num_agents, seed=config.seed, turns=may_wait(vec))


def agent_groups(config: MAPPOConfig, vec: VecEnv | DeviceVec) -> tuple[int, ...]:
    """The group of each agent of a world."""
    sizes = {agents.stop - agents.start for agents in vec.env_agents}
    if len(sizes) > 1:
        raise ConfigError(f"mappo needs worlds with equally many agents, got {sorted(sizes)}; train them in separate runs")
    (agents,) = sizes
    if config.networks == "groups" and len(config.groups) != agents:
        numbers = " ".join(map(str, [*config.groups, *[0] * agents][:agents]))
        raise ConfigError(
            f"mappo.groups={config.groups} is for {len(config.groups)} agents, {vec.spec.name} has {agents}; "
            f"try --mappo.groups {numbers}"
        )
    return {"shared": (0,) * agents, "per_agent": tuple(range(agents)), "groups": config.groups}[config.networks]


def critic_sees(config: MAPPOConfig, vec: VecEnv | DeviceVec) -> str:
    has_state = Parts(vec.observation_space, config.state_key).state_space is not None
    sees = config.critic
    if sees == "auto":
        sees = "state" if has_state else "observations"
    agents = vec.spec.num_agents
    if sees == "observations" and agents > MOST:
        raise ConfigError(
            f"a critic of the observations of all {agents} agents of {vec.spec.name} would see too much (mappo takes the agents of one "
            f"environment for a team, of at most {MOST}); use --mappo.critic own, or --algorithm ppo if they are independent copies"
        )
    if sees in ("state", "agent") and not has_state:
        raise ConfigError(
            f"mappo.critic={sees}, but {vec.spec.name} gives no state: its observation is no Dict with a part "
            f"{config.state_key!r}; use --mappo.critic observations"
        )
    return sees


class MAPPO(PPO):
    def __init__(
        self,
        actors: Actors,
        critics: Critics,
        config: PPOConfig,
        team: MAPPOConfig,
        *,
        num_agents: int,
        seed: int,
        turns: bool = False,
    ) -> None:
        policy: Any = actors
        config = dataclasses.replace(config, normalize_value=False)
        super().__init__(policy, config, num_agents=num_agents, seed=seed, turns=turns)
        self.actors, self.critics, self.agents = actors, critics, critics.agents
        self.modules["critic"] = critics
        if team.value_norm != "none":
            heads = [net.head for net in critics.nets]
            decay = team.value_decay
            scale = PopArt(decay, heads) if team.value_norm == "popart" else DecayingValueScale(decay)  # type: ignore[arg-type]
            self.value_scale = self.modules["value_scale"] = scale.to(self.device)

    def _look(self, obs: Tensor, state: Tensor | None, first: Tensor) -> Output:
        agent = self._agent(len(first))
        out = self.actors(obs, state, first, agent)
        seen = together(obs, self.agents) if self.critics.sees == "observations" else obs
        return out._replace(value=self.critics(seen, agent))

    def _look_again(self, batch: Batch) -> Output:
        agent = batch["agent"]
        out = self.actors(batch["obs"], batch.get("state"), batch["first"], agent)
        return out._replace(value=self.critics(batch["together" if "together" in batch else "obs"], agent))

    def _agent(self, rows: int) -> Tensor:
        """Which agent of its world each of ``rows`` rows, or segments, belongs to; they begin with a whole world."""
        return torch.arange(rows, device=self.device) % self.agents

    @torch.no_grad()
    def prepare(self, batch: Batch, progress: float | Tensor) -> Batch:
        batch = batch.to(self.device).also(agent=self._agent(batch.segments))
        if self.critics.sees == "observations":
            batch = batch.also(together=segments_together(batch["obs"], self.agents))
        return super().prepare(batch, progress)

    @torch.no_grad()
    def finish(self, batch: Batch) -> Metrics:
        self.actors.observe(batch["obs"], batch["mask"], batch["agent"])
        self.critics.observe(batch["obs"], batch["mask"], batch["agent"])
        return {"loss/explained_variance": explained_variance(batch["value"], batch["value_target"], batch["mask"])}

    def fuse(self, config: TrainConfig) -> None:
        """There are no fused kernels for two networks."""
