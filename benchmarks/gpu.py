"""Training on one GPU: environments, rollout, update and all of it together, with the learning curve of every run.

    python benchmarks/gpu.py --out benchmarks/results/gpu.json        # about three minutes on an H200

``env``       steps per second of environments alone, stepped by a recorded graph with fixed actions
``kernels``   microseconds of our own kernels beside torch's way to the same result
``cartpole``  PPO, MLP 64-64, every row used once
``lstm``      PPO on breakout, LSTM-128
``mingru``    PPO on breakout, MinGRU-128
``solve``     seconds from the first update to a mean return over 100 episodes, three seeds
``feed``      the MinGRU on the GPU with breakout on the CPU's cores
``precision`` what breakout is learned to with products in float32, tf32 and bf16, three seeds each

A training run goes to its end and reports steps per second (of three equal parts of it, after recording), the rollout and the
update alone, the kernels per step of the rollout and per minibatch, the share of the card's arithmetic and memory limits, and
returns as they grew.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from fugu.config import override
from fugu.presets import preset
from fugu.trainer.build import make_trainer
from fugu.trainer.interrupt import Interrupt
from fugu.trainer.loop import Trainer
from harness import main

PEAK = {"float32": 67e12, "tf32": 495e12, "bf16": 990e12}
"""floating-point operations per second of an H200, dense, by its data sheet"""
BANDWIDTH = 4.8e12
"""bytes per second of its memory, by its data sheet"""


# --- training ---


def training(env: str, repeats: int, **changes: Any) -> dict[str, Any]:
    trainer = make_trainer(override(preset(env, device="cuda"), {"log.board": "off", **changes}))
    try:
        trainer.start()
        return {"config": described(trainer), **measured(trainer, repeats)}
    finally:
        trainer.close()
        del trainer
        torch.cuda.empty_cache()


def described(trainer: Trainer) -> dict[str, Any]:
    c = trainer.config
    return {
        "envs": c.vector.num_envs,
        "horizon": c.horizon,
        "minibatch": c.minibatch,
        "epochs": c.epochs,
        "precision": c.precision,
        "hidden": list(c.policy.hidden),
        "core": c.policy.core,
        "learning_rate": c.optimizer.learning_rate,
        "parameters": sum(p.numel() for p in trainer.engine.optimizer.parameters),
    }


def measured(trainer: Trainer, repeats: int) -> dict[str, Any]:
    """Train to the end of the run. Speeds are those of ``repeats`` equal parts of it, from when everything is recorded."""
    curve: list[tuple[float, int, float]] = []
    times: list[tuple[float, int]] = []
    began = time.perf_counter()
    while not trainer.finished:
        metrics = trainer.update(Interrupt())
        now = time.perf_counter() - began
        if trainer.updates >= 4:  # the first ran eagerly, the second was recorded
            times.append((now, trainer.steps))
        if "episode/return" in metrics:
            curve.append((round(now, 3), trainer.steps, round(metrics["episode/return"], 2)))
    marks = [times[round(i * (len(times) - 1) / repeats)] for i in range(repeats + 1)]
    speeds = [(steps - before) / (end - start) for (start, before), (end, steps) in itertools.pairwise(marks)]
    rate = statistics.median(speeds)
    out: dict[str, Any] = {"steps_per_second": {"median": rate, "min": min(speeds), "max": max(speeds), "runs": repeats}}
    out.update(alone(trainer))
    flops, bytes_moved = work(trainer)
    kind = "tf32" if trainer.config.precision == "auto" else trainer.config.precision
    out["flop_per_step"] = flops
    out["share_of_arithmetic_limit"] = rate * flops / PEAK[kind]
    out["share_of_memory_limit"] = rate * bytes_moved / BANDWIDTH
    out["curve"] = thinned(curve)
    return out


def alone(trainer: Trainer) -> dict[str, Any]:
    """The rollout and the update by themselves, and how many kernels they are."""
    unattended = trainer.unattended
    assert unattended is not None
    rows = trainer.source.vec.num_agents * trainer.config.horizon
    out: dict[str, Any] = {}
    with torch.cuda.stream(unattended._stream):
        for name, call in (("rollout", unattended._collect), ("update", unattended._learn)):
            if not getattr(call, "recorded", False):
                out[f"{name}_recorded"] = False
                continue
            out[f"{name}_rows_per_second"] = rows / gpu_seconds(call)
            kernels = count_kernels(call)
            per = trainer.config.horizon if name == "rollout" else trainer.engine.count * trainer.config.epochs
            out["kernels_per_step" if name == "rollout" else "kernels_per_minibatch"] = round(kernels / per, 2)
    return out


def gpu_seconds(call: Callable[[], Any], number: int = 10) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    call()
    times = []
    for _ in range(3):
        start.record()
        for _ in range(number):
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / number)
    return min(times)


def count_kernels(call: Callable[[], Any]) -> int:
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    return sum(event.count for event in profiler.key_averages())


def work(trainer: Trainer) -> tuple[float, float]:
    """Operations per step (forward in the rollout; forward and twice as much backward per epoch, less the input's gradient), and
    bytes of the rows that are written once and read once per epoch."""
    matrices = [p.numel() for p in trainer.engine.optimizer.parameters if p.dim() >= 2]
    forward = 2 * sum(matrices)
    flops = forward + trainer.config.epochs * (3 * forward - 2 * matrices[0])
    layout = trainer.source.vec.obs_layout
    row = layout.nbytes + 8 + 4 + 4 + 4 + 4 + 4
    return flops, row * (1 + trainer.config.epochs)


def thinned(curve: list[tuple[float, int, float]], points: int = 24) -> list[tuple[float, int, float]]:
    """Points at even distances, the last included."""
    step = max(1, len(curve) // points)
    return curve[::-1][::step][::-1]


def several(env: str, settings: dict[str, dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    def case(repeats: int) -> dict[str, Any]:
        results = {}
        for name, changes in settings.items():
            try:
                results[name] = training(env, repeats, **changes)
            except Exception as error:  # one that does not fit the card leaves the others alone
                results[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
            print(f"{env}, {name}: {line(results[name])}", flush=True)
        return results

    return case


def line(result: dict[str, Any]) -> str:
    if "error" in result:
        return result["error"]
    speed = result["steps_per_second"]["median"] / 1e6
    parts = [f"{speed:.1f}M steps/s"]
    parts += [
        f"{name} {result[f'{name}_rows_per_second'] / 1e6:.0f}M"
        for name in ("rollout", "update")
        if f"{name}_rows_per_second" in result
    ]
    parts += [
        f"{name.replace('_', ' ')} {result[name]}" for name in ("kernels_per_step", "kernels_per_minibatch") if name in result
    ]
    parts += [
        f"{result['share_of_arithmetic_limit']:.1%} of the arithmetic",
        f"{result['share_of_memory_limit']:.1%} of the bandwidth",
    ]
    return ", ".join(parts) + f", return {result['curve'][-1][2] if result['curve'] else None}"


# --- environments alone, and kernels ---


def env_alone(repeats: int) -> dict[str, Any]:
    from fugu.gpu.graph import Recorded
    from fugu.vector import make
    from fugu.vector.config import VectorConfig

    results = {}
    for env, count in (("cartpole", 65536), ("cartpole", 1048576), ("breakout", 65536), ("pong", 65536), ("snake", 4096)):
        vec: Any = make(env, config=VectorConfig(num_envs=count, backend="device", device="cuda"))
        rows = vec.rows()
        vec.reset(0, rows)
        action = torch.zeros((vec.num_agents, *vec.action_layout.row_shape), dtype=torch.int64, device="cuda")
        action.random_(0, 2)

        def steps(vec: Any = vec, action: Any = action, rows: Any = rows) -> None:
            for _ in range(16):
                vec.step(action, rows)

        with torch.cuda.stream(torch.cuda.Stream()):
            recorded = Recorded(steps, torch.device("cuda"))
            recorded()
            recorded()
            results[f"{env} x {count}"] = {"steps_per_second": 16 * vec.num_agents / gpu_seconds(recorded)}
        vec.close()
        print(f"{env} x {count}: {results[f'{env} x {count}']['steps_per_second'] / 1e9:.2f}G steps/s", flush=True)
    return results


def kernels(repeats: int) -> dict[str, Any]:
    from fugu.advantage import gae, vtrace
    from fugu.gpu.graph import Recorded

    results = {}
    for segments, horizon in ((8192, 64), (65536, 32)):
        for order in ("time-major", "segment-major"):
            shape = (horizon, segments) if order == "time-major" else (segments, horizon)

            def column(*, flag: bool = False, shape: tuple[int, int] = shape, order: str = order) -> torch.Tensor:
                data = torch.rand(shape, device="cuda") < 0.01 if flag else torch.randn(shape, device="cuda")
                return data.t() if order == "time-major" else data

            columns = (column(), column(), column(flag=True), column(flag=True), torch.randn(segments, device="cuda"))
            ratio, mask = column().exp(), ~column(flag=True)
            calls = {
                "gae": lambda columns=columns, mask=mask: gae(*columns, mask=mask, gamma=0.99, lam=0.95),
                "vtrace": lambda columns=columns, ratio=ratio: vtrace(*columns, ratio, gamma=0.99, lam=0.95),
            }
            for name, call in calls.items():

                def many(call: Callable[[], Any] = call) -> None:
                    for _ in range(50):
                        call()

                with torch.cuda.stream(torch.cuda.Stream()):
                    recorded = Recorded(many, torch.device("cuda"))
                    recorded()
                    recorded()
                    results[f"{name} {segments} x {horizon}, {order}"] = gpu_seconds(recorded) / 50 * 1e6
    for name, us in results.items():
        print(f"{name}: {us:.2f} us", flush=True)
    return results


# --- time to solve ---

TARGETS = {"cartpole": 475.0, "breakout": 30.0}


def solve(repeats: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for env, target in TARGETS.items():
        runs = []
        for seed in range(repeats):
            trainer = make_trainer(override(preset(env, device="cuda"), {"seed": seed, "target": target, "log.board": "off"}))
            try:
                trainer.start()
                torch.cuda.synchronize()
                began = time.perf_counter()
                while not trainer.finished and time.perf_counter() - began < 60:
                    trainer.update(Interrupt())
                runs.append(
                    {"seed": seed, "seconds": time.perf_counter() - began, "steps": trainer.steps, "score": trainer.score.value}
                )
            finally:
                trainer.close()
            print(f"{env} to {target}: {runs[-1]}", flush=True)
        results[env] = {"target": target, "config": described(trainer), "runs": runs}
    return results


def feed(repeats: int) -> dict[str, Any]:
    results = {}
    # the second one goes on until it has learned the game
    for envs, batch, steps in ((8192, 4096, 60_000_000), (16384, 4096, 500_000_000), (32768, 8192, 60_000_000)):
        name = f"{envs} envs in batches of {batch}, tf32"
        changes = {
            "backend": "native",
            "num_envs": envs,
            "batch_size": batch,
            "minibatch": 131072,
            "steps": steps,
            **MINGRU,
        }
        try:
            results[name] = training("breakout", repeats, **changes)
        except Exception as error:
            results[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
        print(f"feed, {name}: {line(results[name])}", flush=True)
    return results


def precision(repeats: int) -> dict[str, Any]:
    """Whether rounded products learn as well: the same run with each, and the return at its end."""
    results: dict[str, Any] = {}
    recurrent = {"num_envs": 16384, "minibatch": 131072, "steps": 1_600_000_000}
    cases: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
        "MLP 128-128": (("float32", "tf32"), {"steps": 500_000_000}),
        "MinGRU-128": (("float32", "tf32", "bf16"), {**MINGRU, **recurrent}),
        "LSTM-128": (("tf32", "bf16"), {**LSTM, **recurrent}),
    }
    for name, (kinds, settings) in cases.items():
        for kind in kinds:
            changes = {"precision": kind, "log.board": "off", **settings}
            runs = [learned(seed, changes) for seed in range(3)]
            results[f"{name}, {kind}"] = runs
            print(f"{name}, {kind}: {[(run['return'], run['seconds']) for run in runs]}", flush=True)
    return results


def learned(seed: int, changes: dict[str, Any]) -> dict[str, Any]:
    trainer = make_trainer(override(preset("breakout", device="cuda"), {"seed": seed, **changes}))
    began, last = time.perf_counter(), None
    try:
        trainer.start()
        while not trainer.finished:
            last = trainer.update(Interrupt()).get("episode/return", last)
    finally:
        trainer.close()
    return {"seed": seed, "return": last, "steps": trainer.steps, "seconds": round(time.perf_counter() - began, 2)}


LSTM: dict[str, Any] = {"core": "lstm", "core_size": 128, "hidden": (128,)}
MINGRU: dict[str, Any] = {"core": "mingru", "core_size": 128, "hidden": (128,)}
BF16: dict[str, Any] = {"precision": "bf16"}

CASES = {
    "env": env_alone,
    "kernels": kernels,
    "cartpole": several(
        "cartpole",
        {
            "4096 x 32, minibatch 32768": {"num_envs": 4096, "minibatch": 32768, "steps": 300_000_000},
            "16384 x 32, minibatch 65536": {"steps": 600_000_000},
            "65536 x 32, minibatch 262144": {"num_envs": 65536, "minibatch": 262144, "steps": 1_500_000_000},
        },
    ),
    "lstm": several(
        "breakout",
        {
            "8192 x 64, minibatch 65536, bf16": {**LSTM, **BF16, "num_envs": 8192, "minibatch": 65536, "steps": 700_000_000},
            "16384 x 64, minibatch 131072, bf16": {
                **LSTM,
                **BF16,
                "num_envs": 16384,
                "minibatch": 131072,
                "steps": 1_000_000_000,
            },
        },
    ),
    "mingru": several(
        "breakout",
        {
            "8192 x 64, minibatch 65536, bf16": {
                **MINGRU,
                **BF16,
                "num_envs": 8192,
                "minibatch": 65536,
                "steps": 1_000_000_000,
            },
            "16384 x 64, minibatch 131072, bf16": {
                **MINGRU,
                **BF16,
                "num_envs": 16384,
                "minibatch": 131072,
                "steps": 1_600_000_000,
            },
            "16384 x 64, minibatch 131072, tf32": {**MINGRU, "num_envs": 16384, "minibatch": 131072, "steps": 1_600_000_000},
        },
    ),
    "solve": solve,
    "feed": feed,
    "precision": precision,
}

if __name__ == "__main__":
    main("gpu", __doc__, CASES, repeats=3)
