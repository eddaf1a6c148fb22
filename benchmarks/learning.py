"""Do the presets learn? Trains every environment with several seeds, one process per run, and evaluates the final policies.

python benchmarks/learning.py                                  # the native environments, five seeds each
python benchmarks/learning.py cartpole CartPole-v1 --seeds 3 --jobs 2
python benchmarks/learning.py knapsack_cmdp --set algorithm=safe_ppo
python benchmarks/learning.py pong --set learning_rate=3e-3 --set hidden=[128]
python benchmarks/learning.py ALE/Qbert-v5 ALE/Enduro-v5 --seeds 1 --set device=cuda --set num_workers=8 --keep runs/atari --minutes 9

With ``--keep`` runs stay in that folder, and the same command goes on with those that are not finished, after ``--minutes`` or
Ctrl-C.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))


def train_one(env: str, seed: int, changes: dict[str, object], episodes: int, keep: str | None = None) -> dict[str, object]:
    """In this process: train, then evaluate."""
    with tempfile.TemporaryDirectory() as temporary:
        settings = {"seed": seed, "threads": 1, "log.board": "off", "num_workers": 1, **changes}
        run = trained(env, settings, Path(keep or temporary) / f"{env.replace('/', '-')}-{seed}")
        result = run.evaluate(episodes, seed=1000 + seed)
        wins, losses = against_random(run, games=400) if env == "connect4" else (None, None)
        rows, timing = run.metrics(), run.folder.read_timing()
        curve = [row["episode/return"] for row in rows if "episode/return" in row]
        speed = np.median([row["time/steps_per_second"] for row in timing])
    low, high = result.interval
    return {
        "env": env,
        "seed": seed,
        "mean_return": result.mean if wins is None else wins,
        "interval": [low, high],
        **({} if wins is None else {"wins_against_random": wins, "losses_against_random": losses}),
        "mean_length": float(np.mean(result.lengths)),
        **({"mean_costs": result.mean_costs} if result.costs else {}),
        "steps": rows[-1]["steps"],
        "seconds": timing[-1]["time/wall"],
        "steps_per_second": float(speed),
        "curve": [float(np.mean(part)) for part in np.array_split(curve, min(20, len(curve)))] if curve else [],
    }


def trained(env: str, settings: dict[str, object], folder: Path) -> Any:
    """A finished run; if one was begun in ``folder``, that one."""
    import fugu
    from fugu.run.run import Run

    if not any(folder.glob("*/checkpoints/*")):
        return fugu.train(env, runs=folder, **settings)
    run = Run("latest", folder)
    return run.resume() if run.metrics()[-1]["steps"] < run.config.steps else run


def against_random(run: Any, games: int, *, greedy: bool = False) -> tuple[float, float]:
    """Shares of games won and lost by the policy as agent 0; who begins is drawn by the environment."""
    import torch

    from fugu.rollout.acting import Seen
    from fugu.run.player import Player

    rng = np.random.default_rng(0)
    results: list[float] = []
    with Player(run, num_envs=games) as player:
        vec = player.vec
        vec.reset(7)
        finished = np.zeros(games, bool)
        while not finished.all():
            rows = vec.rows
            obs, first, allowed = map(torch.from_numpy, (rows.obs, rows.first, rows.action_mask))
            act = player.algorithm.act(Seen(obs, first, action_mask=allowed, greedy=greedy))
            action = act.env_action.numpy().copy()
            noise = rng.random(rows.action_mask.shape) * rows.action_mask
            action[1::2] = noise.argmax(1)[1::2]
            vec.step(action)
            ended = (vec.rows.terminated | vec.rows.truncated)[0::2] & ~finished
            results += vec.rows.reward[0::2][ended].tolist()
            finished |= ended
    return float(np.mean(np.array(results) > 0)), float(np.mean(np.array(results) < 0))


Job = tuple[str, int, dict[str, object], int, str | None]


def in_process(job: Job, until: float = float("inf")) -> dict[str, object]:
    """``until`` when, by the clock of ``time.monotonic``, it may train; then it saves what it has."""
    left = until - time.monotonic()
    if left <= 0:
        return {"env": job[0], "seed": job[1], "error": "not begun"}
    script = (
        "import json, sys; from benchmarks.learning import train_one; print(json.dumps(train_one(*json.loads(sys.argv[1]))))"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}
    command = [sys.executable, "-c", script, json.dumps(job)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            said, complained = process.communicate(timeout=None if left == float("inf") else left)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            said, complained = process.communicate()
    if process.returncode:
        return {"env": job[0], "seed": job[1], "error": (complained.strip().splitlines() or ["ended by a signal"])[-1]}
    return json.loads(said.strip().splitlines()[-1])


def main() -> int:
    from tests.learning.goals import GOALS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*", default=list(GOALS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--episodes", type=int)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where runs stay, and go on from")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which runs are saved and ended")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    changes = {}
    for text in arguments.set:
        name, _, value = text.partition("=")
        try:
            changes[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            changes[name] = value
    keep = str(arguments.keep.resolve()) if arguments.keep else None
    until = time.monotonic() + 60 * arguments.minutes
    jobs: list[Job] = []
    for env in arguments.envs:
        goal = GOALS.get(env)
        both = {**(goal.changes if goal else {}), **changes}
        episodes = arguments.episodes or (goal.episodes if goal else 100)
        jobs += [(env, seed, both, episodes, keep) for seed in range(arguments.seeds)]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        running = [pool.submit(in_process, job, until) for job in jobs]
        results = []
        try:
            for done in as_completed(running):
                results.append(done.result())
                if arguments.out:  # what is there so far, should the time run out
                    write("learning", results, arguments.out)
        except KeyboardInterrupt:  # those that run have heard it too, and save; none is begun after it
            pool.shutdown(cancel_futures=True)
            return 130
    results.sort(key=lambda r: (arguments.envs.index(r["env"]), r["seed"]))
    missed = 0
    for env in arguments.envs:
        runs = [r for r in results if r["env"] == env]
        errors = [r["error"] for r in runs if "error" in r]
        scores = sorted(float(r["mean_return"]) for r in runs if "error" not in r)
        goal = GOALS.get(env)
        reached = sum(score >= goal.goal for score in scores) if goal else 0
        missed += goal is not None and reached < len(runs)
        seconds = np.median([float(r["seconds"]) for r in runs if "error" not in r]) if scores else float("nan")
        speed = np.median([float(r["steps_per_second"]) for r in runs if "error" not in r]) if scores else float("nan")
        print(
            f"{env:24} {' '.join(f'{s:9.2f}' for s in scores)}  "
            + (f"goal {goal.goal:g}: {reached}/{len(runs)}" if goal else "")
            + f"  {seconds:.1f} s  {speed:,.0f} steps/s {errors or ''}",
            flush=True,
        )
        if costs := [cost for r in runs for cost in r.get("mean_costs", {}).items()]:
            print("    costs:", " ".join(f"{name} {cost:.2f}" for name, cost in costs), flush=True)
        if scores:
            longest = next(r for r in runs if "error" not in r)
            print("   ", " ".join(f"{x:.3g}" for x in longest["curve"]), flush=True)
    if arguments.out:
        write("learning", results, arguments.out)
    return int(missed > 0)


def write(name: str, results: object, out: Path) -> None:
    from benchmarks.harness import machine

    command = "python " + " ".join([os.path.relpath(sys.argv[0]), *sys.argv[1:]])
    out.write_text(
        json.dumps({"benchmark": name, "command": command, "machine": machine(), "results": results}, indent=1) + "\n"
    )


if __name__ == "__main__":
    sys.exit(main())
