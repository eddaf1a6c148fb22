"""PPO under limits on the cost of episodes: PPO-Lagrangian (Ray, Achiam & Amodei 2019), with multipliers by SGD, Adam or PID.

Maximise the return subject to ``cost_k <= limit_k`` for every cost k, in undiscounted cost per episode, on average. A separate cost
critic with one head per cost predicts discounted costs; ``cost_value [.., costs]`` is stored with every row, and the costs'
advantages come from the same GAE as the reward's. The policy follows

    A = (A_reward - sum_k lambda_k A_k) / (1 + sum_k lambda_k)

combined in real units and only then normalised, once: standardising the parts separately would make lambda meaningless, and a fast
policy could then settle on ignoring the limit. The division keeps the step bounded as lambda grows. ``prepare`` first moves the
multipliers by what the episodes of the batch cost (``multiplier.py``), then estimates. With lambda at 0 all of it is PPO, to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fugu.algorithm.config import PPOConfig, SafeConfig
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
from fugu.algorithm.parts.multiplier import CostMeter, Multiplier, violation
from fugu.algorithm.parts.scale import RewardScale, ValueScale
from fugu.algorithm.settings import SafePPOSettings
from fugu.algorithm.setup import Setup, seeded
from fugu.emulation.env import cost_metric
from fugu.errors import ConfigError
from fugu.ops.gather import flat, time_major, unflat
from fugu.ops.ppo_loss import by_importance, explained_variance, row_weight
from fugu.policy.actor_critic import ActorCritic, Output
from fugu.policy.critic import Critic
from fugu.ranks import ALONE, Ranks
from fugu.rollout.acting import Act, Seen
from fugu.rollout.batch import Batch

CLOSE = 0.1
"""a limit counts as kept if it is missed by at most this share of it, over the last few batches"""


class SafePPO(Algorithm):
    Config = SafePPOSettings
    policy: ActorCritic
    over_limit: Tensor

    def __init__(
        self,
        policy: ActorCritic,
        cost_critic: Critic,
        config: PPOConfig,
        safe: SafeConfig,
        *,
        costs: tuple[str, ...],
        num_agents: int,
        seed: int = 0,
        turns: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        """``turns``: agents may have rows on which they wait for others."""
        super().__init__(policy, config, seed=seed, ranks=ranks)
        self.config, self.safe, self.costs, self.turns = config, safe, costs, turns
        self.reward_scale = RewardScale(num_agents, config.gamma).to(self.device) if config.normalize_reward else None
        self.value_scale = ValueScale().to(self.device) if config.normalize_value else None
        self.cost_critic = cost_critic
        self.cost_scale = ValueScale((len(costs),)).to(self.device)
        self.multiplier = Multiplier(safe.limits(costs), safe).to(self.device)
        self.cost_meter = CostMeter(num_agents, len(costs)).to(self.device)
        units = [RewardScale(num_agents, safe.cost_gamma).to(self.device) for _ in costs]
        self.cost_units = nn.ModuleList(units) if config.normalize_reward else None
        """deviation of the discounted sums of costs, by which costs are scaled if rewards are"""
        self.register_buffer("over_limit", torch.zeros(len(costs), dtype=torch.float64, device=self.device))
        """share of the episodes that ended last which cost more than the limit"""
        self.entropy_coef: float | Tensor = config.entropy_coef
        self.surrogate = Surrogate(self._look, policy.distribution, config, self.value_scale, turns=turns, ranks=ranks)
        self.enough = stops_at(config.target_kl)

    @classmethod
    def build(cls, setup: Setup) -> SafePPO:
        envs, settings = setup.envs, setup.settings
        costs = envs.spec.costs
        if not costs:
            raise ConfigError(
                f"algorithm=safe_ppo bounds costs, and {envs.spec.name} has none. Name them in an attribute costs of the environment "
                "and put them into info (docs/safe.md), try knapsack_cmdp, or use --algorithm ppo"
            )
        if settings.ppo.vtrace:
            raise ConfigError("algorithm=safe_ppo estimates costs once per batch, not anew in each minibatch; use --no-vtrace")
        settings.safe.limits(costs)  # refuses what does not fit before any network is built
        policy = setup.policy()
        critic = setup.placed(seeded(setup.seeds.weights, lambda: Critic(envs.observation_space, setup.net, len(costs))))
        return cls(
            policy,
            critic,
            settings.ppo,
            settings.safe,
            costs=costs,
            num_agents=envs.num_agents,
            seed=setup.seeds.act,
            turns=may_wait(envs),
            ranks=setup.ranks,
        )

    @greedy_is_mode
    @torch.inference_mode()
    def act(self, seen: Seen) -> Act:
        done = act_with_value(self.policy, seen, seen.generator or self.generator, self.value_scale)
        if not seen.greedy:
            value = self.cost_scale.real(self.cost_critic(self.policy.structured(seen.obs)))
            done.columns = {**done.columns, "cost_value": value}
        return done

    @torch.no_grad()
    def prepare(self, batch: Batch, progress: float | Tensor) -> Batch:
        c = self.config
        self.entropy_coef = entropy_at(c, progress)
        self._charge(batch)
        batch = batch.also(cost=self._in_units(batch))
        batch = with_rewards(batch, c, self.reward_scale, turns=self.turns)
        advantage, target = gae_of(batch, c.gamma, c.lam, turns=self.turns)
        advantage, cost_target = self._less_costs(batch, advantage)
        batch = batch.also(cost_target=cost_target)
        batch = with_estimates(batch, c, advantage, target, self.value_scale, progress, self.ranks)
        self.cost_scale.update(cost_target, batch["mask"])
        return batch

    def _in_units(self, batch: Batch) -> Tensor:
        """Return the costs to learn from: as they are, or scaled and bounded like rewards."""
        if self.cost_units is None:
            return batch["cost"]
        ended, clip = batch["terminated"] | batch["truncated"], self.config.reward_clip
        scaled = [units(batch["cost"][..., k], ended, batch["mask"]) for k, units in enumerate(self.cost_units)]
        cost = torch.stack(scaled, -1)
        return cost if clip is None else cost.clamp(-clip, clip)

    def _charge(self, batch: Batch) -> None:
        """Move the multipliers by the cost of the episodes that ended in this batch."""
        ended = batch["terminated"] | batch["truncated"]
        of_episodes = self.cost_meter(batch["cost"], ended)  # [segments, horizon, costs]
        if "lost" in batch:
            ended = ended & ~batch["lost"]
        cost = torch.where(ended[..., None], of_episodes, 0.0)
        episodes = self.ranks.sum(ended.sum())
        many = episodes.clamp(min=1)
        self.multiplier.update(self.ranks.sum(cost.sum((0, 1))) / many, episodes)
        over = self.ranks.sum(((cost > self.multiplier.limit) & ended[..., None]).sum((0, 1))) / many
        self.over_limit.copy_(torch.where(episodes > 0, over, self.over_limit))

    def _less_costs(self, batch: Batch, advantage: Tensor) -> tuple[Tensor, Tensor]:
        """Return the advantage after costs, at their current prices, and the targets of the cost critic."""
        price = self.multiplier.value.to(torch.float32)  # [costs]
        targets = []
        for k in range(len(self.costs)):
            foretold, bootstrap = batch["cost_value"][..., k], batch["cost_bootstrap"][..., k]
            one = batch.also(reward=batch["cost"][..., k], value=foretold, bootstrap=bootstrap)
            cost_advantage, target = gae_of(one, self.safe.cost_gamma, self.safe.cost_lam, turns=self.turns)
            advantage = advantage - price[k] * cost_advantage
            targets.append(target)
        return advantage / (1 + price.sum()), torch.stack(targets, -1)

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        total, metrics = self.surrogate(batch, self.entropy_coef)
        batch = batch.compact()
        mask = batch["mask"]
        by_time = time_major(mask)
        said = self.cost_critic(self.policy.structured(flat(batch["obs"], by_time)))  # [rows, costs]
        error = unflat(said, mask, by_time) - self.cost_scale.scaled(batch["cost_target"])
        squared = torch.where(mask[..., None], error, 0.0).square().mean(-1)
        weight = row_weight(mask, self.ranks)
        if "importance" in batch:
            weight = by_importance(weight, batch["importance"][:, None], self.ranks)
        cost_loss = 0.5 * (weight * squared).sum()
        # the two share no weights, and each has its own optimizer and bound on the gradient: the policy learns as without it
        return total + self.config.value_coef * cost_loss, {**metrics, "loss/cost_value": cost_loss.detach()}

    def _look(self, batch: Batch) -> Output:
        return self.policy(batch["obs"], batch.get("state"), batch["first"])

    def merit(self, score: float, costs: Mapping[str, float]) -> float | None:
        """Return the score of a policy that keeps its limits, in these episodes or of late; one that breaks them has no merit."""
        if not costs:
            return score if bool((self.multiplier.smoothed <= CLOSE).all()) else None
        spent = torch.tensor([costs[name] for name in self.costs], dtype=torch.float64, device=self.device)
        return score if bool((violation(spent, self.multiplier.limit) <= CLOSE).all()) else None

    @torch.no_grad()
    def finish(self, batch: Batch) -> Metrics:
        self.policy.observe(batch["obs"], batch["mask"])
        mask, limit = batch["mask"], self.multiplier.limit
        pairs = [(batch["value"], batch["value_target"])]
        pairs += [(batch["cost_value"][..., k], batch["cost_target"][..., k]) for k in range(len(self.costs))]
        explained = [explained_variance(value, target, mask, self.ranks) for value, target in pairs]
        said = {"loss/explained_variance": explained[0], "loss/cost_explained_variance": torch.stack(explained[1:]).mean()}
        for k, name in enumerate(self.costs):
            for metric, value in (("limit", limit), ("lambda", self.multiplier.value), ("over_limit", self.over_limit)):
                said[cost_metric(f"safe/{metric}", name, self.costs)] = value[k].float()
        return said

    def restarted(self) -> None:
        self.cost_meter.running.zero_()
        for units in (self.reward_scale, *(self.cost_units or ())):
            if units is not None:
                units.running.zero_()
