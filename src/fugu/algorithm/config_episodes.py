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
"""settings that the papers mean by these names: arXiv:2402.03300, 2503.20783, 2503.14476, 2507.18071, 2506.13585"""


@dataclass(frozen=True, kw_only=True)
class GRPOConfig:
    """Group-relative policy optimization: episodes that began alike are compared with each other, without a critic."""

    variant: Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo"] = "grpo"
    """Member of the GRPO family; it decides those of the settings below that are none"""
    group_size: int = 8
    """Episodes per group, which all begin alike; must divide the number of environments"""
    scale: Literal["group", "batch", "none"] | None = None
    """Unit of advantages: the standard deviation of returns in the group or in the batch, or none (returns as they are); if not
    given: as in the variant"""
    ratio: Literal["token", "sequence"] | None = None
    """Unit of the probability ratio: each token, or the geometric mean over an episode (sequence); none: as in the variant"""
    clip_low: float | None = None
    """Distance the ratio may fall below 1 before its gradient is cut; none: as in the variant"""
    clip_high: float | None = None
    """Distance the ratio may rise above 1 before its gradient, or for cispo its weight, is cut; none: as in the variant"""
    average: Literal["sequence", "token", "longest"] | None = None
    """Mean of the loss: sequence (over the tokens of an episode, then over episodes), token (over all tokens) or longest (sum over
    tokens, divided by the episodes and the longest length possible); none: as in the variant"""
    refill_rounds: int | None = None
    """Times that groups whose episodes all have the same return are drawn again; 0: they stay, and teach nothing; none: as in the
    variant"""
    truncated_episodes: Literal["count", "mask"] = "count"
    """Treatment of episodes that were cut off: count (with the return they had) or mask (left out)"""
    overlong_margin: int = 0
    """Last tokens before the limit over which an episode loses up to 1 of its return, linearly; 0: it loses nothing"""
    entropy_bonus: float = 0.0
    """Weight of the entropy bonus"""
    reference_coef: float = fixed(0.0)
    """Weight of the divergence from the policy that training began with; 0: no such reference"""
    reference_kl: Literal["k2", "k3"] = "k2"
    """Estimate of the divergence: k2 has the gradient of KL(policy || reference), k3 that of KL(reference || policy)"""
    importance_cap: float | None = None
    """Largest weight that corrects for the sampler's probabilities differing from the learner's; none: they count as the same"""
    micro_batch: int | None = None
    """Episodes per forward and backward pass; none: the whole minibatch. Fewer take less memory and change nothing else"""

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
        """Return a field, or the variant's value if the field is None."""
        value = getattr(self, name, None)
        return VARIANTS[self.variant][name] if value is None else value


@dataclass(frozen=True, kw_only=True)
class TokenPPOConfig:
    """PPO over the tokens of whole answers, with a value for every token."""

    token_gamma: float = 1.0
    """Discount per token, 0 to 1; takes the place of ppo.gamma"""
    token_lam: float = 0.95
    """Decay of the advantage estimate per token, 0 (one token) to 1 (whole episodes); takes the place of ppo.lam"""
    token_entropy: float = 0.0
    """Weight of the entropy bonus; takes the place of ppo.entropy_coef"""
    episodes_at_once: int | None = None
    """Episodes per forward and backward pass; none: the whole minibatch. Fewer take less memory and change nothing else"""

    def __post_init__(self) -> None:
        for field in ("token_gamma", "token_lam"):
            if not 0 <= getattr(self, field) <= 1:
                raise ConfigError(f"token_ppo.{field}={getattr(self, field)} must be between 0 and 1")
        if not 0 <= self.token_entropy < math.inf:
            raise ConfigError(f"token_ppo.token_entropy={self.token_entropy} must be 0 or above")
        if self.episodes_at_once is not None and not self.episodes_at_once > 0:
            raise ConfigError(f"token_ppo.episodes_at_once={self.episodes_at_once} must be above 0")
