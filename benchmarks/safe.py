"""Does safe PPO hold its limit? What episodes cost over the last fifth of training, against the limit, beside PPO without one.

python benchmarks/safe.py                                            # knapsack_cmdp and safe_point, five seeds each
python benchmarks/safe.py fugu/HalfCheetahVelocity-v5 --seeds 5 --jobs 10
python benchmarks/safe.py safe_point --set kp=2.0 --seeds 2
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

CLOSE = 0.1
"""a limit is held if the mean cost is within this share of it"""


def train_one(env: str, algorithm: str, seed: int, changes: dict[str, Any]) -> dict[str, Any]:
    """In this process."""
    import fugu

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        settings = {"seed": seed, "threads": 1, "log.board": "off", **changes}
        if algorithm == "ppo":
            settings = {name: value for name, value in settings.items() if name in ("seed", "threads", "log.board", "steps")}
        rows = fugu.train(env, algorithm=algorithm, runs=folder, **settings).metrics()
    ended = [row for row in rows if "episode/cost" in row]
    late = [row for row in ended if row["steps"] > 0.8 * rows[-1]["steps"]]
    parts = np.array_split(np.arange(len(ended)), min(20, len(ended)))

    def mean(name: str, over: list[dict[str, float]]) -> float:
        return float(np.mean([row[name] for row in over]))

    result = {"env": env, "algorithm": algorithm, "seed": seed, "steps": rows[-1]["steps"]}
    result |= {"seconds": time.perf_counter() - began, "limit": rows[-1].get("safe/limit")}
    result |= {"cost": mean("episode/cost", late), "return": mean("episode/return", late)}
    result["curve"] = [
        [mean(name, [ended[i] for i in part]) for name in ("steps", "episode/return", "episode/cost")] for part in parts
    ]
    if algorithm == "safe_ppo":
        result["lambda"] = [mean("safe/lambda", [ended[i] for i in part]) for part in parts]
    return result


def in_process(job: tuple[str, str, int, dict[str, Any]]) -> dict[str, Any]:
    script = "import json, sys; from benchmarks.safe import train_one; print(json.dumps(train_one(*json.loads(sys.argv[1]))))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}
    done = subprocess.run([sys.executable, "-c", script, json.dumps(job)], capture_output=True, text=True, env=environment)
    if done.returncode:
        return {"env": job[0], "algorithm": job[1], "seed": job[2], "error": done.stderr.strip().splitlines()[-1:]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> int:
    from benchmarks.learning import write

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*", default=["knapsack_cmdp", "safe_point"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--algorithms", nargs="+", default=["safe_ppo", "ppo"])
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="of safe_ppo; steps of both")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    changes = {name: ast.literal_eval(value) for name, _, value in (text.partition("=") for text in arguments.set)}
    jobs = [(e, a, seed, changes) for e in arguments.envs for a in arguments.algorithms for seed in range(arguments.seeds)]
    results, missed = [], 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for one in pool.map(in_process, jobs):
            results.append(one)
            if arguments.out:  # what is there so far, should the time run out
                write("safe", results, arguments.out)
            said = f"{one['env']:30} {one['algorithm']:9} seed {one['seed']}  "
            if "error" in one:
                missed += 1
                print(said, one["error"], flush=True)
                continue
            limit = one["limit"]
            held = limit is None or abs(one["cost"] - limit) <= CLOSE * limit
            missed += not held
            print(
                f"{said} return {one['return']:9.2f}  cost {one['cost']:8.2f}"
                + (
                    ""
                    if limit is None
                    else f"  limit {limit:g}: {'held' if held else 'missed'}, lambda {one['lambda'][-1]:.3f}"
                )
                + f"  {one['steps']:,} steps, {one['seconds']:.0f} s",
                flush=True,
            )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
