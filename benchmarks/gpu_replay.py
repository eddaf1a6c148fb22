"""Gradient steps on replayed rows on one GPU: milliseconds, recorded as a CUDA graph and step by step.

python benchmarks/gpu_replay.py --out benchmarks/results/gpu_replay.json

Dreamer of three sizes on CartPole-v1 and on pictures of 64 x 64, and SAC on Pendulum-v1 with networks of 256 x 256. Batches are
drawn before; the two take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import harness
from fugu.config import override
from fugu.presets import preset
from fugu.trainer.build import make_trainer
from fugu.trainer.interrupt import Interrupt
from fugu.trainer.update import minibatches

STEPS = 10
CATCH = f"{Path(__file__).parent / 'dreamer_tasks.py'}:Catch"
PAPER = {"minibatch": 1024, "horizon": 64, "dreamer.starts": 0}
"""16 segments of 64 rows, and imagination from all of them"""


def measured(env: str, algorithm: str, changes: dict[str, Any], repeats: int) -> dict[str, Any]:
    settings = {"device": "cuda", "eval.every": None, "target": None, "replay.start": 400, "replay.size": 20_000, **changes}
    trainer = make_trainer(override(preset(env, algorithm=algorithm), settings))
    try:
        trainer.start()
        for _ in range(6):
            trainer.update(Interrupt())
        engine = trainer.engine
        batch = engine.prepare(engine.collect(bool).batch, 0.0)
        minibatch = next(minibatches(batch, engine.count, 1, engine.generator))

        def seconds(step: Callable[[Any], Any]) -> float:
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(STEPS):
                step(minibatch)
            torch.cuda.synchronize()
            return (time.perf_counter() - start) / STEPS

        contestants = {"recorded": lambda: seconds(engine.step), "step by step": lambda: seconds(engine._step)}
        found = {name: result.summary() for name, result in harness.alternate(contestants, repeats).items()}
        ratio = found["step by step"]["median"] / found["recorded"]["median"]
        result = {"was recorded": engine.step.recorded, "seconds": found, "ratio": ratio}  # type: ignore[attr-defined]
        print(env, changes, result, flush=True)
        return result
    finally:
        trainer.close()


def dreamer(repeats: int) -> dict[str, Any]:
    cases = {
        "small": ("CartPole-v1", {}),
        "1m": ("CartPole-v1", {"dreamer.size": "1m", **PAPER}),
        "12m": ("CartPole-v1", {"dreamer.size": "12m", **PAPER}),
        "12m, pictures": (CATCH, {"dreamer.size": "12m", **PAPER}),
    }
    return {name: measured(env, "dreamer", changes, repeats) for name, (env, changes) in cases.items()}


def sac(repeats: int) -> dict[str, Any]:
    return {"256 x 256": measured("Pendulum-v1", "sac", {"policy.hidden": (256, 256)}, repeats)}


if __name__ == "__main__":
    harness.main("gpu_replay", __doc__, {"dreamer": dreamer, "sac": sac}, repeats=5)
