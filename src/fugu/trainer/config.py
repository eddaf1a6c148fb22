"""All settings of a training run. Needs no torch; a run's ``config.toml`` holds exactly these fields.

A config is one member of a union, of which ``algorithm`` is the tag: beside the fields that all members share it has the sections
of its algorithm (``algorithm/settings.py``) and no others. ``TrainConfig(algorithm="grpo", ...)`` makes the right member, as
``pathlib.Path`` makes a ``PosixPath``.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fugu.algorithm.find import check_name, is_own
from fugu.algorithm.settings import ALL, KNOWN, fixed_sections, gathered, means_nothing, narrowed, sections
from fugu.config import SEEDS, field_paths, find_field, fixed, read_toml, refuse_absurd, structure
from fugu.emulation.place import cached_by_meaning
from fugu.errors import ConfigError
from fugu.policy.config import PolicyConfig
from fugu.rollout.config import DataConfig, RolloutConfig
from fugu.trainer.config_parts import CheckpointConfig, EvalConfig, ImitationConfig, LogConfig, OptimizerConfig, RanksConfig
from fugu.vector.config import VectorConfig, nearest_divisor

__all__ = ["CheckpointConfig", "EvalConfig", "ImitationConfig", "LogConfig", "OptimizerConfig", "RanksConfig", "TrainConfig"]

MOST = {"epochs": 1_000_000, "threads": 4096}
"""greatest values of what takes time, or stands ready, without taking memory first"""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run."""

    env: str = fixed("cartpole")
    """Environment: a native one by name, my_env.h, a Gymnasium id, module:Class or file.py:Class"""
    algorithm: str = fixed("ppo")
    """Algorithm: ppo, a2c (the simplest actor-critic), sac (learns from each row many times), dreamer (learns a model of the world, and
    inside it), safe_ppo (limits on the cost of episodes), mappo (teams, with a critic that sees more than the actors), grpo (compares
    episodes that began alike), token_ppo (texts, with a value for every token), self_play (against earlier versions); from recorded
    episodes: bc (does what was done), dt (reaches the return it is told), iql (learns what was worth doing), td3bc (the same for
    numbers); or one of your own: file.py:Class or module:Class"""
    env_kwargs: Mapping[str, Any] = fixed(default_factory=dict)
    """Settings of the environment; --env.NAME VALUE on the command line. Lists in them become tuples"""
    seed: int = fixed(0)
    """Seed of everything random: weights, actions, order of minibatches, environments"""
    steps: int = 1_000_000
    """Steps to train for, counted over all agents, or gradient steps where recorded episodes are learned from; the run ends after the
    batch that reaches them"""
    target: float | None = None
    """Score at which training stops: the mean return of the last 100 episodes, or of an evaluation with --eval.every; in self-play the
    rating. Limits on costs must be kept as well; none: no target"""
    horizon: int = 32
    """Steps in a row of one agent that form a segment"""
    passes: int = 1
    """Segments per agent in a batch"""
    minibatch: int | None = None
    """Rows per gradient step, in whole segments that divide the batch; none: the whole batch"""
    epochs: int = 1
    """Passes over each batch"""
    device: str = fixed("cpu")
    """Device the policy learns on: cpu, cuda, cuda:1. On a GPU, environments in C++ and in torch run there as well"""
    precision: Literal["auto", "float32", "tf32", "bf16"] = "auto"
    """Precision of matrix products: float32, tf32 (10 bits of mantissa; GPUs) or bf16 (7 bits; also CPUs that support it, where
    torch computes the network, as for images); auto: tf32 on a GPU, float32 on a CPU"""
    overlap: bool = fixed(False)
    """Play the next batch while the one before it is learned from, with weights one update old. Pays where environments wait (for a
    sandbox, a network, another process) or a GPU learns; not where both share the same cores"""
    threads: int | None = None
    """Threads that compute the policy; none: one per usable core"""
    vector: VectorConfig = field(default_factory=lambda: VectorConfig(num_envs=64))
    """Number of environments, and the workers that step them"""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """Nodes of a Ray cluster that play by themselves"""
    policy: PolicyConfig = fixed(default_factory=PolicyConfig)
    """Network that maps observations to actions and values"""
    imitation: ImitationConfig = fixed(default_factory=ImitationConfig)
    """Examples to learn from before the first batch"""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Optimizer and learning rate"""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Times at which the run is saved"""
    eval: EvalConfig = field(default_factory=EvalConfig)
    """Evaluation during training"""
    ranks: RanksConfig = field(default_factory=RanksConfig)
    """Processes that learn together"""
    log: LogConfig = field(default_factory=LogConfig)
    """Destinations of metrics, and the terminal's board"""

    if TYPE_CHECKING:  # fields and sections are those of the member

        def __init__(self, **fields: Any) -> None: ...

        def __getattr__(self, section: str) -> Any: ...

    def __new__(cls, *, algorithm: str = "ppo", **fields: Any) -> TrainConfig:
        """Make the member of the union that ``algorithm`` names."""
        return object.__new__(member(algorithm) if cls is TrainConfig else cls)

    def __post_init__(self) -> None:
        object.__setattr__(self, "env_kwargs", _with_tuples(self.env_kwargs))
        if type(self) is not member(self.algorithm):
            raise ConfigError(
                f"algorithm={self.algorithm} has settings of its own; use with_algorithm(config, {self.algorithm!r})"
            )
        for name in sections(self.algorithm):
            object.__setattr__(self, name, narrowed(self.algorithm, name, getattr(self, name), strict=True))
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
            if value > MOST.get(name, value):
                raise ConfigError(f"{name}={value} must be at most {MOST[name]}")
        if self.vector.seed:
            raise ConfigError(
                f"vector.seed={self.vector.seed}: a run has one seed for everything; give --seed {self.vector.seed}"
            )
        if self.rollout.nodes is not None and self.overlap:
            raise ConfigError(
                "overlap=True plays ahead in this process, and with rollout.nodes the nodes play: --rollout.lag 1 has them play ahead; "
                "leave --overlap out"
            )
        if self.rollout.nodes is not None and self.vector.backend in ("ray", "device"):
            raise ConfigError(
                f"rollout.nodes={self.rollout.nodes} lets nodes play by themselves, and vector.backend={self.vector.backend} says who "
                "steps the environments of one process; leave one of the two out"
            )
        if self.vector.episode_infos:
            names = " ".join(self.vector.episode_infos)
            raise ConfigError(f"vector.episode_infos: in a training these are log.infos; give --log.infos {names}")
        if self.precision not in ("auto", "float32", "tf32", "bf16"):
            raise ConfigError(f"precision={self.precision!r} must be auto, float32, tf32 or bf16")
        if self.device == "cpu" and self.precision == "tf32":
            raise ConfigError("precision=tf32 is for GPUs; a CPU computes in float32: leave it at auto")
        if self.target is not None and not math.isfinite(self.target):
            raise ConfigError(f"target={self.target} must be a number that a mean return can reach")
        if not 0 <= self.seed < SEEDS:
            raise ConfigError(f"seed={self.seed} must not be negative, and below 2**63")
        refuse_absurd(self)
        if self.minibatch is not None and self.minibatch % self.horizon:
            # What divides the segments of one agent divides those of many, which only the environment knows.
            near = nearest_divisor(self.passes * self.vector.num_envs, self.minibatch / self.horizon) * self.horizon
            raise ConfigError(
                f"minibatch={self.minibatch} must be a multiple of horizon={self.horizon}: minibatches are whole segments; "
                f"try --minibatch {near}"
            )

    def from_checkpoint(self) -> TrainConfig:
        """Return the config with all weights taken from a checkpoint: files that they first came from need no longer exist."""
        found: dict[str, Any] = {"policy": replace(self.policy, start=None), "imitation": ImitationConfig()}
        if self.algorithm == "self_play":
            found["self_play"] = replace(self.part("self_play"), opponents=())
        return replace(self, **found)

    def __reduce__(self) -> Any:
        return _remade, ({each.name: getattr(self, each.name) for each in fields(self)},)

    @property
    def settings(self) -> Any:
        """Return the settings of the algorithm, as its ``Config``; None if it has none."""
        return gathered(self.algorithm, {name: self.part(name) for name in sections(self.algorithm)})

    def part(self, section: str) -> Any:
        """Return a section of the algorithm's settings."""
        return getattr(self, section)

    def minibatches(self, segments: int) -> int:
        """Return the number of minibatches in a batch of this many segments."""
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
        if rows == 1 and "ppo" in sections(self.algorithm) and self.part("ppo").normalize_advantage == "minibatch":
            raise ConfigError(
                "a minibatch of one row: its advantage, normalised over the minibatch, is 0 and teaches nothing; "
                "try a larger --minibatch, or --ppo.normalize_advantage batch"
            )
        return segments // each


