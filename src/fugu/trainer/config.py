"""Everything that decides what a training run does. Needs no torch; a run's ``config.toml`` holds exactly these fields."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from fugu.algorithm.config import GRPOConfig, MAPPOConfig, PPOConfig, SafeConfig, SelfPlayConfig, TokenPPOConfig
from fugu.config import SEEDS
from fugu.errors import ConfigError, did_you_mean
from fugu.policy.config import PolicyConfig
from fugu.run.config import LogConfig
from fugu.vector.config import VectorConfig, nearest_divisor


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How weights follow gradients."""

    name: Literal["adam", "muon"] = "adam"
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
class TrainConfig:
    """A training run."""

    env: str = "cartpole"
    """name of a native environment, my_env.h, a Gymnasium id, module:Class or file.py:Class"""
    algorithm: Literal["ppo", "safe_ppo", "mappo", "grpo", "token_ppo", "self_play"] = "ppo"
    """how it learns: ppo, safe_ppo (under limits on what episodes cost), mappo (for teams: its critic sees more than the actors do),
    grpo (episodes that began alike, against each other), token_ppo (texts, with a value for every token), self_play (against earlier
    versions)"""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """settings of the environment; on the command line --env.NAME VALUE. Lists in them become tuples"""
    seed: int = 0
    """of everything random: weights, actions, order of minibatches, environments"""
    steps: int = 1_000_000
    """how many to train for, counted over all agents"""
    target: float | None = None
    """stop once the mean return of the last 100 episodes is at least this"""
    horizon: int = 32
    """steps of an agent in a row that are learned from as one segment"""
    passes: int = 1
    """segments per agent in a batch"""
    minibatch: int | None = None
    """rows per gradient step; none: the whole batch. Whole segments that divide the batch"""
    epochs: int = 1
    """how often a batch is gone through"""
    device: str = "cpu"
    """where the policy learns: cpu, cuda, cuda:1. On a GPU environments in C++ and in torch are there as well"""
    precision: Literal["auto", "float32", "tf32", "bf16"] = "auto"
    """of matrix products: float32, tf32 (10 bits of mantissa; GPUs) or bf16 (7; CPUs too, if they know it and torch computes the
    network, as it does those for images). auto: tf32 on a GPU, float32 on a CPU"""
    threads: int | None = None
    """that compute the policy; none: one per usable core"""
    vector: VectorConfig = field(default_factory=lambda: VectorConfig(num_envs=64))
    """how many environments, and who steps them"""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """the network"""
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """proximal policy optimization"""
    safe: SafeConfig = field(default_factory=SafeConfig)
    """limits on what episodes cost, for safe_ppo"""
    mappo: MAPPOConfig = field(default_factory=MAPPOConfig)
    """what mappo adds to it"""
    self_play: SelfPlayConfig = field(default_factory=SelfPlayConfig)
    """games against earlier versions of the policy"""
    grpo: GRPOConfig = field(default_factory=GRPOConfig)
    """group-relative policy optimization"""
    token_ppo: TokenPPOConfig = field(default_factory=TokenPPOConfig)
    """ppo over the tokens of texts"""
    imitation: ImitationConfig = field(default_factory=ImitationConfig)
    """examples to learn from before the first batch"""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """how weights follow gradients"""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """when the run is saved"""
    log: LogConfig = field(default_factory=LogConfig)
    """where metrics go"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "env_kwargs", _with_tuples(self.env_kwargs))
        if self.algorithm not in READS:
            raise ConfigError(f"there is no algorithm {self.algorithm!r}.{did_you_mean(str(self.algorithm), READS)}")
        for name in ("seed", "steps", "horizon", "passes", "minibatch", "epochs", "threads"):
            value = getattr(self, name)
            if value is None and name in ("minibatch", "threads"):
                continue
            if isinstance(value, float) and value.is_integer():
                value = int(value)  # 1e6
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise ConfigError(f"{name}={value!r} must be a whole number")
            object.__setattr__(self, name, operator.index(value))
            if value < 1 and name != "seed":
                raise ConfigError(f"{name}={value} must be at least 1")
        if self.vector.seed:
            raise ConfigError(
                f"vector.seed={self.vector.seed}: a run has one seed for everything; give --seed {self.vector.seed}"
            )
        if self.precision not in ("auto", "float32", "tf32", "bf16"):
            raise ConfigError(f"precision={self.precision!r} must be auto, float32, tf32 or bf16")
        if self.device == "cpu" and self.precision == "tf32":
            raise ConfigError("precision=tf32 is for GPUs; a CPU computes in float32: leave it at auto")
        if self.target is not None and not math.isfinite(self.target):
            raise ConfigError(f"target={self.target} must be a number that a mean return can reach")
        if not 0 <= self.seed < SEEDS:
            raise ConfigError(f"seed={self.seed} must not be negative, and below 2**63")
        if self.minibatch is not None and self.minibatch % self.horizon:
            # What divides the segments of one agent divides those of many, which only the environment knows.
            near = nearest_divisor(self.passes * self.vector.num_envs, self.minibatch / self.horizon) * self.horizon
            raise ConfigError(
                f"minibatch={self.minibatch} must be a multiple of horizon={self.horizon}: minibatches are whole segments; "
                f"try --minibatch {near}"
            )

    def from_checkpoint(self) -> TrainConfig:
        """The same where all weights come from a checkpoint: files that they came from once need no longer be there."""
        return replace(
            self,
            policy=replace(self.policy, start=None),
            self_play=replace(self.self_play, opponents=()),
            imitation=ImitationConfig(),
        )

    def minibatches(self, segments: int) -> int:
        """Into how many minibatches a batch of this many segments falls."""
        batch = segments * self.horizon
        rows = self.minibatch or batch
        if rows > batch:
            raise ConfigError(
                f"minibatch={rows} is more than the batch of {batch} rows ({segments} segments x {self.horizon} steps); "
                f"try --minibatch {batch}, or --horizon {rows // math.gcd(rows, segments)}"
            )
        each = rows // self.horizon
        if segments % each:
            near = nearest_divisor(segments, each) * self.horizon
            raise ConfigError(
                f"minibatch={rows} ({each} segments) must divide the batch of {segments} segments of {self.horizon} rows; "
                f"try --minibatch {near}"
            )
        if rows == 1 and self.algorithm != "grpo" and self.ppo.normalize_advantage == "minibatch":
            raise ConfigError(
                "a minibatch of one row: its advantage, normalised over the minibatch, is 0 and teaches nothing; "
                "try a larger --minibatch, or --ppo.normalize_advantage batch"
            )
        return segments // each


READS: Mapping[str, tuple[str, ...]] = {
    "ppo": ("ppo",),
    "safe_ppo": ("ppo", "safe"),
    "mappo": ("ppo", "mappo"),
    "grpo": ("grpo",),
    "token_ppo": ("ppo", "token_ppo"),
    "self_play": ("ppo", "self_play"),
}
"""algorithm -> the sections that it looks at, its own last; the others' mean nothing to it"""


