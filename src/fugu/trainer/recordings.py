"""Recorded episodes that a run learns from: opened, and checked before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fugu.emulation.env import EnvSpec
from fugu.errors import ConfigError
from fugu.trainer.config import TrainConfig, learns_from_data

if TYPE_CHECKING:
    from fugu.data import DataSet


def recordings(config: TrainConfig) -> DataSet | None:
    """Return the recorded episodes that a run learns from, after a look at every row; None if it plays environments."""
    if not learns_from_data(config.algorithm):
        return None
    path = config.part("data").path
    if not path:
        raise ConfigError(
            f"{config.algorithm} learns from recorded episodes; type fugu train FILE --algorithm {config.algorithm}, with what fugu "
            "record wrote, or --data.path FILE"
        )
    if config.epochs > 1:
        raise ConfigError(f"epochs={config.epochs}: of recorded episodes rows are drawn anew each time; leave it at 1")
    from fugu.data import open

    data = open(path)
    data.require()
    return data


def unknown(config: TrainConfig) -> str:
    """Return the statement of what a run without environments does not know."""
    return (
        f"no environment is played, so the return that this policy gets is not known, only how well it fits "
        f"{config.part('data').path}; --eval plays it in {config.env} now and then, fugu eval RUN afterwards"
    )


def refuse_other_env(data: DataSet, spec: EnvSpec) -> None:
    """Raise a ConfigError if what was recorded would not fit into the environments of evaluations."""
    name = data.spec.difference(spec)
    if name is not None:
        raise ConfigError(
            f"{data.path} was recorded with {name} {getattr(data.spec, name)}, but {spec.name} has {getattr(spec, name)}; give the "
            "environment that it was recorded in: --env NAME"
        )
