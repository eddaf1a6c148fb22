"""The settings of the algorithms, apart from the code, so that reading a command line needs no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fugu.errors import ConfigError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Proximal policy optimization (Schulman et al. 2017, arXiv:1707.06347)."""

    gamma: float = 0.99
    """discount per step, 0 to 1"""
    lam: float = 0.95
    """decay of the advantage estimate, 0 (one step) to 1 (whole episodes)"""
    clip: float = 0.2
    """how far the probability of an action may move before its gradient is cut; 0.2: by 20%"""
    value_clip: float | None = None
    """the same for values, in units of value; none: not clipped"""
    value_huber: float | None = None
    """errors of values beyond this, in the units the network predicts, count linearly and not squared (Huber); none: all squared"""
    value_coef: float = 0.5
    """weight of the value loss"""
    entropy_coef: float = 0.01
    """weight of the entropy bonus"""
    entropy_final: float | None = None
    """what entropy_coef shrinks to, linearly, by the end; none: it stays"""
    normalize_advantage: Literal["minibatch", "batch", "none"] = "minibatch"
    """to mean 0 and deviation 1 over the unmasked rows of the minibatch, of the whole batch, or not"""
    normalize_reward: bool = False
    """divide rewards by the running deviation of the discounted return"""
    normalize_value: bool = False
    """let the network predict values in units of the running deviation of the value targets"""
    reward_clip: float | None = None
    """bound of a reward, after normalising; none: no bound"""
    target_kl: float | None = None
    """stop learning from a batch when the policy has moved this far; none: never"""
    vtrace: bool = False
    """correct the advantage with fresh ratios and values in every minibatch (V-trace); pays when a batch is used often"""
    rho_clip: float = 1.0
    """V-trace: bound of the ratio for a row's own error"""
    c_clip: float = 1.0
    """V-trace: bound of the ratio for what flows back through a row"""
    priority: float = 0.0
    """draw segments in proportion to their mean absolute advantage to this power; 0: every segment once per epoch"""
    priority_correction: float = 0.4
    """how much of the bias of drawing by priority is corrected at the start, 0 to 1; it grows to 1 by the end"""

    def __post_init__(self) -> None:
        for field in ("gamma", "lam", "priority_correction"):
            if not 0 <= getattr(self, field) <= 1:
                raise ConfigError(f"ppo.{field}={getattr(self, field)} must be between 0 and 1")
        for field in ("clip", "rho_clip", "c_clip", "value_clip", "value_huber", "reward_clip", "target_kl"):
            value = getattr(self, field)
            if value is not None and not value > 0:
                raise ConfigError(f"ppo.{field}={value} must be above 0")
        for field in ("value_coef", "entropy_coef", "entropy_final", "priority"):
            value = getattr(self, field)
            if value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"ppo.{field}={value} must be 0 or above")
        if self.normalize_advantage not in ("minibatch", "batch", "none"):
            raise ConfigError(f"ppo.normalize_advantage={self.normalize_advantage!r} must be one of minibatch, batch, none")
        if self.vtrace and self.normalize_advantage == "batch":
            raise ConfigError(
                "ppo.vtrace computes advantages anew in every minibatch, so they cannot be normalised over the batch; "
                "try --ppo.normalize_advantage minibatch"
            )


_TOKEN_CLIP = {"scale": "group", "ratio": "token", "cut": "clip", "clip_low": 0.2, "clip_high": 0.2, "refill_rounds": 0}

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {**_TOKEN_CLIP, "average": "sequence"},
    "dr_grpo": {**_TOKEN_CLIP, "scale": "none", "average": "longest"},
    "dapo": {**_TOKEN_CLIP, "clip_high": 0.28, "average": "token", "refill_rounds": 3},
    "gspo": {**_TOKEN_CLIP, "ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4, "average": "sequence"},
    "cispo": {**_TOKEN_CLIP, "cut": "weight", "clip_high": 4.0, "average": "token"},
}
"""what the papers mean by these names: arXiv:2402.03300, 2503.20783, 2503.14476, 2507.18071, 2506.13585"""


