"""Steps per second of the native environments with random actions, 4,096 at once.

    python benchmarks/native.py --out benchmarks/results/native.json

``cartpole`` is measured beside Gymnasium's numpy-vectorised CartPole and EnvPool's, contestants alternating, with one thread, with
two, and in two processes that have nothing to hand over: what the two cores can do at that moment. ``threads`` are the last three by
themselves, where a step takes a few microseconds and where it takes more; ``all_envs`` is every native environment with one
thread. Turns are short and many: how fast a virtual core is changes within seconds, and so does where two of them are. Between one
thread and two, a cache line is sent from core to core and back, and the ratios are also given by how long that takes: where a
hypervisor has put both virtual cores on one real core, nothing makes two of them. Needs a C++ compiler, and the extra ``peers`` for
EnvPool; without it, its rows are left out.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np

import fugu
import fugu.envs  # registers fugu/CartPole-v0
from fugu.emulation.actions import action_rows
from fugu.emulation.native import names
from harness import Result, Step, alternate, compiled, grouped_ratios, main, rate, rates, ratios, stepping, summaries

NUM_ENVS = 4096
BATCHES = 16
"""of random actions, drawn ahead"""

FUGU, FUGU_2, FUGU_GYMNASIUM = "fugu, 1 thread", "fugu, 2 threads", "fugu through gymnasium.make_vec, 1 thread"
FUGU_APART = "fugu, 2 processes of 1 thread"
GYMNASIUM, ENVPOOL, ENVPOOL_2 = "Gymnasium, numpy-vectorised", "EnvPool, 1 thread", "EnvPool, 2 threads"

ROUND_TRIP = "a cache line to the other core and back, ns"
ONE_CORE, ONE_CACHE, TWO_CACHES = "halves of one core", "cores of one cache", "cores of two caches"

NO_ENVPOOL = 'EnvPool is not measured; it comes, with 300 MB, by: pip install -c constraints.txt "fugu-rl[peers]"'


def cartpole(seconds: float, repeats: int) -> dict[str, Any]:
    """CartPole by every library that steps many at once."""
    actions = np.random.default_rng(0).integers(0, 2, (BATCHES, NUM_ENVS))
    vecs = {
        FUGU: fugu.vector.make("cartpole", NUM_ENVS, num_workers=1),
        FUGU_2: fugu.vector.make("cartpole", NUM_ENVS, num_workers=2),
        FUGU_GYMNASIUM: gymnasium.make_vec("fugu/CartPole-v0", num_envs=NUM_ENVS, num_workers=1),
        GYMNASIUM: gymnasium.make_vec("CartPole-v1", num_envs=NUM_ENVS, vectorization_mode="vector_entry_point"),
    }
    for vec in vecs.values():
        vec.reset(seed=0)
    steps = {name: stepping(vec, actions, NUM_ENVS) for name, vec in vecs.items()}
    if importlib.util.find_spec("envpool") is None:
        print(NO_ENVPOOL, file=sys.stderr)
    else:
        import envpool

        for name, threads in ((ENVPOOL, 1), (ENVPOOL_2, 2)):
            vecs[name] = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=NUM_ENVS, num_threads=threads, seed=0)
            vecs[name].reset()
            steps[name] = stepping(vecs[name], actions.astype(np.int32), NUM_ENVS)
    turns = {name: partial(rate, step, seconds) for name, step in steps.items()}
    with elsewhere("cartpole", NUM_ENVS) as other:
        apart = partial(both, other, steps[FUGU], seconds)
        first = {FUGU: turns.pop(FUGU), ROUND_TRIP: round_trip(), FUGU_2: turns.pop(FUGU_2), FUGU_APART: apart}
        results = alternate(first | turns, repeats)
    pairs = [
        (FUGU_2, FUGU),
        (FUGU_APART, FUGU),
        (FUGU_2, FUGU_APART),
        (FUGU, GYMNASIUM),
        (FUGU_GYMNASIUM, GYMNASIUM),
        (FUGU, ENVPOOL),
        (FUGU_2, ENVPOOL_2),
    ]
    for vec in vecs.values():
        vec.close()
    where = distances(results.pop(ROUND_TRIP))
    return {
        "num_envs": NUM_ENVS,
        "steps_per_second": summaries(results),
        "ratio": ratios(results, [(a, b) for a, b in pairs if a in results and b in results]),
        "ratio_by_distance": grouped_ratios(results, pairs[:3], where),
    }


def round_trip() -> Callable[[], float]:
    function = compiled("cores.cpp", "-pthread").round_trip_ns
    function.restype = ctypes.c_double
    return function


def distances(round_trips: Result) -> list[str]:
    """Where the two cores were in each repeat. The limits lie between what is seen: 55 ns, 110 to 160 and 600 on an AMD EPYC."""
    return [ONE_CORE if ns < 90 else ONE_CACHE if ns < 300 else TWO_CACHES for ns in round_trips.values]


def threads(seconds: float, repeats: int) -> dict[str, Any]:
    """Two threads beside one, which shows what handing over costs where there is little to do, and beside two processes."""
    out = {}
    for name, num_envs in (("cartpole", NUM_ENVS), ("cartpole", 16 * NUM_ENVS), ("acrobot", NUM_ENVS), ("breakout", NUM_ENVS)):
        steps = [steps_of(name, num_envs, threads) for threads in (1, 2)]
        with elsewhere(name, num_envs) as other:
            results = alternate(
                {
                    "1 thread": partial(rate, steps[0], seconds),
                    ROUND_TRIP: round_trip(),
                    "2 threads": partial(rate, steps[1], seconds),
                    "2 processes": partial(both, other, steps[0], seconds),
                },
                repeats,
            )
        where = distances(results.pop(ROUND_TRIP))
        pairs = [("2 threads", "1 thread"), ("2 processes", "1 thread"), ("2 threads", "2 processes")]
        out[f"{name}, {num_envs} envs"] = {
            "steps_per_second": summaries(results),
            "ratio": ratios(results, pairs),
            "ratio_by_distance": grouped_ratios(results, pairs, where),
        }
    return out


def steps_of(name: str, num_envs: int, threads: int) -> Step:
    vec = fugu.vector.make(name, num_envs, num_workers=threads)
    vec.reset(seed=0)
    return stepping(vec, np.random.default_rng(0).integers(0, vec.action_space.n, (BATCHES, num_envs)), num_envs)


@contextmanager
def elsewhere(name: str, num_envs: int) -> Iterator[Connection]:
    """To a process that steps as many environments with one thread, when asked to."""
    spawn = get_context("spawn")
    here, there = spawn.Pipe()
    other = spawn.Process(target=answer, args=(there, name, num_envs), daemon=True)
    other.start()
    yield here
    here.send(None)
    other.join()


def answer(there: Connection, name: str, num_envs: int) -> None:
    """In a process of its own: steps environments for as many seconds as it is told, and says how many a second."""
    step = steps_of(name, num_envs, 1)
    while (seconds := there.recv()) is not None:
        there.send(rate(step, seconds))


def both(other: Connection, step: Step, seconds: float) -> float:
    other.send(seconds)
    return rate(step, seconds) + other.recv()


def all_envs(seconds: float, repeats: int) -> dict[str, Any]:
    """Every native environment with one thread; agents' steps are counted as well, and what a world takes in memory."""
    vecs = {name: fugu.vector.make(name, NUM_ENVS, num_workers=1) for name in names()}
    steps = {}
    for name, vec in vecs.items():
        rows = action_rows(vec.action_space, vec.num_agents, seed=0)
        shuffle = np.random.default_rng(0)
        actions = [rows[shuffle.permutation(vec.num_agents)] for _ in range(BATCHES)]
        vec.reset(seed=0)
        steps[name] = stepping(vec, actions, NUM_ENVS)
    results = rates(steps, seconds, repeats)
    out: dict[str, Any] = {"num_envs": NUM_ENVS, "threads": 1, "envs": {}}
    for name, vec in vecs.items():
        agents = vec.num_agents // NUM_ENVS
        runner = vec._runner  # what it takes in memory is nobody's business but ours
        out["envs"][name] = {
            "steps_per_second": results[name].summary(),
            "agents": agents,
            "agent_steps_per_second": results[name].median * agents,
            "bytes_per_env": {
                "state": runner.state_bytes / NUM_ENVS,
                "buffers": runner.buffers.nbytes / NUM_ENVS,
            },
        }
        vec.close()
    return out


CASES = {"cartpole": cartpole, "threads": threads, "all_envs": all_envs}

if __name__ == "__main__":
    main("native", __doc__, CASES, seconds=0.1, repeats=51)
