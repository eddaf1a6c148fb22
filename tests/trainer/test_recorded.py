"""Recorded gradient steps on copies of batches do what the steps themselves do.

On a CPU the copies are made and nothing is recorded; with the marker gpu the same tests run on a card.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

import fugu
from fugu.config import override
from fugu.gpu import emulation
from fugu.presets import preset
from fugu.rollout.batch import Batch, Origin
from fugu.trainer.build import make_trainer
from fugu.trainer.interrupt import Interrupt
from fugu.trainer.recorded import RecordedSteps

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SMALL: dict[str, Any] = {"vector.num_envs": 2, "vector.num_workers": 1, "replay.size": 400, "threads": 1, "steps": 10_000}
TRAININGS: dict[str, tuple[str, dict[str, Any]]] = {
    "dreamer": (
        "CartPole-v1",
        {"dreamer.size": "tiny", "replay.start": 40, "replay.ratio": 32, "minibatch": 64, "horizon": 8, "eval.every": None},
    ),
    "sac": (
        "Pendulum-v1",
        {"policy.hidden": (16, 16), "replay.start": 40, "minibatch": 32, "replay.ratio": 32, "replay.priority": 0.5},
    ),
}


def trained(algorithm: str, device: str, *, recorded: bool, updates: int = 8) -> tuple[list[Tensor], dict[str, Tensor], Any]:
    """Return the weights, the replay and the object that took the steps."""
    env, settings = TRAININGS[algorithm]
    config = override(preset(env, algorithm=algorithm), {**SMALL, **settings, "device": device})
    with emulation():
        trainer = make_trainer(dataclasses.replace(config, target=None))
        try:
            assert isinstance(trainer.engine.step, RecordedSteps)
            if not recorded:
                trainer.engine.step = trainer.engine._step
            trainer.start()
            for _ in range(updates):
                trainer.update(Interrupt())
            weights = [p.detach().cpu().clone() for p in trainer.algorithm.parameters()]
            ring = trainer.source._ring
            return weights, {name: column.cpu() for name, column in ring.columns.items()}, trainer.engine.step
        finally:
            trainer.close()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("algorithm", TRAININGS)
def test_what_is_learned_and_handed_back_is_the_same(algorithm: str, device: str, recwarn: pytest.WarningsRecorder):
    weights, ring, steps = trained(algorithm, device, recorded=True)
    assert steps.recorded == (device == "cuda")
    plain, plain_ring, _ = trained(algorithm, device, recorded=False)
    if device == "cpu":
        assert all(torch.equal(a, b) for a, b in zip(weights, plain, strict=True))
        assert all(torch.equal(ring[name], plain_ring[name]) for name in ring)
    else:  # sums on a card come in any order
        for a, b in zip(weights, plain, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-2)
    assert not [w for w in recwarn if "could not be" in str(w.message)]


def test_without_a_device_nothing_is_copied():
    env, settings = TRAININGS["sac"]
    trainer = make_trainer(override(preset(env, algorithm="sac"), {**SMALL, **settings, "device": "cpu"}))
    assert not isinstance(trainer.engine.step, RecordedSteps)
    trainer.close()


class Module(fugu.Algorithm):
    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.device = torch.device("cpu")
        self.weight = torch.nn.Parameter(torch.zeros(()))


def test_batches_of_another_form_are_learned_from_as_they_are():
    seen: list[dict[str, Tensor]] = []
    handed: list[tuple[Any, Any]] = []

    def step(batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        seen.append({name: column.clone() for name, column in batch.columns.items()})
        batch.hand_back(priority=batch["reward"].sum(1))
        return batch["reward"].sum(), {"loss/a": batch["reward"].max()}

    steps = RecordedSteps(step, Module())
    for number, width in enumerate((3, 3, 5)):
        origin = Origin(lambda columns, segments: handed.append((columns, segments)), torch.tensor([number]))
        reward = torch.full((2, width), float(number))
        loss, metrics = steps(Batch({"reward": reward}, origin=origin))
        assert torch.equal(seen[-1]["reward"], reward)
        assert loss == 2 * width * number and metrics == {"loss/a": number}
        columns, segments = handed[-1]
        assert torch.equal(columns["priority"], reward.sum(1)) and segments == number
