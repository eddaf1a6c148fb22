"""Settings of a replay, checked before anything is built. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fugu.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Rows that are kept after they were played, and drawn again and again to learn from."""

    size: int = 1_000_000
    """Rows that are kept, over all agents; new ones take the place of the oldest"""
    start: int = 1_000
    """Rows that are played before learning begins, over all agents"""
    ratio: int = 256
    """Rows learned from for each row played; with minibatches of 256 rows, 256 means a gradient step for each row"""
    every: int = 1
    """Steps of every agent between two batches; a batch holds the minibatches that have become due meanwhile"""
    priority: float = 0.0
    """Power of a segment's priority that its chance to be drawn is proportional to, 0 to 1; 0: all have the same chance"""
    correction: float = 0.4
    """Degree to which the weights of rows make up for unequal chances, 0 (not at all) to 1 (wholly)"""
    newest: float = 0.0
    """Share of each batch that is made of the newest rows, 0 to 1; the rest is drawn from all"""
    memory: Literal["device", "cpu"] = "device"
    """Memory that rows are kept in: device (where the policy is) or cpu"""
    data: str = ""
    """Recorded episodes that it begins with, as if they had just been played; nothing: it begins empty"""

    def __post_init__(self) -> None:
        for name in ("size", "start", "ratio", "every"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"replay.{name}={value!r} must be a whole number of at least 1")
        for name in ("priority", "correction", "newest"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"replay.{name}={getattr(self, name)} must be between 0 and 1")
        if self.memory not in ("device", "cpu"):
            raise ConfigError(f"replay.memory={self.memory!r} must be device or cpu")
        if self.start > self.size:
            raise ConfigError(
                f"replay.start={self.start} is more than replay.size={self.size} can hold; try --replay.start {self.size}"
            )


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Recorded episodes that are learned from."""

    path: str = ""
    """Recorded episodes: a folder that fugu record wrote, or a file of Minari's"""
    together: int = 16
    """Minibatches that are drawn together; metrics are means over them"""

    def __post_init__(self) -> None:
        if isinstance(self.together, bool) or not isinstance(self.together, int) or self.together < 1:
            raise ConfigError(f"data.together={self.together!r} must be a whole number of at least 1; try --data.together 16")