UNREAD: Mapping[str, Mapping[str, str]] = {
    "mappo": {"normalize_value": "mappo.value_norm"},
    "token_ppo": {
        "gamma": "token_ppo.token_gamma",
        "lam": "token_ppo.token_lam",
        "entropy_coef": "token_ppo.token_entropy",
        **dict.fromkeys(("entropy_final", "normalize_reward", "normalize_value", "reward_clip"), ""),
        **dict.fromkeys(("vtrace", "rho_clip", "c_clip", "priority", "priority_correction"), ""),
    },
}
"""algorithm -> fields of ``ppo`` that it does not look at though it does at others, and what it has instead, if anything"""


def refuse_unread(before: TrainConfig, after: TrainConfig) -> None:
    """A ConfigError if what was changed is a setting that the algorithm does not read: whoever typed it expects it to do something."""
    reads = READS[after.algorithm]
    for section in sorted({name for names in READS.values() for name in names} - {*reads}):
        old, new = getattr(before, section), getattr(after, section)
        changed = next((f.name for f in fields(new) if getattr(old, f.name) != getattr(new, f.name)), None)
        if changed is not None:
            owner = next(name for name, sections in READS.items() if sections[-1] == section)
            raise ConfigError(
                f"{section}.{changed} means nothing to algorithm={after.algorithm}, whose own settings are those of "
                f"{' and '.join(reads)}; leave it out or use --algorithm {owner}"
            )
    for name, instead in UNREAD.get(after.algorithm, {}).items():
        if getattr(before.ppo, name) != getattr(after.ppo, name):
            raise ConfigError(
                f"ppo.{name} means nothing to algorithm={after.algorithm}; "
                + (f"it has {instead} instead" if instead else "leave it out")
            )


def _with_tuples(value: Any) -> Any:
    """TOML knows one kind of sequence, and a run that goes on from its file must see what it began with. Tuples, because they are
    what environments can be strict about (``frameskip=(2, 5)`` of Atari) and nobody can change them."""
    if isinstance(value, Mapping):
        return {name: _with_tuples(inner) for name, inner in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list | tuple) else value
