"""How many steps does Dreamer need? Trains with several seeds until an evaluation reaches the target, one process per run.

python benchmarks/dreamer.py CartPole-v1                          # five seeds, as the preset has it
python benchmarks/dreamer.py CartPole-v1 --seeds 3 --jobs 2 --set replay.ratio=128
python benchmarks/dreamer.py CartPole-v1 --set policy.normalize_observation=False

Evaluations are 20 episodes of the most probable action. The policy of the evaluation that reached the target then plays 100 episodes
more, in other environments. CPU seconds are those of the process up to there, evaluations included: the machine may be shared.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks import harness  # noqa: E402


def train_one(env: str, seed: int, changes: dict[str, Any], minutes: float) -> dict[str, Any]:
    """Train in this process, for at most ``minutes``."""
    import torch

    import fugu
    from fugu.config import override
    from fugu.presets import preset
    from fugu.trainer.build import make_trainer
    from fugu.trainer.evaluate import evaluate
    from fugu.trainer.interrupt import Interrupt

    config = override(preset(env, algorithm="dreamer"), {"seed": seed, **changes})
    trainer = make_trainer(config)
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
        counts = {"seed": seed, "steps": int(last["steps"]), "updates": int(last["updates"])}
        return {**counts, "reached": reached, "return_of_100": round(found.mean, 1), **spent, "curve": curve}
    finally:
        trainer.close()


def in_process(job: tuple[str, int, dict[str, Any], float]) -> dict[str, Any]:
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
    parser.add_argument("env", nargs="+")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0, help="of a run")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", help="also write the JSON here")
    options = parser.parse_args()
    changes = {name: _value(value) for name, _, value in (each.partition("=") for each in options.set)}
    jobs = [(env, seed, changes, options.minutes) for env in options.env for seed in range(options.seeds)]
    with ThreadPoolExecutor(options.jobs) as pool:
        found = list(pool.map(in_process, jobs))
    runs = {env: [run for job, run in zip(jobs, found, strict=True) if job[0] == env] for env in options.env}
    harness.report("dreamer", runs, options.out)


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


if __name__ == "__main__":
    main()