@dataclass(frozen=True, kw_only=True)
class GRPOConfig:
    """Group-relative policy optimization: episodes that began alike are compared with each other; there is no critic."""

    variant: Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo"] = "grpo"
    """what the settings below are, where they are none"""
    group_size: int = 8
    """episodes that begin alike; must divide the number of environments"""
    scale: Literal["group", "batch", "none"] | None = None
    """unit of advantages: the deviation of returns in the group, in the batch, or that of the returns themselves"""
    ratio: Literal["token", "sequence"] | None = None
    """what is compared with the policy that acted: each token, or the geometric mean over an episode"""
    clip_low: float | None = None
    """how far the ratio may fall below 1 before a gradient is cut"""
    clip_high: float | None = None
    """how far it may rise above 1; for cispo the bound of what a token is weighed with, less 1"""
    average: Literal["sequence", "token", "longest"] | None = None
    """of the loss: over tokens of an episode and then episodes, over all tokens, or sum over episodes and longest possible"""
    refill_rounds: int | None = None
    """how often groups whose episodes all have the same return are drawn anew; 0: they stay, and teach nothing"""
    truncated_episodes: Literal["count", "mask"] = "count"
    """an episode that was cut off counts with the return it had, or is left out"""
    overlong_margin: int = 0
    """an episode loses up to 1 of its return, linearly, over the last so many tokens before the limit; 0: nothing"""
    entropy_bonus: float = 0.0
    """weight of the entropy"""
    reference_coef: float = 0.0
    """weight of the divergence from the policy that training began with; 0: there is no such reference"""
    reference_kl: Literal["k2", "k3"] = "k2"
    """its estimate: k2 has the gradient of KL(policy || reference), k3 that of KL(reference || policy)"""
    importance_cap: float | None = None
    """correct for what the sampler's probabilities differ from the learner's, by weights of at most this; none: take them to be
    the same"""
    micro_batch: int | None = None
    """episodes per forward and backward pass; none: the whole minibatch. Takes less memory, changes nothing else"""

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            hint = did_you_mean(str(self.variant), VARIANTS)
            raise ConfigError(f"grpo.variant={self.variant!r} must be one of {', '.join(VARIANTS)}.{hint}")
        choices = {"scale": ("group", "batch", "none"), "ratio": ("token", "sequence"), "reference_kl": ("k2", "k3")}
        choices |= {"average": ("sequence", "token", "longest"), "truncated_episodes": ("count", "mask")}
        for field, names in choices.items():
            value = getattr(self, field)
            if value is not None and value not in names:
                raise ConfigError(f"grpo.{field}={value!r} must be one of {', '.join(names)}; type --grpo.{field} {names[0]}")
        if self.group_size < 2:
            raise ConfigError(
                f"grpo.group_size={self.group_size}: an episode is compared with others of its group, so there must be at least 2; "
                "try --grpo.group-size 8"
            )
        for field in ("clip_low", "clip_high", "importance_cap", "micro_batch"):
            value = getattr(self, field)
            if value is not None and not value > 0:
                raise ConfigError(f"grpo.{field}={value} must be above 0")
        for field in ("refill_rounds", "overlong_margin", "entropy_bonus", "reference_coef"):
            value = getattr(self, field)
            if value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"grpo.{field}={value} must be 0 or above")

    def setting(self, name: str) -> Any:
        """A field, or what the variant says where it is None."""
        value = getattr(self, name, None)
        return VARIANTS[self.variant][name] if value is None else value


