"""``fugu bench vector``: a quick look at the throughput of our backends and, with ``--peers``, of other libraries.

Quick means that no claim rests on it. ``benchmarks/vector.py`` is the thorough one.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import tyro

from fugu.cli.apart import apart
from fugu.cli.autotune import as_json, show
from fugu.cli.options import parse, take_env_kwargs
from fugu.emulation.build import is_compiled
from fugu.emulation.factory import factories
from fugu.errors import ConfigError
from fugu.vector.autotune import WARM_UP, Trial, chosen, measure, settings
from fugu.vector.config import Backend, Order, VectorConfig, usable_cores


@dataclass(frozen=True, kw_only=True)
class Options:
    """Measure the steps per second of our backends on an environment, with random actions.

    With --backend, --num-workers, --batch-size, --order or --isolate only that setting is measured, beside the simplest one.
    --env.NAME VALUE goes to the environment's constructor.
    """

    env: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")] = "CartPole-v1"
    """Environment: a native one by name, a Gymnasium id, module:Class, file.py:Class or my_env.h"""
    num_envs: int = 64
    """Number of environments to step"""
    seconds: float = 2.0
    """Seconds to measure each setting"""
    peers: bool = False
    """Also measure Gymnasium's Sync and Async vector envs, and those of Stable-Baselines3 if it is installed"""
    json: bool = False
    """Print the measurements as JSON"""
    backend: Backend = "auto"
    """Backend to measure: serial, process, or native (native environments only)"""
    num_workers: int | None = None
    """Processes, or native threads, that step the environments"""
    batch_size: int | None = None
    """Environments per batch"""
    order: Order = "pipelined"
    """Order of batches: pipelined (each in its turn) or first_finished"""
    isolate: bool = False
    """Keep environments out of the calling process"""


def main(argv: list[str]) -> int:
    argv, env_kwargs = take_env_kwargs(argv)
    options = parse(Options, "bench vector", argv)
    if not options.seconds > 0:
        raise ConfigError(f"--seconds {options.seconds} must be positive")
    trials = apart(_measure, options, env_kwargs, fresh=True)
    if options.json:
        print(json.dumps({"env": options.env, "num_envs": options.num_envs, "trials": [as_json(t) for t in trials]}, indent=2))
    else:
        show(trials, f"{options.env}, {options.num_envs} environments, {usable_cores()} cores")
    return 0


def _measure(options: Options, env_kwargs: dict[str, Any]) -> list[Trial]:
    trials = measure(options.env, _trials(options), seconds=options.seconds, env_kwargs=env_kwargs)
    if all(trial.error for trial in trials):
        raise ConfigError(f"no setting could run this environment: {trials[0].error}")
    if options.peers:
        trials += [_measure_peer(name, build, options) for name, build in _peers(options, env_kwargs).items()]
    return trials


def _trials(options: Options) -> list[Trial]:
    """Return everything autotune would try, or the simplest of it and the one setting the user named."""
    config = VectorConfig(
        num_envs=options.num_envs,
        backend=options.backend,
        num_workers=options.num_workers,
        batch_size=options.batch_size,
        order=options.order,
        isolate=options.isolate or None,
    )
    native = is_compiled(options.env)
    all_of_them = settings(options.num_envs, usable_cores(), native)
    if config == VectorConfig(num_envs=options.num_envs):
        return all_of_them
    if native and config.backend == "auto":
        config = dataclasses.replace(config, backend="native")
    name = ", ".join(f"{name}={value}" for name, value in chosen(config).items() if name != "backend")
    simplest = all_of_them[:1]
    return simplest if config == simplest[0].config else [*simplest, Trial(f"{config.resolved_backend} {name}".strip(), config)]


def _peers(options: Options, env_kwargs: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Return by name what builds another library's vector env over the same environments."""
    from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

    factory = factories(options.env, 1, env_kwargs)[0]
    makers = [lambda: factory.make(**factory.kwargs)] * options.num_envs
    found: dict[str, Callable[[], Any]] = {
        "Gymnasium SyncVectorEnv": lambda: SyncVectorEnv(makers),
        "Gymnasium AsyncVectorEnv": lambda: AsyncVectorEnv(makers),
    }
    if importlib.util.find_spec("stable_baselines3") is not None:
        from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

        # forked: the default imports torch once per worker before it starts, which takes minutes and changes no step
        found["SB3 DummyVecEnv"] = lambda: DummyVecEnv(makers)
        found["SB3 SubprocVecEnv"] = lambda: SubprocVecEnv(makers, start_method="fork")
    return found


def _measure_peer(name: str, build: Callable[[], Any], options: Options) -> Trial:
    trial = Trial(name, VectorConfig(num_envs=options.num_envs, backend="serial"))
    try:
        start = time.perf_counter()
        vec = build()
        try:
            vec.reset()
            trial.startup_seconds = time.perf_counter() - start
            space = getattr(vec, "single_action_space", vec.action_space)
            action = np.stack([space.sample() for _ in range(options.num_envs)])
            _step(vec, action, WARM_UP)
            trial.steps_per_second = _step(vec, action, options.seconds)
        finally:
            vec.close()
    except Exception as error:
        trial.error = f"{type(error).__name__}: {error}"
    return trial


def _step(vec: Any, action: np.ndarray, seconds: float) -> float:
    start, steps = time.perf_counter(), 0
    while True:
        vec.step(action)
        steps += len(action)
        now = time.perf_counter()
        if now >= start + seconds:
            return steps / (now - start)
