"""Settings of Dreamer. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fugu.config import fixed
from fugu.errors import ConfigError, did_you_mean
from fugu.policy.config_world import SIZES

MOST = 1_000_000
"""of anything that is counted"""
MOST_AHEAD = 1_000
"""steps that are imagined: each takes as much memory as the first"""


@dataclass(frozen=True, kw_only=True)
class DreamerConfig:
    """World model, and the behaviour that is learned inside it."""

    size: str = fixed("small")
    """Size of all networks: tiny (tests), small (good on two cores), or 1m, 12m, 25m, 50m, 100m, 200m by their weights"""
    gamma: float = 0.997
    """Discount per step, 0 to 1"""
    lam: float = 0.95
    """Decay of the return estimate, 0 (one step) to 1 (as far as is imagined)"""
    ahead: int = 15
    """Steps that are imagined from a row"""
    starts: int = 128
    """Rows of a batch to imagine from; 0: all of them"""
    entropy: float = 3e-4
    """Weight of the entropy bonus"""
    free_nats: float = 1.0
    """Divergence between expected and observed states that costs nothing, in nats per row"""
    replay_value: float = 0.3
    """Weight of the value loss on replayed rows"""
    remember: int = 0
    """Rows over which the recurrent layer keeps things at first, evenly spread from one up to this many; 0: about 4, for all of it"""
    stored_states: bool = True
    """Begin segments with the state that was stored when they were last seen; otherwise with zeros"""

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise ConfigError(
                f"dreamer.size={self.size!r} must be one of {', '.join(SIZES)}.{did_you_mean(str(self.size), SIZES)}"
            )
        for name in ("gamma", "lam"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"dreamer.{name}={getattr(self, name)} must be between 0 and 1")
        for name, least, most in (("ahead", 1, MOST_AHEAD), ("starts", 0, MOST), ("remember", 0, MOST)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"dreamer.{name}={value!r} must be a whole number of at least {least}")
            if value > most:
                raise ConfigError(f"dreamer.{name}={value} must be at most {most}")
        for name in ("entropy", "free_nats", "replay_value"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"dreamer.{name}={getattr(self, name)} must be finite and not negative")