@dataclass(frozen=True, kw_only=True)
class TokenPPOConfig:
    """PPO over the tokens of whole answers, with a value for every token. Of ``ppo`` it reads clip, value_clip, value_huber,
    value_coef, normalize_advantage and target_kl."""

    token_gamma: float = 1.0
    """discount per token, 0 to 1, in the place of ppo.gamma"""
    token_lam: float = 0.95
    """decay of the advantage estimate per token, 0 (one token) to 1 (whole episodes), in the place of ppo.lam"""
    token_entropy: float = 0.0
    """weight of the entropy, in the place of ppo.entropy_coef"""
    episodes_at_once: int | None = None
    """episodes per forward and backward pass; none: the whole minibatch. Takes less memory, changes nothing else"""

    def __post_init__(self) -> None:
        for field in ("token_gamma", "token_lam"):
            if not 0 <= getattr(self, field) <= 1:
                raise ConfigError(f"token_ppo.{field}={getattr(self, field)} must be between 0 and 1")
        if not 0 <= self.token_entropy < math.inf:
            raise ConfigError(f"token_ppo.token_entropy={self.token_entropy} must be 0 or above")
        if self.episodes_at_once is not None and not self.episodes_at_once > 0:
            raise ConfigError(f"token_ppo.episodes_at_once={self.episodes_at_once} must be above 0")


@dataclass(frozen=True, kw_only=True)
class SelfPlayConfig:
    """Self-play of two players, with a pool of earlier versions of the policy."""

    pool: int = 8
    """how many earlier versions are kept, spread over the training so far"""
    snapshot_every: int = 20
    """updates between two of them"""
    past: float = 0.5
    """share of the games that are played against one of them; in the others both players learn"""
    choose: Literal["even", "hard"] = "even"
    """which one: any, or rather those that are hard to beat by their rating"""
    noise: float = 0.0
    """share of their moves that are drawn at random, so that what they lead to is not always the same"""
    opponents: tuple[str, ...] = ()
    """runs whose newest policies join the pool at the start"""

    def __post_init__(self) -> None:
        for field in ("pool", "snapshot_every"):
            if getattr(self, field) < 1:
                raise ConfigError(f"self_play.{field}={getattr(self, field)} must be at least 1")
        if self.choose not in ("even", "hard"):
            raise ConfigError(f"self_play.choose={self.choose!r} must be even or hard; type --self-play.choose hard")
        for field in ("past", "noise"):
            if not 0 <= getattr(self, field) <= 1:
                raise ConfigError(f"self_play.{field}={getattr(self, field)} must be between 0 and 1")
        if len(self.opponents) >= self.pool:
            raise ConfigError(
                f"self_play.pool={self.pool} has no room for {len(self.opponents)} opponents and the policy itself; "
                f"try --self-play.pool {len(self.opponents) + 4}"
            )


@dataclass(frozen=True, kw_only=True)
class MAPPOConfig:
    """PPO for teams: actors that see their own observation, a critic that sees more (Yu et al. 2022, arXiv:2103.01955)."""

    critic: Literal["auto", "state", "observations", "agent", "own"] = "auto"
    """what values are learned from: state (of the whole world, where the environment gives one), observations (of all agents), agent
    (state and own observation), own (its own observation alone: independent PPO); auto: state where there is one, else
    observations"""
    state_key: str = "state"
    """the part of a Dict observation that is for the critic alone; actors never see it"""
    agent_id: bool = True
    """tell a network that several agents share which of them it acts for"""
    networks: Literal["shared", "per_agent", "groups"] = "shared"
    """who shares networks, of actors and critic: all agents, none, or those with the same number in groups"""
    groups: tuple[int, ...] = ()
    """with networks=groups: the group of each agent of a world, counted from 0, as in 0 0 1"""
    value_norm: Literal["ema", "popart", "none"] = "ema"
    """units in which the critic predicts values, in the place of ppo.normalize_value: the running deviation of their targets (ema),
    the same with a last layer that is rescaled to go on saying the same (popart), or none"""
    value_decay: float = 0.99999
    """how much of the running mean and deviation is kept per batch; 1 - 1/n: about n batches are remembered"""

    def __post_init__(self) -> None:
        for field, choices in _MAPPO_CHOICES.items():
            value = getattr(self, field)
            if value not in choices:
                hint = did_you_mean(str(value), choices)
                raise ConfigError(f"mappo.{field}={value!r} must be one of {', '.join(choices)}.{hint}")
        if not 0 <= self.value_decay < 1:
            raise ConfigError(
                f"mappo.value_decay={self.value_decay} must be at least 0 and below 1; try --mappo.value-decay 0.999"
            )
        groups = tuple(self.groups)
        object.__setattr__(self, "groups", groups)
        if bool(groups) != (self.networks == "groups"):
            raise ConfigError(
                f"mappo.groups={groups} and mappo.networks={self.networks} do not go together; "
                "try --mappo.networks groups --mappo.groups 0 0 1"
            )
        if groups and (not all(isinstance(g, int) for g in groups) or set(groups) != set(range(max(groups) + 1))):
            raise ConfigError(f"mappo.groups={groups} must count from 0 without gaps, as in --mappo.groups 0 0 1")


