"""Turn what a user calls an environment into factories that build it as a ``fugu.Env``, here or in another process.

Accepted: the name of an environment of ours (``cartpole``, ``coding``), a Gymnasium id (``CartPole-v1``, ``module:Id-v0``),
``module:Class``, ``file.py:Class``, ``my_env.h``, a class, a callable that returns an environment, or a list of these; environments are
Gymnasium's, PettingZoo's, ``fugu.Env`` or a ``TensorEnv`` (emulation/tensor.py). A ``Factory`` is small and travels by cloudpickle.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium

from fugu.emulation import beside
from fugu.emulation.build import build, is_built, load
from fugu.emulation.env import Autoreset, Env
from fugu.emulation.gymnasium import GymnasiumEnv, _takes
from fugu.emulation.native import NativeEnv, is_name, names
from fugu.emulation.place import meaning
from fugu.errors import ConfigError, FuguError, LoadError, NotInstalled, did_you_mean


@dataclass(frozen=True, kw_only=True)
class Emulation:
    """Settings of how environments are adapted."""

    autoreset: Autoreset = "next_step"
    """when an ended episode restarts: on the next step (fugu's own rule) or within the same one"""
    check_finite: bool = True
    """refuse observations with NaN or infinity"""
    cast: bool = False
    """accept another dtype of the same kind than the space declares (float64 for float32)"""


@dataclass(frozen=True)
class Factory:
    """Builds one environment. Calling it gives an ``Env``."""

    make: Callable[..., Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    emulation: Emulation = field(default_factory=Emulation)

    def __call__(self) -> Env:
        try:
            return emulate(self.make(**self.kwargs), self.emulation)
        except gymnasium.error.DependencyNotInstalled as error:
            raise NotInstalled(str(error)) from error


def factories(
    env: Any, num_envs: int, kwargs: Mapping[str, Any] | None = None, emulation: Emulation | None = None
) -> list[Factory]:
    """Return one factory per environment. ``env`` may be a list with one entry per environment."""
    env, kwargs, emulation = meaning(env), kwargs or {}, emulation or Emulation()
    if isinstance(env, list | tuple):
        if len(env) != num_envs:
            raise ConfigError(f"a list of {len(env)} environments needs num_envs={len(env)}, got num_envs={num_envs}")
        return [Factory(_maker(entry), kwargs, emulation) for entry in env]
    return [Factory(_maker(env), kwargs, emulation)] * num_envs


def emulate(env: Any, emulation: Emulation | None = None) -> Env:
    """Adapt any environment to a ``fugu.Env``; one that already is comes back unchanged."""
    emulation = emulation or Emulation()
    if is_native(env):
        return env
    if is_tensor_env(env):
        from fugu.emulation.tensor import TensorWorld

        return TensorWorld(env)
    options: dict[str, Any] = {"autoreset": emulation.autoreset, "check_finite": emulation.check_finite, "cast": emulation.cast}
    if isinstance(env, gymnasium.vector.VectorEnv):
        from fugu.emulation.gymnasium_vector import GymnasiumVectorEnv

        return GymnasiumVectorEnv(env, **options)
    if hasattr(env, "possible_agents") or (hasattr(env, "agents") and callable(env.observation_space)):
        from fugu.emulation.pettingzoo import adapt

        return adapt(env, **options)
    if _is_many(env):
        raise _many(env)
    missing = [name for name in ("observation_space", "action_space", "reset", "step") if not hasattr(env, name)]
    if missing:
        raise ConfigError(
            f"{type(env).__name__} is not an environment: it has no {', '.join(missing)}",
            fix="Expected a Gymnasium or PettingZoo environment or a fugu.Env, or a callable that returns one",
        )
    return GymnasiumEnv(env, **options)


def is_native(env: Any) -> bool:
    """Return True if ``env`` follows the ``fugu.Env`` contract: its ``step`` takes the rows to write into."""
    return hasattr(env, "num_agents") and hasattr(env, "step") and _takes(env.step, "out") and not _has_kwargs(env.step)


def is_tensor_env(env: Any) -> bool:
    """Return True if ``env``, an instance or a class, has the members of a ``TensorEnv`` (emulation/tensor.py)."""
    if not all(callable(getattr(env, name, None)) for name in ("step", "observe", "reset")):
        return False
    return _takes(env.reset, "uniform") and not _has_kwargs(env.reset)


def _is_many(env: Any) -> bool:
    """Return True if ``env`` is a vector env other than Gymnasium's: one of Stable-Baselines3's, or a ``VecEnv`` of ours."""
    return hasattr(env, "num_envs") and hasattr(env, "step") and not isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv)


def _many(env: Any) -> ConfigError:
    return ConfigError(
        f"got a {type(env).__name__}, which is many environments already, and fugu makes them itself",
        fix='Give the environment that is in it, and how many: "CartPole-v1", num_envs=8, or a class or function in place of the name',
    )


def tensor_env_class(env: Any) -> Callable[..., Any] | None:
    """Return the class of a ``TensorEnv``, given itself or as ``module:Class`` or ``file.py:Class``; None if it is none."""
    env = meaning(env)
    if isinstance(env, str):
        if ":" not in env:
            return None
        env = _maker(env)
        env = env.load() if isinstance(env, _FromFile) else env
    return env if isinstance(env, type) and is_tensor_env(env) else None


def _has_kwargs(method: Any) -> bool:
    import inspect

    try:
        return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(method).parameters.values())
    except (TypeError, ValueError):
        return True


