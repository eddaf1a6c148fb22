"""``make``: an environment's name, class or factory -> a vector env."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fugu.emulation.build import build, is_built, load
from fugu.emulation.env import Autoreset
from fugu.emulation.factory import Emulation, factories
from fugu.emulation.native import is_name, names
from fugu.errors import ConfigError, did_you_mean
from fugu.vector.config import VectorConfig
from fugu.vector.serial import Serial
from fugu.vector.vecenv import VecEnv


def make(
    env: Any,
    num_envs: int | None = None,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    autoreset: Autoreset = "next_step",
    check_finite: bool = True,
    cast: bool = False,
    config: VectorConfig | None = None,
    **settings: Any,
) -> VecEnv:
    """Many copies of ``env`` as one vector env.

    ``env`` is the name of a native environment (``cartpole``) or a header with one (``my_env.h``), a Gymnasium id,
    ``module:Class``, ``file.py:Class``, a class, a callable that returns an environment, or a list of these with one entry per
    environment. ``settings`` are the fields of ``VectorConfig`` (``num_workers``, ``batch_size``, ``backend``, ``seed``, ...); or
    give a whole ``config``. What a native environment has for settings is given as ``env_kwargs``.
    """
    if config is None:
        if num_envs is None:
            num_envs = len(env) if isinstance(env, list | tuple) else 1
        unknown = [name for name in settings if name not in VectorConfig.__dataclass_fields__]
        if unknown:
            raise ConfigError(
                f"make() has no setting {unknown[0]!r}.{did_you_mean(unknown[0], VectorConfig.__dataclass_fields__)}"
            )
        config = VectorConfig(num_envs=num_envs, **settings)
    elif settings or num_envs is not None:
        raise ConfigError("give either a config or single settings, not both")
    if is_built(env) and config.backend in ("auto", "native"):
        env = load(build(env))
    if is_name(env) and config.backend in ("auto", "native"):
        from fugu.vector.native import Native

        config = dataclasses.replace(config, backend="native")
        return VecEnv(Native(env, config, env_kwargs or {}), config)
    if config.backend == "native":
        raise ConfigError(f"backend='native' steps native environments only: {', '.join(names())}; got {env!r:.60}")
    emulation = Emulation(autoreset=autoreset, check_finite=check_finite, cast=cast)
    made = factories(env, config.num_envs, env_kwargs, emulation)
    if config.resolved_backend == "serial":
        return VecEnv(Serial(made, config), config)
    from fugu.vector.process import Process

    return VecEnv(Process(made, config), config)
