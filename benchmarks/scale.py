"""Beyond one process: overlap of rollout and learning, and several learners.

python benchmarks/scale.py --out benchmarks/results/scale.json

overlap    updates per second with and without ``--overlap``, of environments that wait (sleep) and a learner that waits (sleeps, as for
           a GPU), against the ideal (R + L) / max(R, L) from the times of the same pair; and of breakout, where both need the same
           cores
lag        steps until pong reaches a return of 10, with weights one update old and without, seed by seed
ranks      steps per second of two processes on breakout, each with one thread, over one process with one thread (weak scaling), and
           of ``exact`` over ``all_reduce``

Results of earlier commands stay in the file.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import harness
from fugu.algorithm.a2c import A2C
from fugu.config import override
from fugu.presets import preset
from fugu.trainer.build import make_trainer
from fugu.trainer.config import TrainConfig
from fugu.trainer.interrupt import Interrupt

STEP_S, LEARN_S = 0.004, 0.12
ENVS, HORIZON = 2, 16
TARGET, MOST, SEEDS = 10.0, 6_000_000, 5
WARM_UP, UPDATES = 3, 12
WORKER = Path(__file__).with_name("scale_rank.py")


class Sleeping(gym.Env[np.ndarray, int]):
    """An environment that waits for something elsewhere in each step."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(STEP_S)
        return np.zeros(4, np.float32), 1.0, False, False, {}


class Waiting(A2C):
    """A learner whose work is done elsewhere."""

    def finish(self, batch: Any) -> Any:
        time.sleep(LEARN_S)
        return super().finish(batch)


def times(config: TrainConfig, updates: int) -> dict[str, float]:
    """Seconds per update, and of its rollout and the rest where one comes after the other."""
    trainer = make_trainer(config)
    spent = {"rollout": 0.0}
    try:
        trainer.start()
        inner = trainer.source.next

        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            found = inner(*args)
            spent["rollout"] += time.perf_counter() - began
            return found

        trainer.source.next = timed  # type: ignore[method-assign]
        interrupt, began = Interrupt(), 0.0
        for number in range(WARM_UP + 8 + updates):  # overlap times its first updates one after the other
            if number == WARM_UP + 8:
                began, spent["rollout"] = time.perf_counter(), 0.0
            trainer.update(interrupt)
        whole = (time.perf_counter() - began) / updates
        return {"update": whole, "rollout": spent["rollout"] / updates, "learning": whole - spent["rollout"] / updates}
    finally:
        trainer.close()


def overlap(repeats: int) -> dict[str, Any]:
    waiting = TrainConfig(
        env="scale:Sleeping",
        algorithm="scale:Waiting",
        steps=10**9,
        horizon=HORIZON,
        threads=1,
        vector=override(TrainConfig().vector, {"num_envs": ENVS, "backend": "serial"}),
    )
    busy = override(preset("breakout"), {"threads": 1, "vector.num_workers": 1, "steps": 10**9})
    out: dict[str, Any] = {}
    for name, config, updates in (("waiting", waiting, UPDATES), ("breakout", busy, 4)):
        pairs = []
        for _ in range(repeats):
            plain = times(config, updates)
            ahead = times(override(config, {"overlap": True}), updates)
            gain = plain["update"] / ahead["update"]
            ideal = plain["update"] / max(plain["rollout"], plain["learning"])
            pairs.append({"gain": gain, "ideal": ideal, "of ideal": gain / ideal, "synchronous": plain, "overlap": ahead})
        shares = harness.Result([pair["of ideal"] for pair in pairs])
        gains = harness.Result([pair["gain"] for pair in pairs])
        out[name] = {"of ideal": shares.summary(), "gain": gains.summary(), "pairs": pairs}
    return out


def lag(repeats: int) -> dict[str, Any]:
    """``repeats``: the number of seeds."""
    rows = []
    for seed in range(repeats):
        found: dict[str, Any] = {"seed": seed}
        for name, ahead in (("synchronous", False), ("lag 1", True)):
            config = override(preset("pong"), {"seed": seed, "overlap": ahead, "steps": MOST, "target": None, "threads": 1})
            found[name] = reached(config)
        rows.append(found)
    both = [(row["synchronous"]["steps"], row["lag 1"]["steps"]) for row in rows]
    whole = [(a, b) for a, b in both if a is not None and b is not None]
    ratio = sum(b for _, b in whole) / sum(a for a, _ in whole) if whole else None
    finals = [sum(row[name]["final"] for row in rows) / len(rows) for name in ("synchronous", "lag 1")]
    return {"target": TARGET, "steps, lag 1 / synchronous": ratio, "finals": finals, "seeds": rows}


def reached(config: TrainConfig) -> dict[str, Any]:
    trainer = make_trainer(config)
    steps: list[int] = []
    scores: list[float] = []

    def report(metrics: dict[str, float]) -> None:
        scores.append(metrics.get("score", float("nan")))
        if not steps and scores[-1] >= TARGET:
            steps.append(int(metrics["steps"]))

    try:
        trainer.start()
        trainer.run(report, Interrupt())
    finally:
        trainer.close()
    return {"steps": steps[0] if steps else None, "final": scores[-1]}


def ranks(repeats: int) -> dict[str, Any]:
    contestants = {
        "1 process": lambda: together(1, "all_reduce"),
        "2 processes": lambda: together(2, "all_reduce"),
        "2 processes, exact": lambda: together(2, "exact"),
    }
    results = harness.alternate(contestants, repeats)
    pairs = [("2 processes", "1 process"), ("2 processes, exact", "2 processes")]
    return {"steps per second": harness.summaries(results), "ratios": harness.ratios(results, pairs)}


def together(size: int, mode: str) -> float:
    """Steps per second of so many processes together."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    if size > 1:
        common |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    command = [sys.executable, str(WORKER), mode, str(WARM_UP), str(UPDATES)]
    started = [
        subprocess.Popen(command, env={**common, "RANK": str(rank)} if size > 1 else common, stdout=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    said = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit("a rank failed")
    return float(said[0])


if __name__ == "__main__":
    harness.main("scale", __doc__, {"overlap": overlap, "lag": lag, "ranks": ranks}, repeats=SEEDS, add=True)
