"""Settings of the algorithms that learn from recorded episodes. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fugu.config import fixed
from fugu.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DTConfig:
    """Decision Transformer: a policy that is told which return to reach."""

    target: float | None = None
    """Return that the policy is asked for when it plays; none: the best of the episodes it learned from"""
    longest: int = fixed(1000)
    """Steps of an episode that are told apart; later ones look like the last of these"""
    dropout: float = 0.1
    """Share of the numbers inside the network that are left out while learning, 0 to 1"""

    def __post_init__(self) -> None:
        if self.target is not None and not math.isfinite(self.target):
            raise ConfigError(f"dt.target={self.target} must be a finite number, or none")
        if isinstance(self.longest, bool) or not isinstance(self.longest, int) or self.longest < 1:
            raise ConfigError(f"dt.longest={self.longest!r} must be a whole number of at least 1; try --dt.longest 1000")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dt.dropout={self.dropout} must be at least 0 and below 1; try --dt.dropout 0.1")


@dataclass(frozen=True, kw_only=True)
class BCConfig:
    """Behaviour cloning: do what was done."""

    top: float = 1.0
    """Share of the episodes that are imitated, those with the highest returns, above 0 and up to 1"""

    def __post_init__(self) -> None:
        if not 0 < self.top <= 1:
            raise ConfigError(f"bc.top={self.top} must be above 0 and at most 1; try --bc.top 0.1 for the best tenth")


@dataclass(frozen=True, kw_only=True)
class IQLConfig:
    """Implicit Q-learning: values of what was done, without asking what else could have been done."""

    gamma: float = 0.99
    """Discount per step, 0 to 1"""
    expectile: float = 0.7
    """Expectile of the values of actions that a state's value is, from 0.5 (their mean) to below 1 (towards their best)"""
    beta: float = 3.0
    """Preference for actions that are better than expected: their weight in the policy is exp(beta * advantage)"""
    most: float = 100.0
    """Greatest weight of an action"""
    tau: float = 0.005
    """Share of the critics that their slow copies take over after each step, above 0 and up to 1"""
    scale_reward: float | None = None
    """Factor on rewards; none: the one with which the best and the worst episode differ by 1 for each step of a mean episode"""

    def __post_init__(self) -> None:
        _check_values("iql", self.gamma, self.tau)
        if not 0.5 <= self.expectile < 1:
            raise ConfigError(f"iql.expectile={self.expectile} must be at least 0.5 and below 1; try --iql.expectile 0.7")
        for name in ("beta", "most"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"iql.{name}={getattr(self, name)} must be finite and not negative")
        _check_scale("iql", self.scale_reward)


@dataclass(frozen=True, kw_only=True)
class TD3BCConfig:
    """TD3+BC: a deterministic policy that goes where values are high, and stays near what was done."""

    gamma: float = 0.99
    """Discount per step, 0 to 1"""
    tau: float = 0.005
    """Share of the networks that their slow copies take over after each step, above 0 and up to 1"""
    alpha: float = 2.5
    """Weight of values, in units of their mean size, against imitation; 0: imitation alone"""
    noise: float = 0.2
    """Deviation of the noise on actions whose values are learned towards, in units of half their range"""
    noise_clip: float = 0.5
    """Bound on the size of that noise"""
    delay: int = 2
    """Gradient steps of the critics for each of the policy"""
    scale_reward: float | None = None
    """Factor on rewards; none: the one with which the best and the worst episode differ by 1 for each step of a mean episode"""

    def __post_init__(self) -> None:
        _check_values("td3bc", self.gamma, self.tau)
        for name in ("alpha", "noise", "noise_clip"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"td3bc.{name}={getattr(self, name)} must be finite and not negative")
        if isinstance(self.delay, bool) or not isinstance(self.delay, int) or self.delay < 1:
            raise ConfigError(f"td3bc.delay={self.delay!r} must be a whole number of at least 1; try --td3bc.delay 2")
        _check_scale("td3bc", self.scale_reward)


def _check_values(section: str, gamma: float, tau: float) -> None:
    if not 0 <= gamma <= 1:
        raise ConfigError(f"{section}.gamma={gamma} must be between 0 and 1")
    if not 0 < tau <= 1:
        raise ConfigError(f"{section}.tau={tau} must be above 0 and at most 1; try --{section}.tau 0.005")


def _check_scale(section: str, scale: float | None) -> None:
    if scale is not None and not 0 < scale < math.inf:
        raise ConfigError(f"{section}.scale_reward={scale} must be above 0, or none")
