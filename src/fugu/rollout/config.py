"""Settings of sources, checked before anything is built. Needs no torch."""

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


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Nodes of a Ray cluster that act by themselves and send back what they played."""

    nodes: int | None = None
    """Nodes that play, each with its share of the environments and a copy of the policy; the cluster's machines get them in turn; none:
    no cluster"""
    lag: int = 0
    """Updates by which the nodes' policy is behind: 0 (they wait while it learns) or 1 (they play on meanwhile)"""
    address: str | None = None
    """Address of the Ray cluster: HOST:PORT, or auto for the one that this machine is in; none: Ray is started on this machine alone"""

    def __post_init__(self) -> None:
        if self.nodes is not None and (isinstance(self.nodes, bool) or not isinstance(self.nodes, int) or self.nodes < 1):
            raise ConfigError(f"rollout.nodes={self.nodes!r} must be a whole number of at least 1")
        if self.lag not in (0, 1):
            raise ConfigError(f"rollout.lag={self.lag!r} must be 0 or 1")
        if self.nodes is None and (self.lag or self.address is not None):
            name = "lag" if self.lag else "address"
            raise ConfigError(f"rollout.{name} is for nodes of a Ray cluster; say how many: --rollout.nodes 2")