_MAPPO_CHOICES = {
    "critic": ("auto", "state", "observations", "agent", "own"),
    "networks": ("shared", "per_agent", "groups"),
    "value_norm": ("ema", "popart", "none"),
}


@dataclass(frozen=True, kw_only=True)
class SafeConfig:
    """Limits on what episodes cost, for ``algorithm="safe_ppo"`` (PPO-Lagrangian)."""

    limit: tuple[float, ...] = ()
    """what an episode may cost on average, undiscounted; one number per cost of the environment, or one for each of them"""
    multiplier: Literal["pid", "sgd", "adam"] = "pid"
    """how the price of a cost follows from what episodes cost: pid, sgd or adam"""
    multiplier_start: float = 0.0
    """the price at the start, in units of reward per cost"""
    multiplier_max: float = 100.0
    """the price is never higher; 0: always 0, which is PPO"""
    multiplier_rate: float = 0.05
    """sgd, adam: how far the price moves per batch where an episode costs twice its limit"""
    kp: float = 0.5
    """pid: weight of the violation now, as a share of the limit"""
    ki: float = 0.05
    """pid: weight of all violations so far"""
    kd: float = 0.5
    """pid: weight of how fast the violation grows"""
    smoothing: float = 0.8
    """what is left of an old violation in the smoothed one after a batch, 0 to 1; pid reads it, and which checkpoint is the best"""
    delay: int = 10
    """pid: batches over which growth is measured"""
    cost_gamma: float = 0.99
    """discount of costs per step, 0 to 1"""
    cost_lam: float = 0.95
    """decay of the advantage estimate of costs, 0 to 1"""

    def __post_init__(self) -> None:
        limits = self.limit if isinstance(self.limit, tuple | list) else (self.limit,)
        for limit in limits:
            if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 <= limit < math.inf:
                raise ConfigError(f"safe.limit={self.limit!r}: expected numbers of 0 or above; try --limit 10")
        object.__setattr__(self, "limit", tuple(float(limit) for limit in limits))
        if self.multiplier not in ("pid", "sgd", "adam"):
            raise ConfigError(f"safe.multiplier={self.multiplier!r} must be pid, sgd or adam; try --multiplier pid")
        for field in ("cost_gamma", "cost_lam", "smoothing"):
            if not 0 <= getattr(self, field) <= 1:
                raise ConfigError(f"safe.{field}={getattr(self, field)} must be between 0 and 1")
        for field in ("multiplier_start", "multiplier_max", "multiplier_rate", "kp", "ki", "kd"):
            if not 0 <= getattr(self, field) < math.inf:
                raise ConfigError(f"safe.{field}={getattr(self, field)} must be 0 or above")
        if isinstance(self.delay, bool) or not isinstance(self.delay, int) or self.delay < 1:
            raise ConfigError(f"safe.delay={self.delay!r} must be a whole number of at least 1; try --delay 10")

    def limits(self, costs: Sequence[str]) -> tuple[float, ...]:
        """One per cost of the environment."""
        if not self.limit:
            raise ConfigError(
                f"safe_ppo needs to know what an episode may cost ({', '.join(costs)}); "
                f"try --limit {' '.join(['10'] * len(costs))}"
            )
        if len(self.limit) not in (1, len(costs)):
            raise ConfigError(
                f"safe.limit has {len(self.limit)} numbers, but the environment has {len(costs)} costs ({', '.join(costs)}); "
                f"try --limit {' '.join(['10'] * len(costs))}"
            )
        return self.limit if len(self.limit) == len(costs) else self.limit * len(costs)