def _maker(env: Any) -> Callable[..., Any]:
    if isinstance(env, str):
        return _from_name(env)
    if isinstance(env, gymnasium.envs.registration.EnvSpec):
        return _Registered(env)
    if isinstance(env, type) or (callable(env) and not hasattr(env, "step")):
        return env
    if _is_many(env):
        raise _many(env)
    if hasattr(env, "step"):
        raise ConfigError(
            f"got an instance of {type(env).__name__}; every environment must be built where it runs",
            fix=f"Pass the class, or a function that makes one: lambda: {type(env).__name__}(...)",
        )
    raise ConfigError(f"expected an environment id, class or callable, got {type(env).__name__} {env!r:.60}")


def _from_name(name: str) -> Callable[..., Any]:
    """Find a native environment, ``my_env.h``, ``file.py:Class``, ``module:Class``, ``module:GymId`` or ``GymId`` by its name."""
    if name in NAMED:
        where, _, what = NAMED[name].partition(":")
        return attribute(importlib.import_module(where), what, where)
    if is_name(name):
        return functools.partial(NativeEnv, name)
    if is_built(name):
        return _FromLibrary(str(build(name)))
    head, colon, tail = name.rpartition(":")
    if colon and head.endswith(".py"):
        file = Path(head).resolve()
        if not file.is_file():
            raise ConfigError(f"{head!r}: no such file (looked at {file})")
        made = _FromFile(str(file), tail)
        made.load()  # complain now, in the process the user watches
        return made
    if colon:
        module = load_module(head, name)
        if tail in gymnasium.registry and not hasattr(module, tail):
            return _Registered(gymnasium.spec(tail))
        return attribute(module, tail, head)
    if name.endswith(".py"):
        raise ConfigError(f"{name!r}: which class? Write {name}:ClassName")
    if name not in gymnasium.registry:
        _register_known()
    if name not in gymnasium.registry:
        for start, module in REGISTERING.items():
            if name.startswith(start) and importlib.util.find_spec(module) is None:
                raise _not_installed(name, INSTALL[module])
        raise ConfigError(
            f"no environment {name!r} is registered.{did_you_mean(name, [*names(), *NAMED, *gymnasium.registry])}"
        )
    return _Registered(gymnasium.spec(name))


NAMED = {"coding": "fugu.coding.env:Coding"}
"""environments of ours in Python: what people type -> where they are"""

REGISTERING = {
    "fugu/": "fugu.envs",
    "ALE/": "ale_py",
    "MiniGrid-": "minigrid",
    "BabyAI-": "minigrid",
    "NetHack": "nle",
    "MiniHack-": "minihack",
}
"""how ids begin that people type without importing first what registers them, and what that is"""

