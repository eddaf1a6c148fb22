"""Claims about vectorization, each beside its competitors in the same run: python benchmarks/vector.py [--out FILE] [case ...]

cases: cartpole (64 envs), cpu (1 ms of CPU per step, 16 envs), stragglers (the same, 5% of steps sleep 20 ms),
pack (a nested Dict observation into its row), views (1,024 rows into tensors), many (10,000 envs), idle.
Needs the extra `peers`; SB3 gets the start method `fork`, the faster one for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import gymnasium
import numpy as np
import psutil
from gymnasium import spaces as gs

import fugu
from harness import Step, main, rates, ratios, stepping, summaries, timings


def cartpole_env() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1", disable_env_checker=True)


class Busy(gymnasium.Env):
    """A step takes ``cpu_s`` of CPU time (not wall time: another process on the core does not shorten it)."""

    observation_space = gs.Box(-1, 1, (4,), np.float32)
    action_space = gs.Discrete(2)

    def __init__(self, cpu_s: float = 1e-3, slow_share: float = 0.0, sleep_s: float = 0.0) -> None:
        self.cpu_s, self.slow_share, self.sleep_s = cpu_s, slow_share, sleep_s
        self.obs = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self.obs, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        until = time.thread_time() + self.cpu_s
        while time.thread_time() < until:
            pass
        if self.slow_share and self.np_random.random() < self.slow_share:
            time.sleep(self.sleep_s)
        return self.obs, 0.0, False, False, {}


def straggler_env() -> Busy:
    return Busy(1e-3, 0.05, 0.02)


def random_actions(num_envs: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, (997, num_envs))


def running(vec: Any, num_envs: int) -> Step:
    vec.reset(seed=0)
    return stepping(vec, random_actions(num_envs), num_envs)


def receiving(vec: fugu.vector.VecEnv, batch: int) -> Step:
    """recv and send, as a trainer with an instant policy would."""
    actions = np.zeros(batch, np.int64)
    vec.async_reset(0)

    def step() -> int:
        vec.recv()
        vec.send(actions)
        return batch

    return step


def peers(stack: ExitStack, make: Callable[[], gymnasium.Env], num_envs: int) -> dict[str, Step]:
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    makers = [make] * num_envs
    gymnasiums = {
        "gymnasium SyncVectorEnv": gymnasium.vector.SyncVectorEnv(makers),
        "gymnasium AsyncVectorEnv": gymnasium.vector.AsyncVectorEnv(makers),
    }
    sb3s = {"SB3 DummyVecEnv": DummyVecEnv(makers), "SB3 SubprocVecEnv": SubprocVecEnv(makers, start_method="fork")}
    for vec in (*gymnasiums.values(), *sb3s.values()):
        stack.enter_context(closing(vec))
    for vec in sb3s.values():
        vec.reset()
    steps = {name: running(vec, num_envs) for name, vec in gymnasiums.items()}
    return steps | {name: stepping(vec, random_actions(num_envs), num_envs) for name, vec in sb3s.items()}


def against_peers(make: Callable[[], gymnasium.Env], num_envs: int, seconds: float, repeats: int) -> dict[str, Any]:
    with ExitStack() as stack:
        steps = peers(stack, make, num_envs)
        for backend in ("serial", "process"):
            vec = stack.enter_context(fugu.vector.make(make, num_envs, backend=backend))
            steps[f"fugu {backend}"] = running(vec, num_envs)
        results = rates(steps, seconds, repeats)
    pairs = [
        ("fugu process", "fugu serial"),
        ("fugu serial", "gymnasium SyncVectorEnv"),
        ("fugu process", "gymnasium AsyncVectorEnv"),
        ("fugu process", "SB3 SubprocVecEnv"),
    ]
    return {"steps_per_s": summaries(results), "ratios": ratios(results, pairs)}


def cartpole(seconds: float, repeats: int) -> dict[str, Any]:
    return against_peers(cartpole_env, 64, seconds, repeats)


def cpu(seconds: float, repeats: int) -> dict[str, Any]:
    return against_peers(Busy, 16, seconds, repeats)


def stragglers(seconds: float, repeats: int) -> dict[str, Any]:
    """Sync is given its better setting: as many shards as cores, or one env per process so that sleeps overlap."""
    with ExitStack() as stack:
        steps = peers(stack, straggler_env, 16)
        sync = {"fugu sync, one shard per core": {}, "fugu sync, 16 workers": {"num_workers": 16}}
        for name, settings in sync.items():
            vec = stack.enter_context(fugu.vector.make(straggler_env, 16, backend="process", **settings))
            steps[name] = running(vec, 16)
        others = list(steps)
        vec = stack.enter_context(
            fugu.vector.make(straggler_env, 16, backend="process", num_workers=16, batch_size=1, order="first_finished")
        )
        steps["fugu first_finished"] = receiving(vec, 1)
        results = rates(steps, seconds, repeats)
    return {
        "steps_per_s": summaries(results),
        "best_sync": max(sync, key=lambda name: results[name].median),
        "ratios": ratios(results, [("fugu first_finished", name) for name in others]),
    }


NESTED = gs.Dict(
    position=gs.Box(-1, 1, (3,), np.float32),
    kind=gs.Discrete(5),
    switches=gs.MultiBinary(4),
    deep=gs.Dict(view=gs.Box(0, 255, (2, 4), np.uint8)),
)


def pack(seconds: float, repeats: int) -> dict[str, Any]:
    layout = fugu.Layout(NESTED)
    packer, row, value = fugu.spaces.Packer(layout), layout.zeros(), NESTED.sample()
    calls = {
        "fugu pack": (lambda: packer.pack(value, row), 50_000),
        "gymnasium flatten": (lambda: gs.flatten(NESTED, value), 5_000),
    }
    results = timings(calls, repeats)
    return {"us": summaries(results), "ratios": ratios(results, [("gymnasium flatten", "fugu pack")])}


def views(seconds: float, repeats: int) -> dict[str, Any]:
    import torch

    from fugu.spaces.views import tensors

    layout = fugu.Layout(NESTED)
    rows = torch.from_numpy(layout.zeros(1024))
    return {"us": summaries(timings({"fugu tensors": (lambda: tensors(layout, rows), 2_000)}, repeats))}


def many(seconds: float, repeats: int) -> dict[str, Any]:
    out = {}
    for backend in ("serial", "process"):
        before, start = _memory(), time.perf_counter()
        vec = fugu.vector.make(cartpole_env, 10_000, backend=backend)
        vec.reset()
        opened = time.perf_counter()
        actions = np.zeros(10_000, np.int64)
        for _ in range(10):
            vec.step(actions)
        stepped = time.perf_counter()
        grown = _memory() - before
        vec.close()
        closed = time.perf_counter()
        out[backend] = {
            "open_and_reset_s": opened - start,
            "steps_per_s": 100_000 / (stepped - opened),
            "close_s": closed - stepped,
            "memory_per_env_bytes": grown / 10_000,
            "rows_per_env_bytes": vec.memory_bytes / 10_000,
        }
    return out


def _memory() -> int:
    """Proportional set size of this process and its children: shared pages count once."""
    me = psutil.Process()
    return sum(p.memory_full_info().pss for p in [me, *me.children(recursive=True)])


def idle(seconds: float, repeats: int) -> dict[str, Any]:
    """CPU used by everybody while a vector env waits to be stepped."""
    with fugu.vector.make(cartpole_env, 64, backend="process", num_workers=4, isolate=True) as vec:
        step = running(vec, 64)
        for _ in range(50):
            step()
        me = psutil.Process()
        family = [me, *me.children(recursive=True)]
        time.sleep(0.2)
        before = sum(sum(p.cpu_times()[:2]) for p in family)
        time.sleep(5)
        used = sum(sum(p.cpu_times()[:2]) for p in family) - before
    return {"cores_used_while_idle": used / 5}


CASES = {f.__name__: f for f in (cartpole, cpu, stragglers, pack, views, many, idle)}

if __name__ == "__main__":
    main("vector", __doc__, CASES, seconds=1.5, repeats=7)
