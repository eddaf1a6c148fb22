"""How many steps does Dreamer need? Trains with several seeds until an evaluation reaches the target, one process per run.

python benchmarks/dreamer.py cartpole                             # five seeds, as the preset has it
python benchmarks/dreamer.py cartpole --seeds 3 --jobs 2 --set replay.ratio=128
python benchmarks/dreamer.py no_velocity tmaze --without memory   # see benchmarks/dreamer_tasks.py
python benchmarks/dreamer.py pendulum --ppo                       # PPO with its own settings and as many steps

Evaluations are 20 episodes of the most probable action. The policy of the evaluation that reached the target, or the last one, then
plays 100 episodes more, in other environments. CPU seconds are those of the process up to there, evaluations included: the machine
may be shared. Runs are added to what the file of ``--out`` has.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import torch  # noqa: E402
from benchmarks import dreamer_tasks, harness  # noqa: E402

import fugu  # noqa: E402
from fugu.config import override  # noqa: E402
from fugu.presets import preset  # noqa: E402
from fugu.trainer.build import make_trainer  # noqa: E402
from fugu.trainer.config import EvalConfig, TrainConfig  # noqa: E402
from fugu.trainer.evaluate import evaluate  # noqa: E402
from fugu.trainer.interrupt import Interrupt  # noqa: E402

LOCAL = f"{HERE / 'dreamer_tasks.py'}:"
OFTEN = {"replay.ratio": 256}
"""a gradient step for every two rows"""
TASKS: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "cartpole": ("CartPole-v1", {}, {}),
    "no_velocity": ("NoVelocity", {}, {"steps": 12_000, "target": 475.0, **OFTEN}),
    "tmaze": ("TMaze", {}, {"steps": 16_000, "target": 0.95, "dreamer.remember": 64, "dreamer.entropy": 3e-3, **OFTEN}),
    "memory": ("memory", {}, {"steps": 20_000, "target": 0.95, **OFTEN}),
    "pendulum": ("Pendulum-v1", {}, {"steps": 10_000, "target": -250.0, **OFTEN}),
    "maze": ("maze", {"size": 7}, {"steps": 20_000, "target": 0.95, **OFTEN}),
    "catch": ("Catch", {}, {"steps": 10_000, "target": 0.95}),
    "balance": ("Control", {"domain": "cartpole", "task": "balance"}, {"steps": 30_000, "target": 900.0}),
    "reacher": ("Control", {"domain": "reacher", "task": "easy"}, {"steps": 30_000, "target": 800.0}),
}
"""name -> environment, its arguments, and settings in place of the preset's"""
EVALUATED = 1_000
"""steps between two evaluations"""


def settings(task: str, changes: dict[str, Any], algorithm: str) -> TrainConfig:
    """Return the config of a task; that of PPO has the settings of its own preset, and the same steps and evaluations."""
    name, kwargs, own = TASKS[task]
    env = LOCAL + name if hasattr(dreamer_tasks, name) else name
    config = preset(env, kwargs, algorithm=algorithm)
    if algorithm != "dreamer":
        own = {name: value for name, value in own.items() if name in ("steps", "target")}
        own.setdefault("steps", settings(task, {}, "dreamer").steps)
        rows = config.vector.num_envs * config.horizon * config.passes
    else:
        ratio = own.get("replay.ratio", config.replay.ratio)
        rows = max(1, config.minibatch // ratio // config.vector.num_envs) * config.vector.num_envs
    config = override(config, {**own, **changes})
    evaluation = EvalConfig(every=max(1, EVALUATED // rows), episodes=20, greedy=True)
    return dataclasses.replace(config, eval=evaluation)


def train_one(
    task: str, seed: int, changes: dict[str, Any], minutes: float, without: str | None, algorithm: str
) -> dict[str, Any]:
    """Train in this process, for at most ``minutes``."""
    config = settings(task, {"seed": seed, **changes}, algorithm)
    trainer = make_trainer(config)
    if without is not None:
        trainer.algorithm.__class__ = dreamer_tasks.CONTROLS[without]
    wall, cpu = time.perf_counter(), time.process_time()
    curve: list[tuple[int, float]] = []
    last: dict[str, float] = {}

    def report(metrics: dict[str, float]) -> None:
        last.update(metrics)
        if "eval/return" in metrics:
            curve.append((int(metrics["steps"]), round(metrics["eval/return"], 1)))
        if time.perf_counter() - wall > 60 * minutes:
            raise KeyboardInterrupt

    try:
        trainer.start()
        with contextlib.suppress(KeyboardInterrupt):
            trainer.run(report, Interrupt())
        spent = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
        reached = config.target is not None and bool(curve) and curve[-1][1] >= config.target
        with fugu.vector.make(config.env, 20, env_kwargs=dict(config.env_kwargs), backend="serial") as vec:
            act = trainer.algorithm.act
            found = evaluate(vec, act, episodes=100, seed=5000 + seed, greedy=True, device=torch.device("cpu"))
        counts = {"task": task, "seed": seed, "steps": int(last["steps"]), "updates": int(last["updates"])}
        return {**counts, "reached": reached, "return_of_100": round(found.mean, 1), **spent, "curve": curve}
    finally:
        trainer.close()


def in_process(job: tuple[Any, ...]) -> dict[str, Any]:
    script = (
        "import json, sys; from benchmarks.dreamer import train_one; print(json.dumps(train_one(*json.loads(sys.argv[1]))))"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path])}
    command = [sys.executable, "-W", "ignore", "-c", script, json.dumps(job)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    if done.returncode:
        return {"seed": job[1], "error": (done.stderr.strip().splitlines() or ["ended by a signal"])[-1]}
    found = json.loads(done.stdout.strip().splitlines()[-1])
    print({name: value for name, value in found.items() if name != "curve"}, file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="+", choices=TASKS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0, help="of a run")
    parser.add_argument("--without", choices=dreamer_tasks.CONTROLS, help="leave a part out")
    parser.add_argument("--ppo", action="store_true", help="train PPO instead")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--label", help="name of the runs in the results, after the task's")
    parser.add_argument("--out", help="also write the JSON here")
    options = parser.parse_args()
    changes = {name: _value(value) for name, _, value in (each.partition("=") for each in options.set)}
    algorithm = "ppo" if options.ppo else "dreamer"
    same = (changes, options.minutes, options.without, algorithm)
    jobs = [(task, seed, *same) for seed in range(options.seeds) for task in options.task]
    with ThreadPoolExecutor(options.jobs) as pool:
        found = list(pool.map(in_process, jobs))
    label = options.label or (f"without {options.without}" if options.without else "ppo" if options.ppo else None)
    runs = {
        f"{task}, {label}" if label else task: [run for job, run in zip(jobs, found, strict=True) if job[0] == task]
        for task in options.task
    }
    harness.report("dreamer", runs, options.out, add=True)


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


if __name__ == "__main__":
    main()
