"""Sections of a run's config that every algorithm has: how weights follow gradients, and what is saved, evaluated and logged."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fugu.config import fixed
from fugu.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How weights follow gradients."""

    name: Literal["adam", "muon"] = fixed("adam")
    """adam, or muon for the hidden matrices and adam for the rest"""
    learning_rate: float = 3e-3
    """at the start"""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """how the learning rate goes to final_rate by the end of training"""
    final_rate: float = 0.0
    """at the end, as a share of learning_rate"""
    warmup: float = 0.0
    """share of the training in which the learning rate rises from 0"""
    max_grad_norm: float = 0.5
    """gradients longer than this are shortened to it"""
    beta1: float = 0.9
    """decay of the mean of gradients"""
    beta2: float = 0.999
    """adam: decay of the mean of squared gradients"""
    eps: float = 1e-5
    """adam: added to the root of that mean"""
    weight_decay: float = 0.0
    """shrinks weights by this share times the learning rate, each step"""

    def __post_init__(self) -> None:
        for name, known in (("name", ("adam", "muon")), ("schedule", ("constant", "linear", "cosine"))):
            if getattr(self, name) not in known:
                raise ConfigError(f"optimizer.{name}={getattr(self, name)!r} must be one of {', '.join(known)}")
        for name in ("learning_rate", "max_grad_norm", "eps"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"optimizer.{name}={getattr(self, name)} must be above 0")
            if name != "max_grad_norm" and math.isinf(getattr(self, name)):
                raise ConfigError(f"optimizer.{name}={getattr(self, name)} must be finite")
        for name in ("beta1", "beta2", "warmup"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"optimizer.{name}={getattr(self, name)} must be at least 0 and below 1")
        for name in ("final_rate", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"optimizer.{name}={getattr(self, name)} must be finite and not negative")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When the run is saved. It is also saved at its end, on Ctrl-C and on SIGTERM."""

    every: int | None = None
    """updates between two checkpoints; none: a tenth of the run, at least 10. Environments that cannot be saved start new episodes
    then"""
    minutes: float = 10.0
    """also when so many have passed since the last one, if the environments can be saved as they are; inf: not"""
    keep: int = 3
    """how many are kept, beside the best"""

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise ConfigError(f"checkpoint.every={self.every} must be at least 1")
        if not self.minutes > 0:
            raise ConfigError(f"checkpoint.minutes={self.minutes} must be above 0")
        if self.keep < 1:
            raise ConfigError(f"checkpoint.keep={self.keep} must be at least 1")


@dataclass(frozen=True, kw_only=True)
class ImitationConfig:
    """What a policy is shown, once, before it learns from rewards. For environments that have ``examples``."""

    examples: int = 0
    """how many different ones, of the environment's own; 0: none, and it begins as it is"""
    example_steps: int = 200
    """gradient steps on them"""
    example_batch: int = 64
    """examples per gradient step"""
    example_rate: float = 1e-3
    """learning rate of these steps; those that follow have an optimizer of their own"""

    def __post_init__(self) -> None:
        for name, least in (("examples", 0), ("example_steps", 1), ("example_batch", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"imitation.{name}={value!r} must be a whole number of at least {least}")
        if not self.example_rate > 0:
            raise ConfigError(f"imitation.example_rate={self.example_rate} must be above 0")


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Evaluation during training, in environments of its own. It changes nothing of what is learned."""

    every: int | None = None
    """Updates between two evaluations; none: never, and the best checkpoint is chosen by the returns of training"""
    episodes: int = 20
    """Episodes of an evaluation"""
    greedy: bool = False
    """Take the most likely action instead of drawing one"""

    def __post_init__(self) -> None:
        for name in ("every", "episodes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"eval.{name}={value} must be at least 1; try --eval.{name} {20 if name == 'every' else 10}")


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
