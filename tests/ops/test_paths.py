"""What a training on a CPU runs: nothing that is there for a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import fugu.gpu
import fugu.ops
from fugu.config import override
from fugu.presets import preset
from fugu.trainer.build import make_trainer
from fugu.trainer.interrupt import Interrupt

SMALL = {"num_envs": 8, "horizon": 8, "minibatch": 32, "epochs": 1, "steps": 1000}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "one choice": ("cartpole", {}),
    "real numbers, normalised": ("pendulum", {"normalize_observation": True}),
    "lstm": ("memory", {"core": "lstm"}),
    "mingru": ("memory", {"core": "mingru"}),
    "v-trace and muon": ("cartpole", {"vtrace": True, "priority": 0.8, "optimizer.name": "muon"}),
}
FOR_A_GPU = ("_cuda.py", "half.py", "sequence.py", "mlp_ppo.py", "mlp_plan.py", "mlp_rollout.py")
GPU, OPS = (str(Path(package.__file__ or "").parent) for package in (fugu.gpu, fugu.ops))


@pytest.mark.parametrize("name", CASES)
def test_an_update_on_a_cpu_runs_no_function_that_is_there_for_a_gpu(name: str) -> None:
    env, settings = CASES[name]
    trainer = make_trainer(override(preset(env), {**SMALL, **settings}))
    ran: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and (file.startswith(GPU) or (file.startswith(OPS) and file.endswith(FOR_A_GPU))):
            ran.add(f"{file} {frame.f_code.co_name}")

    trainer.start()
    try:
        with Interrupt() as interrupt:
            trainer.update(interrupt)
            sys.setprofile(note)
            try:
                trainer.update(interrupt)
            finally:
                sys.setprofile(None)
    finally:
        trainer.source.vec.close()
    assert not ran
