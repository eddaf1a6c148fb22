"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905; for choices: Christodoulou 2019, arXiv:1910.07207).

It learns from a replay: every row is used many times. Two critics judge state and action; a policy is moved to where the lower of
the two is high, less ``temperature * log pi``; the temperature is learned so that the entropy comes to a target. Critics learn
towards ``reward + gamma * (1 - terminated) * V(next)``: a truncated episode goes on from its true last observation, which is the row
after. ``V`` is that of slow copies. Actions that are numbers are squashed into their bounds (``policy/squashed.py``); for one choice
among several all sums over it are exact, and forbidden choices have no part in them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fugu.algorithm.contract import Algorithm, Metrics, greedy_is_mode
from fugu.algorithm.parts.judges import Judge, Judges
from fugu.algorithm.parts.soft import Rows, SoftLosses, rows_of
from fugu.algorithm.settings import Settings
from fugu.algorithm.setup import Setup, seeded
from fugu.errors import ConfigError
from fugu.policy.actor_critic import ActorCritic
from fugu.policy.net import leaves
from fugu.policy.squashed import Squashed
from fugu.rollout.acting import Act, Seen
from fugu.rollout.batch import Batch
from fugu.rollout.config import ReplayConfig
from fugu.rollout.envs import Envs
from fugu.rollout.source import Source


