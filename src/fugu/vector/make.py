"""``make``: an environment's name, class or factory -> a vector env."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from fugu.emulation.build import build, is_built, is_compiled, load
from fugu.emulation.env import Autoreset, is_deferred
from fugu.emulation.factory import Emulation, Factory, factories, tensor_env_class
from fugu.emulation.native import is_name, names
from fugu.emulation.place import meaning
from fugu.errors import ConfigError, GpuError, did_you_mean
from fugu.vector.config import VectorConfig
from fugu.vector.serial import Serial
from fugu.vector.vecenv import VecEnv

if TYPE_CHECKING:
    from fugu.vector.device import DeviceVec


@overload
def make(
    env: Any,
    num_envs: int | None = None,
    *,
    backend: Literal["device"],
    device: str,
    env_kwargs: Mapping[str, Any] | None = None,
    compile: bool | None = None,
    seed: int = 0,
) -> DeviceVec: ...


@overload
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
) -> VecEnv: ...


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
) -> VecEnv | DeviceVec:
    """Make many copies of ``env`` and return them as one vector env.

    ``env`` is the name of a native environment (``cartpole``) or a header with one (``my_env.h``), a Gymnasium id,
    ``module:Class``, ``file.py:Class``, a class, a callable that returns an environment, or a list of these with one entry per
    environment. ``settings`` are the fields of ``VectorConfig`` (``num_workers``, ``batch_size``, ``backend``, ``seed``, ...); or
    give a whole ``config``. What a native environment has for settings is given as ``env_kwargs``. With a ``device`` the worlds
    stay there and the result is a ``DeviceVec``.
    """
    env = meaning(env)
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
    if config.compile:
        _check_compile(env, config)
    if config.resolved_backend == "device":
        return make_device(env, config, env_kwargs or {})
    if config.backend == "ray":
        from fugu.vector.ray import Ray

        emulated = {"autoreset": autoreset, "check_finite": check_finite, "cast": cast}
        return VecEnv(Ray(env, config, {"env_kwargs": env_kwargs, **emulated}), config)
    apart = config.isolate or config.on_error == "restart"
    if config.backend == "native" and apart:
        raise ConfigError(
            "backend='native' steps worlds in this process, all by one engine: it can neither isolate nor restart one; use "
            "backend='process'"
        )
    threaded = config.backend == "native" or (config.backend == "auto" and not apart)
    if is_built(env) and threaded:
        env = load(build(env))
    if is_name(env) and threaded:
        from fugu.vector.native import Native

        config = dataclasses.replace(config, backend="native")
        return VecEnv(Native(env, config, env_kwargs or {}), config)
    if config.backend == "native":
        raise ConfigError(f"backend='native' steps native environments only: {', '.join(names())}; got {env!r:.60}")
    if _steps_here(config) and (tensor_env := tensor_env_class(env)) is not None:
        from fugu.vector.tensor import Tensors

        config = dataclasses.replace(config, backend="serial")
        return VecEnv(Tensors(lambda: tensor_env(**env_kwargs or {}), config), config)
    emulation = Emulation(autoreset=autoreset, check_finite=check_finite, cast=cast or config.cast)
    made = factories(env, config.num_envs, env_kwargs, emulation)
    if _computed_elsewhere(made, config):
        config = dataclasses.replace(config, backend="serial")
    if config.resolved_backend == "serial":
        return VecEnv(Serial(made, config), config)
    from fugu.vector.process import Process

    config = dataclasses.replace(config, backend="process")
    return VecEnv(Process(made, config), config)


def _check_compile(env: Any, config: VectorConfig) -> None:
    if tensor_env_class(env) is None:
        raise ConfigError(
            f"compile=True is for environments in torch (fugu.emulation.tensor says what that is); got {env!r:.60}"
        )
    if config.resolved_backend != "device" and not _steps_here(config):
        raise ConfigError(
            "compile=True steps all worlds at once in this process; leave out backend, num_workers, isolate and on_error"
        )


def _steps_here(config: VectorConfig) -> bool:
    """Return True if nothing asks for other processes or for environments that are restarted one by one."""
    alone = config.num_workers in (None, 1) and not config.isolate and config.on_error == "raise"
    return alone and config.backend in ("auto", "serial")


def _computed_elsewhere(made: Sequence[Factory], config: VectorConfig) -> bool:
    """Return whether our processes would only wait for steps that others compute. Known for classes, not for functions that return
    an environment."""
    chosen = config.backend == "auto" and config.num_workers is None and not config.isolate
    return chosen and all(isinstance(one.make, type) and is_deferred(one.make) for one in made)


def make_device(env: Any, config: VectorConfig, env_kwargs: Mapping[str, Any]) -> DeviceVec:
    """Make worlds that stay on ``config.device``: of a C++ environment, or of a ``TensorEnv``."""
    tensor_env = tensor_env_class(env)
    if tensor_env is None and not is_compiled(env):
        raise ConfigError(
            f"{env!r:.60} cannot run on a device: it is neither a C++ environment ({', '.join(names())}, or a header: my_env.h) nor a "
            "TensorEnv (fugu.emulation.tensor says what that is); use backend='process', which steps it on the CPU"
        )
    from fugu.vector.device import DeviceVec

    device = _usable_device(config.device or "")
    config = dataclasses.replace(config, backend="device")
    if tensor_env is not None:
        from fugu.emulation.tensor import TensorWorlds

        compile = device.type == "cuda" if config.compile is None else config.compile
        return DeviceVec(TensorWorlds(tensor_env(**env_kwargs), config.num_envs, device, compile=compile), config, device)
    from fugu.vector.device_native import NativeDevice

    return DeviceVec(NativeDevice(env, config.num_envs, env_kwargs, device), config, device)


def _usable_device(name: str) -> Any:
    import torch

    device = torch.device(name)
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        build = "is built for the CPU only" if torch.version.cuda is None else "finds no GPU"
        raise GpuError(
            f"device={name!r} needs an NVIDIA GPU, and torch {torch.__version__} {build}; `fugu doctor` says why. "
            "On the CPU use backend='native' or 'process'"
        )
    count = torch.cuda.device_count()
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= count:
        raise GpuError(f"device={name!r}: there {'is one GPU' if count == 1 else f'are {count} GPUs'}, numbered from cuda:0")
    return torch.device("cuda", index)