def _remade(values: Mapping[str, Any]) -> TrainConfig:
    return TrainConfig(**values)


@cached_by_meaning
def member(algorithm: str) -> type[TrainConfig]:
    """Return the class of configs with the sections of ``algorithm``."""
    check_name(algorithm)
    own = sections(algorithm)
    taken = [name for name in own if name in {each.name for each in fields(TrainConfig)}]
    if taken:
        raise ConfigError(f"{algorithm}: its settings cannot be called {taken[0]}, which a run has already; rename the class")
    kept = fixed_sections(algorithm)
    made: list[Any] = [
        (name, kind, fixed(default_factory=kind) if name in kept else field(default_factory=kind)) for name, kind in own.items()
    ]
    made.append(("algorithm", str, fixed(algorithm)))
    space = {"_made": True, "__doc__": TrainConfig.__doc__, "__module__": __name__}
    return dataclasses.make_dataclass("TrainConfig", made, bases=(TrainConfig,), namespace=space, frozen=True, kw_only=True)


def learns_from_data(algorithm: str) -> bool:
    """Return whether an algorithm learns from recorded episodes alone: one with a section ``data`` does."""
    return sections(algorithm).get("data") is DataConfig


def with_algorithm(config: TrainConfig, algorithm: str) -> TrainConfig:
    """Return ``config`` for another algorithm: sections that both have stay as they are, its own are at their defaults."""
    if algorithm == config.algorithm:
        return config
    kind = member(algorithm)
    common = {each.name: getattr(config, each.name) for each in fields(TrainConfig) if each.name != "algorithm"}
    shared = {
        name: narrowed(algorithm, name, config.part(name), strict=False)
        for name in sections(algorithm)
        if name in sections(config.algorithm)
    }
    return kind(algorithm=algorithm, **common, **shared)


