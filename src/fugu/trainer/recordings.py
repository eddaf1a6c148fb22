"""Recorded episodes that a run learns from: opened, and checked before anything starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fugu.emulation.env import EnvSpec
from fugu.emulation.place import is_code
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
    env, kwargs, executes = env_of(data)
    if executes and config.eval.every is not None and (config.env, config.env_kwargs) == (env, kwargs):
        raise ConfigError(
            f"{path} was recorded in {executes}, which may execute code: name it yourself if that is what you want: --env NAME, with "
            "its settings as --env.SETTING VALUE"
        )
    data.require()
    return data


def env_of(data: DataSet) -> tuple[str, Mapping[str, Any], str]:
    """Return the environment that ``data`` was recorded in, its settings, and nothing; or a mere name, no settings, and what it was
    recorded in.

    A data set may come from anywhere, and its environment is made for evaluations. One that would execute code is only called by a name
    here: whoever wants it names it.
    """
    recorded = data.about["recorded"]
    env, kwargs = str(recorded.get("env") or data.spec.name), recorded.get("env_kwargs") or {}
    if is_code(env) or "coding" in env.lower() or not _harmless(kwargs):
        return re.sub(r"\W+", "-", data.spec.name), {}, env + (f" with {kwargs}" if kwargs else "")
    return env, kwargs, ""


def _harmless(value: Any) -> bool:
    """Return whether settings hold nothing but numbers and plain words: no paths, and no names of code."""
    if isinstance(value, Mapping):
        return all(map(_harmless, (*value.keys(), *value.values())))
    if isinstance(value, list | tuple):
        return all(map(_harmless, value))
    return re.fullmatch(r"[\w-]*", value) is not None if isinstance(value, str) else True


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
