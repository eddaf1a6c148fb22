"""Settings of PPO and of the algorithms built on it. They stand apart from the code so that reading a command line needs no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fugu.config import fixed
from fugu.errors import ConfigError, did_you_mean

MOST_KEPT = 10_000
"""of versions and violations that are kept in memory, and in every checkpoint"""


@dataclass(frozen=True, kw_only=True)
class SurrogateConfig:
    """The loss of PPO, whatever its rows are (Schulman et al. 2017, arXiv:1707.06347)."""

    clip: float = 0.2
    """Change of an action's probability at which its gradient is cut; 0.2 means 20%"""
    value_clip: float | None = None
    """Bound on the change of a value from the one stored in the batch, in units of value; none: no bound"""
    value_huber: float | None = None
    """Size of a value error from which it counts linearly instead of squared (Huber), in the units the network predicts; none: all
    squared"""
    value_coef: float = 0.5
    """Weight of the value loss"""
    normalize_advantage: Literal["minibatch", "batch", "none"] = "minibatch"
    """Rows over which advantages are brought to mean 0 and deviation 1: those of the minibatch, those of the batch, or none"""
    target_kl: float | None = None
    """KL divergence from the acting policy at which the rest of a batch is skipped; none: every minibatch is used"""

    def __post_init__(self) -> None:
        for field in ("clip", "value_clip", "value_huber", "target_kl"):
            value = getattr(self, field)
            if value is not None and not value > 0:
                raise ConfigError(f"ppo.{field}={value} must be above 0")
        if not 0 <= self.value_coef < math.inf:
            raise ConfigError(f"ppo.value_coef={self.value_coef} must be 0 or above")
        if self.normalize_advantage not in ("minibatch", "batch", "none"):
            raise ConfigError(f"ppo.normalize_advantage={self.normalize_advantage!r} must be one of minibatch, batch, none")


