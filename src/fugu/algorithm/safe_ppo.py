"""PPO under limits on what episodes cost: PPO-Lagrangian (Ray, Achiam & Amodei 2019), with multipliers by SGD, Adam or PID.

Maximise the return subject to ``cost_k <= limit_k`` for every cost k, in undiscounted cost per episode, on average. A cost critic
of its own, one head per cost, foretells discounted costs; ``cost_value [.., costs]`` is stored with every row, and the costs'
advantages come from the same GAE as the reward's. The policy follows

    A = (A_reward - sum_k lambda_k A_k) / (1 + sum_k lambda_k)

put together in real units and only then normalised, once: standardising the parts apart makes lambda meaningless, and with it a fast
policy can settle on ignoring the limit. The division keeps the step bounded as lambda grows. ``prepare`` first moves the multipliers by
what the episodes of the batch cost (``multiplier.py``), then estimates. With lambda at 0 all of it is PPO, to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fugu.algorithm.config import PPOConfig, SafeConfig
from fugu.algorithm.contract import Metrics
from fugu.algorithm.make import default_policy, seeded
from fugu.algorithm.multiplier import CostMeter, Multiplier
from fugu.algorithm.ppo import PPO, gae_of, may_wait
from fugu.algorithm.scale import RewardScale, ValueScale
from fugu.emulation.env import cost_metric
from fugu.errors import ConfigError
from fugu.ops.gather import flat, time_major, unflat
from fugu.ops.ppo_loss import by_importance, explained_variance, row_weight
from fugu.policy.actor_critic import ActorCritic
from fugu.policy.critic import Critic
from fugu.rollout.batch import Batch
from fugu.rollout.onpolicy import Act
from fugu.vector.device import DeviceVec
from fugu.vector.vecenv import VecEnv

if TYPE_CHECKING:
    from fugu.trainer.config import TrainConfig

CLOSE = 0.1
"""a limit counts as kept if it is missed by no more than this share of it, over the last few batches"""


def make(config: TrainConfig, vec: VecEnv | DeviceVec, device: torch.device) -> SafePPO:
    costs = vec.spec.costs
    if not costs:
        raise ConfigError(
            f"algorithm=safe_ppo bounds costs, and {vec.spec.name} has none. Name them in an attribute costs of the environment and "
            "put them into info (docs/safe.md), try knapsack_cmdp, or use --algorithm ppo"
        )
    if config.ppo.vtrace:
        raise ConfigError("algorithm=safe_ppo estimates costs once per batch, not anew in each minibatch; use --no-vtrace")
    config.safe.limits(costs)  # refuses what does not fit before any network is built
    policy = default_policy(config, vec, device)
    critic = seeded(config.seed, lambda: Critic(vec.observation_space, config.policy, len(costs))).to(device).eval()
    return SafePPO(
        policy, critic, config.ppo, config.safe, costs=costs, num_agents=vec.num_agents, seed=config.seed, turns=may_wait(vec)
    )


class SafePPO(PPO):
    def __init__(
        self,
        policy: ActorCritic,
        cost_critic: Critic,
        config: PPOConfig,
        safe: SafeConfig,
        *,
        costs: tuple[str, ...],
        num_agents: int,
        seed: int,
        turns: bool = False,
    ) -> None:
        super().__init__(policy, config, num_agents=num_agents, seed=seed, turns=turns)
        self.safe, self.costs = safe, costs
        self.cost_critic = cost_critic
        self.cost_scale = ValueScale((len(costs),)).to(self.device)
        self.multiplier = Multiplier(safe.limits(costs), safe).to(self.device)
        self.meter = CostMeter(num_agents, len(costs)).to(self.device)
        self.modules |= {
            "cost_critic": cost_critic,
            "cost_scale": self.cost_scale,
            "multiplier": self.multiplier,
            "cost_meter": self.meter,
        }
        self.cost_units: list[RewardScale] = []
        """of costs that are learned from in units of the deviation of their discounted sums, because rewards are, too"""
        if config.normalize_reward:
            self.cost_units = [RewardScale(num_agents, safe.cost_gamma).to(self.device) for _ in costs]
            self.modules["cost_units"] = nn.ModuleList(self.cost_units)
        self._over_limit = torch.zeros(len(costs), dtype=torch.float64, device=self.device)

    @property
    def columns(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        return {**super().columns, "cost_value": ((len(self.costs),), torch.float32)}

    @torch.inference_mode()
    def act(
        self,
        obs: Tensor,
        state: Tensor | None,
        first: Tensor,
        action_mask: Tensor | None,
        *,
        greedy: bool = False,
        into: Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> Act:
        done = super().act(obs, state, first, action_mask, greedy=greedy, into=into, generator=generator)
        if not greedy:
            value = self.cost_scale.real(self.cost_critic(self.policy.structured(obs)))
            done.columns = {**done.columns, "cost_value": value}
        return done

    @torch.no_grad()
    def prepare(self, batch: Batch, progress: float | Tensor) -> Batch:
        batch = batch.to(self.device)
        self._charge(batch)
        batch = super().prepare(batch.also(cost=self._in_units(batch)), progress)
        self.cost_scale.update(batch["cost_target"], batch["mask"])
        return batch

    def _in_units(self, batch: Batch) -> Tensor:
        """The costs that are learned from: as they are, or scaled and cut off as rewards are."""
        if not self.cost_units:
            return batch["cost"]
        ended, clip = batch["terminated"] | batch["truncated"], self.config.reward_clip
        scaled = [units(batch["cost"][..., k], ended, batch["mask"]) for k, units in enumerate(self.cost_units)]
        cost = torch.stack(scaled, -1)
        return cost if clip is None else cost.clamp(-clip, clip)

    def _charge(self, batch: Batch) -> None:
        """Move the multipliers by what the episodes that ended in this batch cost."""
        ended = batch["terminated"] | batch["truncated"]
        cost = torch.where(ended[..., None], self.meter(batch["cost"], ended), 0.0)  # [segments, horizon, costs]
        episodes = ended.sum()
        many = episodes.clamp(min=1)
        self.multiplier.update(cost.sum((0, 1)) / many, episodes)
        over = ((cost > self.multiplier.limit) & ended[..., None]).sum((0, 1)) / many
        self._over_limit.copy_(torch.where(episodes > 0, over, self._over_limit))

    def estimates(self, batch: Batch) -> dict[str, Tensor]:
        added = super().estimates(batch)
        price = self.multiplier.value.to(torch.float32)  # [costs]
        advantage, targets = added["advantage"], []
        for k in range(len(self.costs)):
            foretold, bootstrap = batch["cost_value"][..., k], batch["cost_bootstrap"][..., k]
            one = batch.also(reward=batch["cost"][..., k], value=foretold, bootstrap=bootstrap)
            cost_advantage, target = gae_of(one, self.safe.cost_gamma, self.safe.cost_lam, turns=self.turns)
            advantage = advantage - price[k] * cost_advantage
            targets.append(target)
        return {**added, "advantage": advantage / (1 + price.sum()), "cost_target": torch.stack(targets, -1)}

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        total, metrics = super().loss(batch)
        batch = batch.compact()
        mask = batch["mask"]
        by_time = time_major(mask)
        said = self.cost_critic(self.policy.structured(flat(batch["obs"], by_time)))  # [rows, costs]
        error = unflat(said, mask, by_time) - self.cost_scale.scaled(batch["cost_target"])
        squared = torch.where(mask[..., None], error, 0.0).square().mean(-1)
        weight = row_weight(mask)
        if "importance" in batch:
            weight = by_importance(weight, batch["importance"][:, None])
        cost_loss = 0.5 * (weight * squared).sum()
        # the two share no weights, and each has its own optimizer and bound on the gradient: the policy learns as without it
        return total + self.config.value_coef * cost_loss, {**metrics, "loss/cost_value": cost_loss.detach()}

    def merit(self, score: float) -> float | None:
        """A policy that breaks a limit has no merit, whatever its return."""
        return score if bool((self.multiplier.smoothed <= CLOSE).all()) else None

    @torch.no_grad()
    def finish(self, batch: Batch) -> Metrics:
        said = super().finish(batch)
        mask, limit = batch["mask"], self.multiplier.limit
        explained = [
            explained_variance(batch["cost_value"][..., k], batch["cost_target"][..., k], mask) for k in range(len(self.costs))
        ]
        said["loss/cost_explained_variance"] = torch.stack(explained).mean()
        for k, name in enumerate(self.costs):
            for metric, value in (("limit", limit), ("lambda", self.multiplier.value), ("over_limit", self._over_limit)):
                said[cost_metric(f"safe/{metric}", name, self.costs)] = value[k].float()
        return said

    def restarted(self) -> None:
        super().restarted()
        self.meter.running.zero_()
        for units in self.cost_units:
            units.running.zero_()

    def state(self) -> dict[str, Tensor]:
        return {**super().state(), "over_limit": self._over_limit.clone()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        super().load_state(state)
        self._over_limit.copy_(state["over_limit"])
