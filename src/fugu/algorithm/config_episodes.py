"""Settings of the algorithms that learn from whole episodes and from texts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fugu.config import fixed
from fugu.errors import ConfigError, did_you_mean

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
    reference_coef: float = fixed(0.0)
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
    """PPO over the tokens of whole answers, with a value for every token."""

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