@dataclass(frozen=True, kw_only=True)
class TeamPPOConfig(SurrogateConfig):
    """Proximal policy optimization on segments."""

    gamma: float = 0.99
    """Discount per step, 0 to 1"""
    lam: float = 0.95
    """Decay of the advantage estimate, 0 (one step) to 1 (whole episodes)"""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus"""
    entropy_final: float | None = None
    """Weight of the entropy bonus at the end of training, approached linearly; none: it stays at entropy_coef"""
    normalize_reward: bool = fixed(False)
    """Divide rewards by the running standard deviation of the discounted return"""
    reward_clip: float | None = None
    """Bound on the size of a reward, after normalising; none: no bound"""
    vtrace: bool = False
    """Correct advantages with fresh ratios and values in every minibatch (V-trace); pays off when a batch is used often"""
    rho_clip: float = 1.0
    """Bound on the V-trace ratio that weighs a row's own error"""
    c_clip: float = 1.0
    """Bound on the V-trace ratio that weighs what flows back through a row"""
    priority: float = 0.0
    """Draw segments in proportion to their mean absolute advantage to this power; 0: every segment once per epoch"""
    priority_correction: float = 0.4
    """Share of the bias of drawing by priority that is corrected at the start, 0 to 1; grows to 1 by the end"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("gamma", "lam", "priority_correction"):
            if not 0 <= getattr(self, field) <= 1:
                raise ConfigError(f"ppo.{field}={getattr(self, field)} must be between 0 and 1")
        for field in ("rho_clip", "c_clip", "reward_clip"):
            value = getattr(self, field)
            if value is not None and not value > 0:
                raise ConfigError(f"ppo.{field}={value} must be above 0")
        for field in ("entropy_coef", "entropy_final", "priority"):
            value = getattr(self, field)
            if value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"ppo.{field}={value} must be 0 or above")
        if self.vtrace and self.normalize_advantage == "batch":
            raise ConfigError(
                "ppo.vtrace computes advantages anew in every minibatch, so they cannot be normalised over the batch; "
                "try --ppo.normalize_advantage minibatch"
            )


@dataclass(frozen=True, kw_only=True)
class PPOConfig(TeamPPOConfig):
    """Proximal policy optimization on segments, with one critic per policy."""

    normalize_value: bool = fixed(False)
    """Let the network predict values in units of the running standard deviation of the value targets"""


@dataclass(frozen=True, kw_only=True)
class SelfPlayConfig:
    """Self-play for two players, with a pool of earlier versions of the policy."""

    pool: int = fixed(8)
    """Earlier versions of the policy that are kept, spread over the training so far"""
    snapshot_every: int = 20
    """Updates between two versions of the policy that join the pool"""
    past: float = 0.5
    """Share of games played against an earlier version, 0 to 1; in the others both players learn"""
    choose: Literal["even", "hard"] = "even"
    """Choice of the opponent from the pool: even (each as often), or hard (more often the ones that are hard to beat, by rating)"""
    noise: float = 0.0
    """Share of an earlier version's moves that are drawn at random, 0 to 1, so that games vary"""
    opponents: tuple[str, ...] = fixed(())
    """Runs whose newest policies join the pool at the start"""

    def __post_init__(self) -> None:
        for field in ("pool", "snapshot_every"):
            if getattr(self, field) < 1:
                raise ConfigError(f"self_play.{field}={getattr(self, field)} must be at least 1")
        if self.pool > MOST_KEPT:
            raise ConfigError(f"self_play.pool={self.pool} must be at most {MOST_KEPT}: all of them are in memory")
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
    """Input of the critic: state (of the whole world, if the environment gives one), observations (of all agents), agent (state and
    own observation) or own (own observation alone: independent PPO); auto: state if there is one, else observations"""
    state_key: str = "state"
    """Part of a Dict observation that only the critic sees"""
    agent_id: bool = True
    """Tell a network shared by several agents which of them it acts for"""
    networks: Literal["shared", "per_agent", "groups"] = "shared"
    """Sharing of networks, actors and critic alike: shared (by all agents), per_agent (by none) or groups (by agents with the same
    number in groups)"""
    groups: tuple[int, ...] = ()
    """Group of each agent of a world, counted from 0, as in 0 0 1; only with networks=groups"""
    value_norm: Literal["ema", "popart", "none"] = "ema"
    """Units in which the critic predicts values, instead of ppo.normalize_value: ema (running deviation of the value targets),
    popart (the same, with the last layer rescaled so that its predictions stay the same) or none"""
    value_decay: float = 0.99999
    """Share of the running mean and deviation of value targets kept per batch, 0 to 1; 1 - 1/n remembers about n batches"""

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
    """Limits on the cost of episodes, for ``algorithm="safe_ppo"`` (PPO-Lagrangian)."""

    limit: tuple[float, ...] = ()
    """Mean undiscounted cost an episode may have: one number for each cost of the environment, or one for all of them"""
    multiplier: Literal["pid", "sgd", "adam"] = "pid"
    """Rule by which the price of a cost follows the cost of episodes: pid, sgd or adam"""
    multiplier_start: float = 0.0
    """Price of a cost at the start, in units of reward per cost"""
    multiplier_max: float = 100.0
    """Highest price of a cost; 0: the price is always 0, which is PPO"""
    multiplier_rate: float = 0.05
    """Change of the price per batch when an episode costs twice its limit; only for sgd and adam"""
    kp: float = 0.5
    """Weight of the current violation in the price, as a share of the limit; only for pid"""
    ki: float = 0.05
    """Weight of the sum of all violations so far in the price; only for pid"""
    kd: float = 0.5
    """Weight of the growth of the violation in the price; only for pid"""
    smoothing: float = 0.8
    """Share of the smoothed violation kept per batch, 0 to 1; pid reads it, and so does the choice of the best
    checkpoint"""
    delay: int = fixed(10)
    """Batches over which the growth of the violation is measured; only for pid"""
    cost_gamma: float = 0.99
    """Discount of costs per step, 0 to 1"""
    cost_lam: float = 0.95
    """Decay of the advantage estimate of costs, 0 (one step) to 1 (whole episodes)"""

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
        if self.delay > MOST_KEPT:
            raise ConfigError(f"safe.delay={self.delay} must be at most {MOST_KEPT}: that many violations are kept")

    def limits(self, costs: Sequence[str]) -> tuple[float, ...]:
        """Return the limit of each cost of the environment."""
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
