"""Writing programs: does training make it better at tasks it has never seen, and how many programs do many environments run?

python benchmarks/coding.py learning                # three seeds, with a control that does not learn from rewards
python benchmarks/coding.py environments stragglers # 1,024 environments in one process, and when one in twenty hangs

Pass rates are those of 1,000 held-out tasks, one answer each, drawn as the policy draws them. Stragglers sleep until their limit of a
second; the sandbox has 32 places per core, so that one in twenty of them leaves room for 640 answers per second and core.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fugu
from fugu.coding import builtin
from fugu.coding.task import write_tasks
from fugu.coding.tokens import END
from fugu.config import override
from fugu.presets import preset
from fugu.trainer.build import make_trainer
from fugu.trainer.evaluate import evaluate
from fugu.trainer.interrupt import Interrupt
from harness import main

NUM_ENVS = 1024
NO_LEARNING = 1e-12
"""a learning rate"""


def learning(repeats: int, seconds: float) -> dict[str, Any]:
    """``repeats`` seeds of each algorithm, and of the control."""
    contestants: dict[str, dict[str, Any]] = {
        "grpo": {},
        "token_ppo": {"algorithm": "token_ppo"},
        "control, learning rate 0": {"optimizer.learning_rate": NO_LEARNING, "steps": 256 * 20},
    }
    return {name: [trained(seed, changes) for seed in range(repeats)] for name, changes in contestants.items()}


def trained(seed: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Pass rates on held-out tasks after the examples and after training, and on training tasks over the course of it."""
    config = override(preset("coding", algorithm=changes.get("algorithm")), {"seed": seed, **changes})
    start = time.perf_counter()
    trainer = make_trainer(config)
    try:
        shown = time.perf_counter()
        before = held_out(trainer, config)
        trainer.start()
        seen: list[float] = []
        began = time.perf_counter()
        trainer.run(lambda metrics: seen.append(metrics["episode/return"]), Interrupt())
        learned = time.perf_counter()
        after = held_out(trainer, config)
    finally:
        trainer.close()
    print(f"seed {seed} {changes}: {before:.3f} -> {after:.3f} in {learned - began:.0f} s", file=sys.stderr, flush=True)
    return {
        "seed": seed,
        "after_examples": before,
        "after_training": after,
        "gain": after - before,
        "training_curve": [round(float(np.mean(part)), 4) for part in np.array_split(seen, 10)],
        "updates": len(seen),
        "seconds": {"examples": shown - start, "training": learned - began},
    }


def held_out(trainer: Any, config: Any, episodes: int = 1000) -> float:
    settings = {**config.env_kwargs, "held_out": True}
    with fugu.vector.make("coding", 250, env_kwargs=settings) as vec:
        device = torch.device("cpu")
        return evaluate(vec, trainer.algorithm.act, episodes=episodes, seed=7, greedy=False, device=device).mean


# --- many environments ---

ROUTE = {"tokenizer": "characters", "answer_tokens": 100, "cache": 0}
SLEEPS = "import time\ntime.sleep(60)"


def environments(repeats: int, seconds: float) -> dict[str, Any]:
    """Answers per second of 1,024 environments in one process: all tests of an answer in one process, or each in its own."""
    out: dict[str, Any] = {"num_envs": NUM_ENVS}
    for name, share in (("one process per answer", True), ("one process per test", False)):
        rates = [answered(seconds, {"level": 2, "share_process": share}) for _ in range(repeats)]
        out[name] = {"answers_per_second": rates, "median": float(np.median(rates))}
    return out


def stragglers(repeats: int, seconds: float) -> dict[str, Any]:
    """The same with and without answers that hang, in batches of 32 that come when they are complete."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tasks.jsonl"
        tasks = builtin.make_many(200, 2)
        limited = [dataclasses.replace(task, limits=dataclasses.replace(task.limits, cpu_s=1.0, wall_s=1.0)) for task in tasks]
        write_tasks(path, limited)
        settings = {"tasks": str(path), "share_process": True}
        rates: dict[str, list[float]] = {"clean": [], "one in twenty hangs for 1 s": [], "the same, in turn": []}
        for _ in range(repeats):
            rates["clean"].append(answered(seconds, settings, batch_size=32, order="first_finished"))
            hanging = answered(seconds, settings, hang=0.05, batch_size=32, order="first_finished")
            rates["one in twenty hangs for 1 s"].append(hanging)
            rates["the same, in turn"].append(answered(seconds, settings, hang=0.05, batch_size=32))
    kept = [hanging / clean for clean, hanging in zip(*list(rates.values())[:2], strict=True)]
    return {"num_envs": NUM_ENVS, "answers_per_second": rates, "kept": kept}


def answered(seconds: float, settings: dict[str, Any], hang: float = 0.0, **vector: Any) -> float:
    """Answers per second, all right but a share of ``hang``."""
    chance = np.random.default_rng(0)
    with fugu.vector.make("coding", NUM_ENVS, env_kwargs={**ROUTE, **settings}, infos="none", **vector) as vec:
        envs = [
            env for shard in vec._runner._shards for env in shard.envs
        ]  # for the answers, which are not the agent's to know
        encoded: dict[str, np.ndarray] = {}

        def answer(text: str) -> np.ndarray:
            if text not in encoded:
                encoded[text] = np.append(envs[0].tokenizer.encode(text), END)
            return encoded[text]

        vec.async_reset(0)
        begun = [False] * len(vec.groups)
        count, start = 0, 0.0
        while not start or time.perf_counter() < start + seconds:
            rows = vec.recv()
            group = vec.groups.index(rows.agents)
            count += int((rows.terminated & (start > 0)).sum())
            action = np.zeros((len(rows.mask), *vec.action_layout.row_shape), np.int64)
            for k in np.flatnonzero(rows.mask):
                ids = answer(SLEEPS if chance.random() < hang else envs[rows.agents.start + k]._task.solution)
                action[k, : len(ids)] = ids
            vec.send(action)
            if not all(begun):  # every batch once as warm-up
                begun[group] = begun[group] or bool(rows.terminated.any())
                start = time.perf_counter() if all(begun) else 0.0
        return count / (time.perf_counter() - start)


CASES = {"learning": learning, "environments": environments, "stragglers": stragglers}

if __name__ == "__main__":
    main("coding", __doc__, CASES, seconds=8.0, repeats=3)