@dataclass(frozen=True, kw_only=True)
class SACConfig:
    gamma: float = 0.99
    """Discount per step, 0 to 1"""
    tau: float = 0.005
    """Share of the critics that their slow copies take over after each step, above 0 and up to 1"""
    temperature: float = 1.0
    """Reward that a nat of entropy is worth, at the start or, without learn_temperature, for good"""
    learn_temperature: bool = True
    """Change the temperature until the entropy is what it should be"""
    target_entropy: float | None = None
    """Entropy that the policy should have, in nats, with numbers in units of half their range; none: minus one for each number of an
    action, and for a choice target_share of the most that is possible"""
    target_share: float = 0.3
    """Share of the greatest entropy that the choice of a discrete action should have, 0 to 1"""
    critic_rate: float = 1.0
    """Factor on the learning rate for the critics"""

    def __post_init__(self) -> None:
        for name in ("gamma", "target_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"sac.{name}={getattr(self, name)} must be between 0 and 1")
        if not 0 < self.tau <= 1:
            raise ConfigError(f"sac.tau={self.tau} must be above 0 and at most 1; try --sac.tau 0.005")
        for name in ("temperature", "critic_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"sac.{name}={getattr(self, name)} must be above 0; try --sac.{name} 1")
        if self.target_entropy is not None and not math.isfinite(self.target_entropy):
            raise ConfigError(f"sac.target_entropy={self.target_entropy} must be a finite number, or none")


@dataclass(frozen=True, kw_only=True)
class SACSettings(Settings):
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """Rows that are kept and drawn again"""
    sac: SACConfig = field(default_factory=SACConfig)
    """Soft actor-critic"""


class SAC(Algorithm):
    Config = SACSettings

    def __init__(self, policy: ActorCritic, settings: SACSettings, *, critic: Judges, **rest: object) -> None:
        super().__init__(policy, settings, **rest)  # type: ignore[arg-type]
        c = self.config = settings.sac
        self.critic = critic
        self.slow = copy.deepcopy(critic).requires_grad_(False)
        self._weights: list[Tensor] = list(critic.parameters())
        self._slow_weights: list[Tensor] = list(self.slow.parameters())
        start = torch.full((), math.log(c.temperature), device=self.device)
        self.log_temperature = nn.Parameter(start, requires_grad=c.learn_temperature)
        actions = policy.distribution
        default = c.target_share * math.log(actions.choices) if actions.choices else -float(actions.reals)
        self.target_entropy = default if c.target_entropy is None else c.target_entropy
        self.rates = {"critic": c.critic_rate}
        self.native: SoftLosses | None = None
        """computes the losses natively where that is possible; None: torch does"""

    @classmethod
    def build(cls, setup: Setup) -> SAC:
        if setup.net.core != "none":
            raise ConfigError(f"sac has no memory, so policy.core={setup.net.core} is of no use; type --policy.core none")
        policy = setup.policy()
        if not isinstance(policy, ActorCritic):
            raise ConfigError(f"sac needs a policy that is no {type(policy).__name__}; type --policy.net default")
        actions = policy.distribution
        if actions.reals == actions.dims:
            policy.distribution = Squashed(setup.envs.action_space).to(setup.device)
        elif not actions.heads == actions.dims == 1:
            raise ConfigError(
                f"sac acts in bounded Boxes or chooses one of several actions, not in {setup.envs.action_space}; use --algorithm ppo"
            )
        made = seeded(setup.seeds.critic, lambda: Judges(Judge(policy, setup.net) for _ in range(2)))
        return cls(policy, setup.settings, critic=setup.placed(made), seed=setup.seeds.act, ranks=setup.ranks)

    def source(self, envs: Envs) -> Source:
        return envs.replay(self, self.settings.replay)

    @greedy_is_mode
    def act(self, seen: Seen) -> Act:
        params = self.policy(seen.obs, None, seen.first).params
        actions = self.policy.distribution
        if seen.greedy:
            action = actions.mode(params, seen.action_mask)
        else:
            action = actions.sample(params, seen.action_mask, seen.generator or self.generator)
        return Act(actions.to_env(action), columns={"action": action})

    def losses(self, batch: Batch) -> Iterator[tuple[Tensor, Metrics]]:
        rows = rows_of(batch, self.ranks)
        loss, found, error = self._critic_loss(rows)
        if "importance" in batch:
            batch.hand_back(priority=error.abs().mean(0).view(batch.segments, -1).mean(1))
        yield loss, {"loss/value": loss.detach(), "loss/q": (rows.share * found.mean(0)).sum()}
        loss, entropy = self._policy_loss(rows)
        yield loss, {"loss/policy": loss.detach(), "loss/entropy": entropy}
        if self.config.learn_temperature:
            share = rows.share.sum()  # of all ranks' rows
            yield (
                self.log_temperature * (entropy - share * self.target_entropy),
                {"loss/temperature": share * self._temperature},
            )
        self._follow()

    def finish(self, batch: Batch) -> Metrics:
        self.policy.observe(batch["obs"], batch["mask"])
        return {}

    # --- targets and losses ---

    @property
    def _temperature(self) -> Tensor:
        return self.log_temperature.detach().exp()

    @torch.no_grad()
    def _target(self, rows: Rows) -> Tensor:
        """Return what critics should say, ``[rows]``."""
        value = self._value(self.slow, rows.next_obs, rows.next_mask)
        return torch.where(rows.valid, rows.reward + self.config.gamma * torch.where(rows.terminated, 0.0, value), 0.0)

    def _value(self, critic: nn.Module, obs: Tensor, mask: Tensor | None) -> Tensor:
        """Return the soft value of the policy, the lower one of the critics', ``[rows]``."""
        actions, seen = self.policy.distribution, self._seen(obs)
        params = self._params(obs)
        if actions.reals:
            action, logprob = actions.sample_with_logprob(params, None, self.generator)
            return critic(seen, action).amin(0) - self._temperature * logprob
        logp = actions.logits(params, mask).log_softmax(-1)
        return (logp.exp() * (critic(seen, None).amin(0) - self._temperature * logp)).sum(-1)

    def _critic_loss(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss of the critics, what they say, and what that is off by, ``[critics, rows]``."""
        if self.native is not None:
            return self.native.critics(rows, self._temperature.item(), self.config.gamma, self.generator)
        target, seen = self._target(rows), self._seen(rows.obs)
        found = self.critic.of(seen, rows.action)
        error = torch.where(rows.valid, found - target, 0.0)
        return 0.5 * (rows.weight * error.square()).sum(), found.detach(), error.detach()

    def _policy_loss(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the loss of the policy, and its mean entropy."""
        if self.native is not None:
            return self.native.actor(rows, self._temperature.item(), self.generator)
        self._let_learn(False)  # the gradient passes through the critics
        actions, params = self.policy.distribution, self._params(rows.obs)
        seen = self._seen(rows.obs)
        if actions.reals:
            action, logprob = actions.sample_with_logprob(params, None, self.generator)
            entropy, value = -logprob, self.critic(seen, action).amin(0)
        else:
            logp = actions.logits(params, rows.action_mask).log_softmax(-1)
            entropy = -(logp.exp() * logp).sum(-1)
            value = (logp.exp() * self.critic(seen, None).amin(0)).sum(-1)
        self._let_learn(True)
        loss = -(rows.share * (value + self._temperature * entropy)).sum()
        return loss, (rows.share * entropy.detach()).sum()

    def _params(self, obs: Tensor) -> Tensor:
        return self.policy(obs, None, torch.zeros(len(obs), dtype=torch.bool, device=obs.device)).params

    def _seen(self, obs: Tensor) -> list[Tensor]:
        return leaves(self.policy.structured(obs))

    @torch.no_grad()
    def _follow(self) -> None:
        """Let the slow critics come a little closer."""
        torch._foreach_lerp_(self._slow_weights, self._weights, self.config.tau)

    def _let_learn(self, learn: bool) -> None:
        for weight in self._weights:
            weight.requires_grad = learn
