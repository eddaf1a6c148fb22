"""Proximal policy optimization on segments (Schulman et al. 2017, arXiv:1707.06347).

In: batches with ``action``, ``logprob`` and ``value`` as ``act`` stored them. ``prepare`` adds ``advantage`` and ``value_target`` by
GAE, and the priority of each segment if segments are drawn by it. ``loss`` evaluates the policy anew on whole segments.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fugu.algorithm.config import PPOConfig
from fugu.algorithm.contract import Algorithm, Metrics, greedy_is_mode
from fugu.algorithm.parts.clipped import (
    Surrogate,
    act_with_value,
    entropy_at,
    gae_of,
    may_wait,
    stops_at,
    with_estimates,
    with_rewards,
)
from fugu.algorithm.parts.scale import RewardScale, ValueScale
from fugu.algorithm.settings import PPOSettings
from fugu.algorithm.setup import Setup
from fugu.ops.ppo_loss import explained_variance
from fugu.policy.actor_critic import ActorCritic, Output
from fugu.ranks import ALONE, Ranks
from fugu.rollout.acting import Act, Seen
from fugu.rollout.batch import Batch


class PPO(Algorithm):
    Config = PPOSettings
    policy: ActorCritic

    def __init__(
        self,
        policy: ActorCritic,
        config: PPOConfig,
        *,
        num_agents: int,
        seed: int = 0,
        turns: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        """``turns``: agents may have rows on which they wait for others."""
        super().__init__(policy, config, seed=seed, ranks=ranks)
        self.config, self.turns = config, turns
        self.reward_scale = RewardScale(num_agents, config.gamma).to(self.device) if config.normalize_reward else None
        self.value_scale = ValueScale().to(self.device) if config.normalize_value else None
        self.entropy_coef: float | Tensor = config.entropy_coef
        self.surrogate = Surrogate(self._look, policy.distribution, config, self.value_scale, turns=turns, ranks=ranks)
        self.enough = stops_at(config.target_kl)

    @classmethod
    def build(cls, setup: Setup) -> PPO:
        envs, seed = setup.envs, setup.seeds.act
        policy = setup.policy()
        return cls(policy, setup.settings.ppo, num_agents=envs.num_agents, seed=seed, turns=may_wait(envs), ranks=setup.ranks)

    @greedy_is_mode
    @torch.inference_mode()
    def act(self, seen: Seen) -> Act:
        return act_with_value(self.policy, seen, seen.generator or self.generator, self.value_scale)

    @torch.no_grad()
    def prepare(self, batch: Batch, progress: float | Tensor) -> Batch:
        c = self.config
        self.entropy_coef = entropy_at(c, progress)
        batch = with_rewards(batch, c, self.reward_scale, turns=self.turns)
        advantage, target = gae_of(batch, c.gamma, c.lam, turns=self.turns)
        return with_estimates(batch, c, advantage, target, self.value_scale, progress, self.ranks)

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        return self.surrogate(batch, self.entropy_coef)

    def _look(self, batch: Batch) -> Output:
        return self.policy(batch["obs"], batch.get("state"), batch["first"])

    @torch.no_grad()
    def finish(self, batch: Batch) -> Metrics:
        """Take the batch into the statistics of observations, for the policy that acts next."""
        self.policy.observe(batch["obs"], batch["mask"])
        return {"loss/explained_variance": explained_variance(batch["value"], batch["value_target"], batch["mask"], self.ranks)}

    def restarted(self) -> None:
        if self.reward_scale is not None:
            self.reward_scale.running.zero_()
