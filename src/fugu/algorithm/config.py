"""The settings of the algorithms, apart from the code, so that reading a command line needs no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fugu.errors import ConfigError


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
        for field in ("clip", "rho_clip", "c_clip", "value_clip", "reward_clip", "target_kl"):
            value = getattr(self, field)
            if value is not None and not value > 0:
                raise ConfigError(f"ppo.{field}={value} must be above 0")
        for field in ("value_coef", "entropy_coef", "entropy_final", "priority"):
            value = getattr(self, field)
            if value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"ppo.{field}={value} must be 0 or above")


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
    """pid: what is left of an old violation in the smoothed one after a batch, 0 to 1"""
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
