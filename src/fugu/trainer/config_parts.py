"""Sections of a run's config that every algorithm has: optimizer, checkpoints, imitation, evaluation and logs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fugu.config import fixed
from fugu.errors import ConfigError
from fugu.vector.config import info_names


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Optimizer, learning rate and bounds of a step."""

    name: Literal["adam", "muon", "laprop"] = fixed("adam")
    """Optimizer: adam, muon (for the hidden matrices, with adam for the rest), or laprop (steps of one length for losses of any size;
    for dreamer)"""
    learning_rate: float = 3e-3
    """Learning rate at the start"""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """Course of the learning rate over the training; linear and cosine end at final_rate"""
    final_rate: float = 0.0
    """Learning rate at the end, as a share of learning_rate, 0 to 1"""
    warmup: float = 0.0
    """Share of the training in which the learning rate rises from 0, 0 to 1"""
    max_grad_norm: float = 0.5
    """Length to which longer gradients are shortened"""
    adaptive_clip: float = 0.3
    """Share of a tensor's length to which longer gradients of it are shortened; for laprop"""
    beta1: float = 0.9
    """Decay of the running mean of gradients, 0 to 1"""
    beta2: float = 0.999
    """Decay of adam's running mean of squared gradients, 0 to 1"""
    eps: float = 1e-5
    """Number that adam adds to the root of the mean of squared gradients"""
    weight_decay: float = 0.0
    """Share of the weights, times the learning rate, by which each step shrinks them; 0: not at all"""

    def __post_init__(self) -> None:
        for name, known in (("name", ("adam", "muon", "laprop")), ("schedule", ("constant", "linear", "cosine"))):
            if getattr(self, name) not in known:
                raise ConfigError(f"optimizer.{name}={getattr(self, name)!r} must be one of {', '.join(known)}")
        for name in ("learning_rate", "max_grad_norm", "adaptive_clip", "eps"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"optimizer.{name}={getattr(self, name)} must be above 0")
            if name in ("learning_rate", "eps") and math.isinf(getattr(self, name)):
                raise ConfigError(f"optimizer.{name}={getattr(self, name)} must be finite")
        for name in ("beta1", "beta2", "warmup"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"optimizer.{name}={getattr(self, name)} must be at least 0 and below 1")
        for name in ("final_rate", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"optimizer.{name}={getattr(self, name)} must be finite and not negative")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Times at which the run is saved. It is also saved at its end, on Ctrl-C and on SIGTERM."""

    every: int | None = None
    """Updates between two checkpoints; none: a tenth of the run, at least 10. Environments that cannot be saved then start new
    episodes"""
    minutes: float = 10.0
    """Minutes after which a checkpoint is also written, if the environments can be saved as they are; inf: never"""
    keep: int = 3
    """Checkpoints that are kept, beside the best"""

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise ConfigError(f"checkpoint.every={self.every} must be at least 1")
        if not self.minutes > 0:
            raise ConfigError(f"checkpoint.minutes={self.minutes} must be above 0")
        if self.keep < 1:
            raise ConfigError(f"checkpoint.keep={self.keep} must be at least 1")


@dataclass(frozen=True, kw_only=True)
class ImitationConfig:
    """Examples that a policy imitates once, before it learns from rewards. For environments that have ``examples``."""

    examples: int = 0
    """Different examples to learn from, made by the environment; 0: none"""
    example_steps: int = 200
    """Gradient steps on the examples"""
    example_batch: int = 64
    """Examples per gradient step"""
    example_rate: float = 1e-3
    """Learning rate of the steps on examples; training has an optimizer of its own"""

    def __post_init__(self) -> None:
        for name, least in (("examples", 0), ("example_steps", 1), ("example_batch", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"imitation.{name}={value!r} must be a whole number of at least {least}")
        if not self.example_rate > 0:
            raise ConfigError(f"imitation.example_rate={self.example_rate} must be above 0")


MOST_EPISODES = 1_000_000
"""of an evaluation, for which the training waits"""


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Evaluation during training, in environments of its own. It changes nothing in what is learned."""

    every: int | None = None
    """Updates between two evaluations; none: no evaluation, and the best checkpoint is chosen by the returns of training"""
    episodes: int = 20
    """Episodes of an evaluation"""
    greedy: bool = False
    """Take the most likely action instead of drawing one"""

    def __post_init__(self) -> None:
        for name in ("every", "episodes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"eval.{name}={value} must be at least 1; try --eval.{name} {20 if name == 'every' else 10}")
        if self.episodes > MOST_EPISODES:
            raise ConfigError(f"eval.episodes={self.episodes} must be at most {MOST_EPISODES}")


@dataclass(frozen=True, kw_only=True)
class RanksConfig:
    """Processes that learn together, each with its own environments and all with the same weights."""

    processes: int = 1
    """Processes to start on this machine, each with as many environments and as large minibatches as the settings say; under torchrun
    as many as it has started, on all machines"""
    mode: Literal["all_reduce", "exact"] = "all_reduce"
    """Order in which gradients and statistics are added: all_reduce (the fastest) or exact (always the same for a number of shards,
    however many processes share them out)"""
    shards: int | None = None
    """Learners in all, for ranks.mode=exact; a multiple of the processes. None: one for each process"""
    timeout: float = 300.0
    """Seconds that a process waits for the others, which may be evaluating or saving meanwhile, until the training ends"""

    def __post_init__(self) -> None:
        for name in ("processes", "shards"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= 4096:
                raise ConfigError(f"ranks.{name}={value} must be from 1 to 4096")
        if self.mode not in ("all_reduce", "exact"):
            raise ConfigError(f"ranks.mode={self.mode!r} must be one of all_reduce, exact")
        if self.shards is not None and self.mode != "exact":
            raise ConfigError(f"ranks.shards={self.shards} is for --ranks.mode exact")
        if not self.timeout > 0:
            raise ConfigError(f"ranks.timeout={self.timeout} must be above 0")


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Destinations of metrics, and the terminal's board. metrics.jsonl and timing.jsonl are always written."""

    tensorboard: bool = False
    """Also write events for TensorBoard, to events/ in the run's folder; needs the extra tb"""
    wandb: Literal["off", "offline", "online"] = "off"
    """Also log to Weights & Biases: offline (into the run's folder) or online; needs the extra wandb"""
    wandb_project: str = "fugu"
    """Project of the run in Weights & Biases"""
    sink: str | None = None
    """Logger of your own, file.py:Class or module:Class, with write(step, metrics) and close(); none: no such logger"""
    infos: tuple[str, ...] = ()
    """Numbers in the info of an episode's last step whose means are logged as env/NAME; is_success always is"""
    board: Literal["auto", "board", "lines", "off"] = "auto"
    """Display in the terminal: board, lines (plain text) or off; auto: the board if the output is a terminal, else lines"""
    interval: float = 5.0
    """Seconds between plain lines"""

    def __post_init__(self) -> None:
        for field, known in (("wandb", ("off", "offline", "online")), ("board", ("auto", "board", "lines", "off"))):
            if getattr(self, field) not in known:
                raise ConfigError(f"log.{field}={getattr(self, field)!r} must be one of {', '.join(known)}")
        if self.sink is not None and not all(self.sink.rpartition(":")):
            raise ConfigError(f"log.sink={self.sink!r} must be file.py:Class or module:Class")
        object.__setattr__(self, "infos", info_names("log.infos", self.infos))
        if not self.interval > 0:
            raise ConfigError(f"log.interval={self.interval} must be positive; try --log.interval 5")
