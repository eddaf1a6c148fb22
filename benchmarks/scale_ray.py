"""Environments and nodes on a Ray cluster of this machine alone, beside what they stand in for.

Rows/s in pairs that alternate.

backend  the Ray backend, and an actor for each environment, as other libraries have it; CartPole-v1, 64 environments
slow     the Ray backend, and processes here; 16 environments whose step sleeps 1 ms
source   two nodes that act by themselves, and the Ray backend with the policy here; whole updates of CartPole-v1
native   one node that acts by itself, and a training in this process; whole updates of cartpole in C++

Everything shares this machine's cores, which a cluster would not.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gs

import fugu
from fugu.errors import FuguError
from fugu.rollout.config import RolloutConfig
from fugu.trainer.build import make_trainer
from fugu.trainer.config import TrainConfig
from fugu.trainer.interrupt import Interrupt
from fugu.vector.config import VectorConfig
from fugu.vector.ray_cluster import Cluster
from harness import Step, main, rates, ratios, stepping, summaries


class Sleeps(gymnasium.Env):
    """A step waits 1 ms, as for another process or a service."""

    observation_space = gs.Box(-1, 1, (4,), np.float32)
    action_space = gs.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(1e-3)
        return np.zeros(4, np.float32), 0.0, False, False, {}


class OneEnv:
    """An actor with one environment, which restarts by itself."""

    def __init__(self) -> None:
        self.env = gymnasium.make("CartPole-v1", disable_env_checker=True)

    def reset(self) -> Any:
        return self.env.reset(seed=0)[0]

    def step(self, action: int) -> Any:
        obs, reward, terminated, truncated, _ = self.env.step(action)
        return (self.env.reset()[0] if terminated or truncated else obs), reward, terminated, truncated


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Ray for all contestants of a case; FUGU_RAY_ADDRESS names a cluster that is there already."""
    if (address := os.environ.get("FUGU_RAY_ADDRESS")) is not None:
        import ray

        ray.init(address=address, log_to_driver=False)
    used = Cluster(None, 2)
    try:
        yield used
    finally:
        used.leave()


def actions(num_envs: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, (997, num_envs))


def running(vec: Any, num_envs: int) -> Step:
    vec.reset(seed=0)
    return stepping(vec, actions(num_envs), num_envs)


def actor_each(used: Cluster, num_envs: int) -> Step:
    """Step an actor for each environment."""
    ray, place = used.ray, used.places(1)[0]
    actors = [used.start(OneEnv, place) for _ in range(num_envs)]
    ray.get([actor.reset.remote() for actor in actors])
    rows = itertools.cycle(actions(num_envs))

    def step() -> int:
        found = ray.get([actor.step.remote(int(a)) for actor, a in zip(actors, next(rows), strict=True)])
        np.stack([obs for obs, *_ in found])
        return num_envs

    return step


def backend(seconds: float, repeats: int) -> dict[str, Any]:
    with ExitStack() as stack:
        used = stack.enter_context(cluster())
        settings = {"backend": "ray", "num_workers": 1, "isolate": False}
        one, two = (stack.enter_context(fugu.vector.make("CartPole-v1", 64, nodes=n, **settings)) for n in (1, 2))
        here = stack.enter_context(fugu.vector.make("CartPole-v1", 64, backend="process"))
        steps = {
            "ray, 1 node": running(one, 64),
            "ray, 2 nodes": running(two, 64),
            "an actor per environment": actor_each(used, 64),
            "process": running(here, 64),
        }
        found = rates(steps, seconds, repeats)
    pairs = [(name, "an actor per environment") for name in ("ray, 1 node", "ray, 2 nodes")]
    return {"rows/s": summaries(found), "ratios": ratios(found, [*pairs, ("ray, 1 node", "process")])}


def slow(seconds: float, repeats: int) -> dict[str, Any]:
    with ExitStack() as stack:
        stack.enter_context(cluster())
        workers = {"num_workers": 8, "isolate": True}
        made = {
            "ray, 1 node": fugu.vector.make(Sleeps, 16, backend="ray", nodes=1, **workers),
            "ray, 2 nodes": fugu.vector.make(Sleeps, 16, backend="ray", nodes=2, **{**workers, "num_workers": 4}),
            "process": fugu.vector.make(Sleeps, 16, backend="process", **workers),
        }
        found = rates({name: running(stack.enter_context(vec), 16) for name, vec in made.items()}, seconds, repeats)
    return {"rows/s": summaries(found), "ratios": ratios(found, [("ray, 1 node", "process"), ("ray, 2 nodes", "process")])}


def updating(config: TrainConfig, stack: ExitStack) -> Step:
    """Do an update of a training."""
    trainer = make_trainer(config)
    stack.callback(trainer.close)
    trainer.start()
    interrupt = Interrupt()

    def step() -> int:
        before = trainer.steps
        trainer.update(interrupt)
        return trainer.steps - before

    return step


def trained(configs: dict[str, TrainConfig], pairs: list[tuple[str, str]], seconds: float, repeats: int) -> dict[str, Any]:
    with ExitStack() as stack:
        stack.enter_context(cluster())
        found = rates({name: updating(config, stack) for name, config in configs.items()}, seconds, repeats)
    return {"rows/s": summaries(found), "ratios": ratios(found, pairs)}


def source(seconds: float, repeats: int) -> dict[str, Any]:
    base = TrainConfig(
        env="CartPole-v1", steps=10**12, horizon=64, minibatch=1024, threads=1, vector=VectorConfig(num_envs=64, num_workers=1)
    )
    configs = {
        "nodes that act": dataclasses.replace(base, rollout=RolloutConfig(nodes=2)),
        "nodes that act, lag 1": dataclasses.replace(base, rollout=RolloutConfig(nodes=2, lag=1)),
        "ray": dataclasses.replace(base, vector=dataclasses.replace(base.vector, backend="ray", nodes=2)),
        "process": dataclasses.replace(base, vector=VectorConfig(num_envs=64)),
    }
    pairs = [(name, "ray") for name in ("nodes that act", "nodes that act, lag 1")] + [("nodes that act", "process")]
    return trained(configs, pairs, seconds, repeats)


def native(seconds: float, repeats: int) -> dict[str, Any]:
    base = TrainConfig(
        env="cartpole", steps=10**12, horizon=32, minibatch=16384, epochs=2, threads=1, vector=VectorConfig(num_envs=4096)
    )
    configs = {
        "one node": dataclasses.replace(base, rollout=RolloutConfig(nodes=1)),
        "one node, lag 1": dataclasses.replace(base, rollout=RolloutConfig(nodes=1, lag=1)),
        "here": base,
    }
    return trained(configs, [(name, "here") for name in ("one node", "one node, lag 1")], seconds, repeats)


CASES: dict[str, Callable[..., Any]] = {"backend": backend, "slow": slow, "source": source, "native": native}

if __name__ == "__main__":
    warnings.simplefilter("ignore", RuntimeWarning)
    try:
        main("scale_ray", __doc__, CASES, repeats=5, seconds=2.0, add=True)
    except FuguError as error:
        sys.exit(str(error))
