"""Multi-agent PPO: PPO with decentralised actors and a centralised critic (Yu et al. 2022, arXiv:2103.01955).

Actors choose by what their agent sees. Values, which only training needs, come from a separate network with its own optimizer and
its own bound on the gradient. ``mappo.critic`` says what it reads: the state of the world, the observations of all its agents, or,
with ``own``, the agent's observation alone. The latter is independent PPO; nothing else differs, so that the two can be compared.

To PPO's batch ``prepare`` adds ``agent`` and, where the critic sees all observations, ``together [segments, horizon, agents,
*row]``. Rows of agents that are dead, absent or waiting are masked as always: they enter no loss and no statistics and have no
advantage. Of an agent that is absent the critic sees the zeros that its row is filled with.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fugu.algorithm.config import MAPPOConfig, TeamPPOConfig
from fugu.algorithm.contract import Algorithm, Metrics, greedy_is_mode
from fugu.algorithm.parts.clipped import (
    Surrogate,
    chosen,
    entropy_at,
    gae_of,
    may_wait,
    state_of,
    stops_at,
    with_estimates,
    with_rewards,
)
from fugu.algorithm.parts.scale import DecayingValueScale, PopArt, RewardScale
from fugu.algorithm.settings import MAPPOSettings
from fugu.algorithm.setup import Agents, Setup, seeded
from fugu.errors import ConfigError
from fugu.ops.ppo_loss import explained_variance
from fugu.policy.actor_critic import Output
from fugu.policy.central import Actors, Critics, Parts, segments_together, together
from fugu.ranks import ALONE, Ranks
from fugu.rollout.acting import Act, Seen
from fugu.rollout.batch import Batch

MOST = 128
"""most agents whose observations a critic sees together"""


class MAPPO(Algorithm):
    Config = MAPPOSettings
    policy: Actors

    def __init__(
        self,
        actors: Actors,
        critics: Critics,
        config: TeamPPOConfig,
        team: MAPPOConfig,
        *,
        num_agents: int,
        seed: int = 0,
        turns: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        """``turns``: agents may have rows on which they wait for others."""
        super().__init__(actors, config, seed=seed, ranks=ranks)
        self.critic, self.config, self.turns, self.agents = critics, config, turns, critics.agents
        self.reward_scale = RewardScale(num_agents, config.gamma).to(self.device) if config.normalize_reward else None
        self.value_scale = _value_scale(team, critics)
        if self.value_scale is not None:
            self.value_scale.to(self.device)
        self.entropy_coef: float | Tensor = config.entropy_coef
        self.surrogate = Surrogate(self._look, actors.distribution, config, self.value_scale, turns=turns, ranks=ranks)
        self.enough = stops_at(config.target_kl)

    @classmethod
    def build(cls, setup: Setup) -> MAPPO:
        envs, c = setup.envs, setup.settings.mappo
        groups, sees = agent_groups(c, envs), critic_sees(c, envs)
        parts = Parts(envs.observation_space, c.state_key)
        told = c.agent_id and len(groups) > 1 and c.networks != "per_agent"
        actors = seeded(setup.seeds.weights, lambda: Actors(parts, envs.action_space, setup.net, groups, told=told))
        critics = seeded(setup.seeds.critic, lambda: Critics(parts, setup.net, sees, groups, told=told))
        return cls(
            setup.finished(actors),
            setup.placed(critics),
            setup.settings.ppo,
            c,
            num_agents=envs.num_agents,
            seed=setup.seeds.act,
            turns=may_wait(envs),
            ranks=setup.ranks,
        )

    @greedy_is_mode
    @torch.inference_mode()
    def act(self, seen: Seen) -> Act:
        agent, obs = self._agent(len(seen.first)), seen.obs
        out = self.policy(obs, state_of(self.policy, seen), seen.first, agent)
        value = self.critic(together(obs, self.agents) if self.critic.sees == "observations" else obs, agent)
        out = out._replace(value=value)
        return chosen(self.policy.distribution, out, seen, seen.generator or self.generator, self.value_scale)

    def _look(self, batch: Batch) -> Output:
        agent = batch["agent"]
        out = self.policy(batch["obs"], batch.get("state"), batch["first"], agent)
        return out._replace(value=self.critic(batch["together" if "together" in batch else "obs"], agent))

    def _agent(self, rows: int) -> Tensor:
        """Return which agent of its world each of ``rows`` rows, or segments, belongs to; they begin with a whole world."""
        return torch.arange(rows, device=self.device) % self.agents

    @torch.no_grad()
    def prepare(self, batch: Batch, progress: float | Tensor) -> Batch:
        c = self.config
        self.entropy_coef = entropy_at(c, progress)
        batch = batch.also_once(agent=self._agent(batch.segments))
        if self.critic.sees == "observations":
            batch = batch.also(together=segments_together(batch["obs"], self.agents))
        batch = with_rewards(batch, c, self.reward_scale, turns=self.turns)
        advantage, target = gae_of(batch, c.gamma, c.lam, turns=self.turns)
        return with_estimates(batch, c, advantage, target, self.value_scale, progress, self.ranks)

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        return self.surrogate(batch, self.entropy_coef)

    @torch.no_grad()
    def finish(self, batch: Batch) -> Metrics:
        self.policy.observe(batch["obs"], batch["mask"], batch["agent"])
        self.critic.observe(batch["obs"], batch["mask"], batch["agent"])
        return {"loss/explained_variance": explained_variance(batch["value"], batch["value_target"], batch["mask"], self.ranks)}

    def restarted(self) -> None:
        if self.reward_scale is not None:
            self.reward_scale.running.zero_()


def _value_scale(team: MAPPOConfig, critics: Critics) -> DecayingValueScale | None:
    if team.value_norm == "none":
        return None
    if team.value_norm == "popart":
        return PopArt(team.value_decay, [net.head for net in critics.nets])  # type: ignore[misc]
    return DecayingValueScale(team.value_decay)


def agent_groups(config: MAPPOConfig, envs: Agents) -> tuple[int, ...]:
    """Return the group of each agent of a world."""
    sizes = {agents.stop - agents.start for agents in envs.env_agents}
    if len(sizes) > 1:
        raise ConfigError(f"mappo needs worlds with equally many agents, got {sorted(sizes)}; train them in separate runs")
    (agents,) = sizes
    if config.networks == "groups" and len(config.groups) != agents:
        numbers = " ".join(map(str, [*config.groups, *[0] * agents][:agents]))
        raise ConfigError(
            f"mappo.groups={config.groups} is for {len(config.groups)} agents, {envs.spec.name} has {agents}; "
            f"try --mappo.groups {numbers}"
        )
    return {"shared": (0,) * agents, "per_agent": tuple(range(agents)), "groups": config.groups}[config.networks]


def critic_sees(config: MAPPOConfig, envs: Agents) -> str:
    """Return what the critic reads, after checking that the environments have it."""
    has_state = Parts(envs.observation_space, config.state_key).state_space is not None
    sees = config.critic
    if sees == "auto":
        sees = "state" if has_state else "observations"
    agents = envs.spec.num_agents
    if sees == "observations" and agents > MOST:
        raise ConfigError(
            f"a critic of the observations of all {agents} agents of {envs.spec.name} would see too much (mappo takes the agents of "
            f"one environment for a team, of at most {MOST}); use --mappo.critic own, or --algorithm ppo if they are independent copies"
        )
    if sees in ("state", "agent") and not has_state:
        raise ConfigError(
            f"mappo.critic={sees}, but {envs.spec.name} gives no state: its observation is no Dict with a part "
            f"{config.state_key!r}; use --mappo.critic observations"
        )
    return sees