def read_config(path: Path, kept: Callable[[dict[str, Any]], None] | None = None) -> TrainConfig:
    """Read a run's ``config.toml``. Sections and fields that earlier versions wrote for other algorithms are passed over. ``kept``
    may change what was read before anything is made of it: the class of an algorithm of the user's own is loaded for its settings."""
    data = read_toml(path)
    if kept is not None:
        kept(data)
    data = own_settings(data)
    return structure(member(data.get("algorithm", "ppo")), data, str(path))


def own_settings(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of a config without sections and fields that only other algorithms have."""
    data, algorithm = dict(data), data.get("algorithm", "ppo")
    check_name(algorithm)
    for other in KNOWN:
        for name, section in sections(other).items():
            known = {each.name for each in fields(section)}
            if name not in sections(algorithm):
                data.pop(name, None)
            elif isinstance(data.get(name), dict):
                mine = {each.name for each in fields(sections(algorithm)[name])}
                data[name] = {key: value for key, value in data[name].items() if key in mine or key not in known}
    return data


def without_algorithm(data: dict[str, Any]) -> None:
    """Leave out of what was read whatever only an algorithm of the user's own understands, so that it need not be loaded."""
    if is_own(str(data.get("algorithm", "ppo"))):
        common = {each.name for each in fields(TrainConfig)} - {"algorithm"}
        for name in [name for name in data if name not in common]:
            del data[name]


def refuse_unread(config: TrainConfig, changes: Mapping[str, Any]) -> None:
    """Raise a ConfigError if one of ``changes`` is a setting that the run's algorithm does not have and another one has: a setting
    that is typed is expected to do something."""
    names = list(changes)
    names += [f"{name}.{inner}" for name, value in changes.items() if isinstance(value, Mapping) for inner in value]
    for name in names:
        wanted = name.replace("-", "_")
        try:
            find_field(type(config), wanted)
        except ConfigError:
            paths = {".".join(path): None for other in ALL for path in field_paths(member(other))}  # type: ignore[arg-type]
            meant = [path for path in paths if wanted in (path, path.rpartition(".")[2])]
            own = [path for path in meant if path.partition(".")[0] in sections(config.algorithm)]
            why = means_nothing(config.algorithm, (own or meant)[0]) if meant else None
            if why is not None:
                raise ConfigError(why) from None


def _with_tuples(value: Any) -> Any:
    """Return ``value`` with its lists as tuples: TOML knows one kind of sequence, and a resumed run must see what it began with.
    Tuples, because environments can be strict about them (``frameskip=(2, 5)`` of Atari) and they cannot be changed."""
    if isinstance(value, Mapping):
        return {name: _with_tuples(inner) for name, inner in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list | tuple) else value