INSTALL = {
    "ale_py": "fugu-rl[atari]",
    "minigrid": "fugu-rl[minigrid]",
    "pettingzoo": "fugu-rl[pettingzoo]",
    "mpe2": "mpe2",
    "nle": "nle",
    "minihack": "minihack",
}
"""what brings the modules of environments that we have presets for or know the ids of"""


def _register_known() -> None:
    """Import those of ``REGISTERING`` that are installed; importing them registers their ids."""
    for module in dict.fromkeys(REGISTERING.values()):
        if importlib.util.find_spec(module) is not None:
            gymnasium.register_envs(importlib.import_module(module))


def _not_installed(env: str, install: str) -> NotInstalled:
    return NotInstalled(f'{env} needs a package that is not installed: pip install "{install}"')


@dataclass(frozen=True)
class _Registered:
    """Makes a registered environment from its spec, so that a worker needs no registry entry of its own.

    Gymnasium's passive checker is left out: fugu checks every value itself.
    """

    spec: Any

    def __call__(self, **kwargs: Any) -> Any:
        return gymnasium.make(self.spec, disable_env_checker=True, **kwargs)


def load_file(path: str) -> Any:
    """Load the module in the file ``path``, once per process and under a name that cannot hide another module."""
    name = f"fugu_file_{zlib.crc32(path.encode()):08x}_{Path(path).stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    beside.know([str(Path(path).parent)], [name])
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, FuguError | KeyboardInterrupt):
            raise LoadError(path, error) from error
        raise
    return module


def load_module(name: str, where: str) -> Any:
    """Import the module ``name``, which ``where`` asks for."""
    if name == "__main__":
        raise ConfigError(
            f"{where!r}: what a script defines has no name elsewhere; type my_script.py:{where.rpartition(':')[2]}"
        )
    if name.partition(".")[0] in sys.stdlib_module_names:
        raise ConfigError(f"{where!r}: {name} is a part of Python, and nothing in it can be trained with")
    known = name.partition(".")[0] in INSTALL  # a run may name these without being asked: not from the current folder
    try:
        return importlib.import_module(name) if known else beside.imported(name)
    except (FuguError, KeyboardInterrupt):
        raise
    except ModuleNotFoundError as error:
        package, _, games = name.partition(".")
        if error.name in INSTALL:
            raise _not_installed(where, INSTALL[error.name]) from error
        if package == "pettingzoo" and "." in games and (error.name or "").partition(".")[0] != package:
            raise _not_installed(where, f"pettingzoo[{games.partition('.')[0]}]") from error
        raise ConfigError(f"{where!r}: cannot import {name!r}: {error}") from error
    except BaseException as error:
        raise LoadError(name, error) from error


def load_named(name: str) -> Any:
    """Return what ``file.py:Name`` or ``module:Name`` means."""
    found = meaning(name)
    if not isinstance(found, str):
        return found
    head, _, tail = found.rpartition(":")
    if not head.endswith(".py"):
        return attribute(load_module(head, found), tail, head)
    file = Path(head).resolve()
    if not file.is_file():
        raise ConfigError(f"{head!r}: no such file (looked at {file})")
    return attribute(load_file(str(file)), tail, head)


def attribute(module: Any, name: str, where: str) -> Callable[..., Any]:
    if not hasattr(module, name):
        names = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise ConfigError(f"{where!r} has no {name!r}.{did_you_mean(name, names)}")
    return getattr(module, name)


@dataclass(frozen=True)
class _FromFile:
    """Loads the class from its file wherever it is called: a worker process has not imported it."""

    path: str
    name: str

    def __call__(self, **kwargs: Any) -> Any:
        return self.load()(**kwargs)

    def load(self) -> Callable[..., Any]:
        return attribute(load_file(self.path), self.name, self.path)


@dataclass(frozen=True)
class _FromLibrary:
    """Loads an environment of the user's own that has been compiled; a worker process needs no compiler."""

    library: str

    def __call__(self, **settings: Any) -> NativeEnv:
        return NativeEnv(load(self.library), **settings)
