"""Where a run's metrics go besides its own files, and what is shown meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fugu.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """metrics.jsonl and timing.jsonl are always written"""

    tensorboard: bool = False
    """also write events for TensorBoard, to events/ in the run's folder; needs the extra tb"""
    wandb: Literal["off", "offline", "online"] = "off"
    """also log to Weights & Biases: into the run's folder, or online; needs the extra wandb"""
    wandb_project: str = "fugu"
    """project of the run in Weights & Biases"""
    board: Literal["auto", "board", "lines", "off"] = "auto"
    """what the terminal shows: the board, plain lines, nothing; auto: the board if the output is a terminal"""
    interval: float = 5.0
    """seconds between plain lines"""

    def __post_init__(self) -> None:
        for field, known in (("wandb", ("off", "offline", "online")), ("board", ("auto", "board", "lines", "off"))):
            if getattr(self, field) not in known:
                raise ConfigError(f"log.{field}={getattr(self, field)!r} must be one of {', '.join(known)}")
        if not self.interval > 0:
            raise ConfigError(f"log.interval={self.interval} must be positive; try --log.interval 5")
