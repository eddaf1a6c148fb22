"""Claims about vectorization, each beside its competitors in the same run: python benchmarks/vector.py [--out FILE] [case ...]

cases: cartpole (64 envs), cpu (1 ms of CPU per step, 16 envs), stragglers (the same, 5% of steps sleep 20 ms),
pack (a nested Dict observation into its row), views (1,024 rows into tensors), many (10,000 envs), idle.
Needs the extra `peers`; SB3 gets the start method `fork`, the faster one for it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import gymnasium
import numpy as np
import psutil
from gymnasium import spaces as gs

import fugu
from harness import Measure, alternate, microseconds, rate, ratio, report


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


def stepping(vec: Any, num_envs: int) -> Callable[[], int]:
    """Random actions, drawn ahead; works for our VecEnv, Gymnasium's and (below) SB3's."""
    actions = np.random.default_rng(0).integers(0, 2, (997, num_envs))
    vec.reset(seed=0)
    turn = 0

    def step() -> int:
        nonlocal turn
        vec.step(actions[turn % 997])
        turn += 1
        return num_envs

    return step


def stepping_sb3(vec: Any, num_envs: int) -> Callable[[], int]:
    actions = np.random.default_rng(0).integers(0, 2, (997, num_envs))
    vec.reset()
    turn = 0

    def step() -> int:
        nonlocal turn
        vec.step(actions[turn % 997])
        turn += 1
        return num_envs

    return step


def receiving(vec: fugu.vector.VecEnv, batch: int) -> Callable[[], int]:
    """recv and send, as a trainer with an instant policy would."""
    actions = np.zeros(batch, np.int64)
    vec.async_reset(0)

    def step() -> int:
        vec.recv()
        vec.send(actions)
        return batch

    return step


def peers(stack: ExitStack, make: Callable[[], gymnasium.Env], num_envs: int, seconds: float) -> dict[str, Measure]:
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    makers = [make] * num_envs
    sync = stack.enter_context(_closing(gymnasium.vector.SyncVectorEnv(makers)))
    run_async = stack.enter_context(_closing(gymnasium.vector.AsyncVectorEnv(makers)))
    dummy = stack.enter_context(_closing(DummyVecEnv(makers)))
    subproc = stack.enter_context(_closing(SubprocVecEnv(makers, start_method="fork")))
    steps = {
        "gymnasium SyncVectorEnv": stepping(sync, num_envs),
        "gymnasium AsyncVectorEnv": stepping(run_async, num_envs),
        "SB3 DummyVecEnv": stepping_sb3(dummy, num_envs),
        "SB3 SubprocVecEnv": stepping_sb3(subproc, num_envs),
    }
    return {name: (lambda step=step: rate(step, seconds)) for name, step in steps.items()}


class _closing:
    def __init__(self, vec: Any) -> None:
        self.vec = vec

    def __enter__(self) -> Any:
        return self.vec

    def __exit__(self, *error: object) -> None:
        self.vec.close()


def against_peers(make: Callable[[], gymnasium.Env], num_envs: int, seconds: float, repeats: int) -> dict[str, Any]:
    with ExitStack() as stack:
        contestants = peers(stack, make, num_envs, seconds)
        for backend in ("serial", "process"):
            vec = stack.enter_context(fugu.vector.make(make, num_envs, backend=backend))
            step = stepping(vec, num_envs)
            contestants[f"fugu {backend}"] = lambda step=step: rate(step, seconds)
        results = alternate(contestants, repeats)
    ratios = {
        "fugu process / fugu serial": ratio(results, "fugu process", "fugu serial"),
        "fugu serial / gymnasium SyncVectorEnv": ratio(results, "fugu serial", "gymnasium SyncVectorEnv"),
        "fugu process / gymnasium AsyncVectorEnv": ratio(results, "fugu process", "gymnasium AsyncVectorEnv"),
        "fugu process / SB3 SubprocVecEnv": ratio(results, "fugu process", "SB3 SubprocVecEnv"),
    }
    return {"steps_per_s": {name: r.summary() for name, r in results.items()}, "ratios": ratios}


def cartpole(seconds: float, repeats: int) -> dict[str, Any]:
    return against_peers(cartpole_env, 64, seconds, repeats)


def cpu(seconds: float, repeats: int) -> dict[str, Any]:
    return against_peers(Busy, 16, seconds, repeats)


def stragglers(seconds: float, repeats: int) -> dict[str, Any]:
    """Sync is given its better setting: as many shards as cores, or one env per process so that sleeps overlap."""
    with ExitStack() as stack:
        contestants = peers(stack, straggler_env, 16, seconds)
        sync = {"fugu sync, one shard per core": {}, "fugu sync, 16 workers": {"num_workers": 16}}
        for name, settings in sync.items():
            vec = stack.enter_context(fugu.vector.make(straggler_env, 16, backend="process", **settings))
            step = stepping(vec, 16)
            contestants[name] = lambda step=step: rate(step, seconds)
        vec = stack.enter_context(
            fugu.vector.make(straggler_env, 16, backend="process", num_workers=16, batch_size=1, order="first_finished")
        )
        first_finished = receiving(vec, 1)
        contestants["fugu first_finished"] = lambda: rate(first_finished, seconds)
        results = alternate(contestants, repeats)
    best = max(sync, key=lambda name: results[name].median)
    others = [name for name in results if name != "fugu first_finished"]
    ratios = {f"fugu first_finished / {name}": ratio(results, "fugu first_finished", name) for name in others}
    return {"steps_per_s": {name: r.summary() for name, r in results.items()}, "best_sync": best, "ratios": ratios}


NESTED = gs.Dict(
    position=gs.Box(-1, 1, (3,), np.float32),
    kind=gs.Discrete(5),
    switches=gs.MultiBinary(4),
    deep=gs.Dict(view=gs.Box(0, 255, (2, 4), np.uint8)),
)


def pack(seconds: float, repeats: int) -> dict[str, Any]:
    layout = fugu.Layout(NESTED)
    packer, row, value = fugu.spaces.Packer(layout), layout.zeros(), NESTED.sample()
    results = alternate(
        {
            "fugu pack": lambda: microseconds(lambda: packer.pack(value, row), 50_000),
            "gymnasium flatten": lambda: microseconds(lambda: gs.flatten(NESTED, value), 5_000),
        },
        repeats,
    )
    return {
        "us": {name: r.summary() for name, r in results.items()},
        "ratios": {"gymnasium flatten / fugu pack": ratio(results, "gymnasium flatten", "fugu pack")},
    }


def views(seconds: float, repeats: int) -> dict[str, Any]:
    import torch

    from fugu.spaces.views import tensors

    layout = fugu.Layout(NESTED)
    rows = torch.from_numpy(layout.zeros(1024))
    results = alternate({"fugu tensors": lambda: microseconds(lambda: tensors(layout, rows), 2_000)}, repeats)
    return {"us": {name: r.summary() for name, r in results.items()}}


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
        step = stepping(vec, 64)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="*", help="which claims (default: all)")
    parser.add_argument("--seconds", type=float, default=1.5, help="per measurement")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", help="also write the JSON here")
    options = parser.parse_args()
    unknown = set(options.case) - set(CASES)
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    report("vector", {name: CASES[name](options.seconds, options.repeats) for name in options.case or CASES}, options.out)


if __name__ == "__main__":
    main()
