"""Training where environments on the CPU feed a GPU: exact after a cut, and the same whether or not batches overlap.

On a CPU the same source is used, without streams and graphs, with the kernels of the card emulated.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import pytest
import torch

from fugu.gpu import emulation
from fugu.policy.config import PolicyConfig
from fugu.rollout.acting import forms_of
from fugu.rollout.envs import Envs
from fugu.rollout.feed import Feed
from fugu.trainer import checkpoint
from fugu.trainer.build import make_trainer
from fugu.trainer.config import CheckpointConfig, OptimizerConfig, TrainConfig
from fugu.trainer.interrupt import Interrupt
from fugu.vector.config import VectorConfig

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
CORES = {
    "none": PolicyConfig(hidden=(16,)),
    "mingru": PolicyConfig(hidden=(16,), core="mingru", core_size=16),
    "lstm": PolicyConfig(hidden=(16,), core="lstm", core_size=16),
}
ENVS = {
    "native": {
        "env": "cartpole",
        "env_kwargs": {"max_steps": 20},
        "vector": VectorConfig(num_envs=32, backend="native", batch_size=8),
    },
    "python": {"env": "CartPole-v1", "vector": VectorConfig(num_envs=8, backend="process", batch_size=4, num_workers=2)},
}


def fed(monkeypatch, device: str, env: str = "native", core: str = "none", folder=None, **changes):
    chosen = {**ENVS[env], **changes}
    settings = TrainConfig(
        steps=10**8,
        horizon=6,
        minibatch=chosen["vector"].num_envs * 3,
        device=device,
        policy=CORES[core],
        optimizer=OptimizerConfig(learning_rate=1e-2),
        checkpoint=CheckpointConfig(every=1000),
        **chosen,
    )
    if device == "cpu":

        def source(envs: Envs, algorithm) -> Feed:
            done = envs.tried(algorithm)
            columns, carry = forms_of(done.columns), forms_of(done.carry)
            return Feed(envs.vec, envs.horizon, columns, carry=carry, device=envs.device, clock=envs.clock)

        monkeypatch.setattr(Envs, "on_policy", source)
    trainer = make_trainer(settings, folder)
    assert isinstance(trainer.source, Feed) and trainer.unattended is not None
    return trainer


def weights(trainer) -> torch.Tensor:
    return torch.cat([p.detach().cpu().flatten() for p in trainer.engine.optimizer.parameters])


def go_on(trainer, updates: int) -> torch.Tensor:
    while trainer.updates < updates:
        trainer.update(Interrupt())
    return weights(trainer)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("env", "core"), [("native", "none"), ("native", "mingru"), ("native", "lstm"), ("python", "none")])
def test_going_on_from_a_checkpoint_is_exact(monkeypatch, device, env, core, tmp_path):
    with emulation() if device == "cpu" else nullcontext():
        trainer = fed(monkeypatch, device, env, core, tmp_path)
        trainer.start()
        go_on(trainer, 3)
        trainer.save()
        whole = go_on(trainer, 6)
        trainer.close()
        again = fed(monkeypatch, device, env, core, tmp_path)
        again.load(checkpoint.find(tmp_path, "latest"))
        parts = go_on(again, 6)
        again.close()
    assert again.steps == trainer.steps
    assert torch.equal(whole, parts)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["auto", "bf16"])
@pytest.mark.parametrize("core", list(CORES))
def test_overlapping_batches_compute_what_batches_in_turn_do(monkeypatch, core, precision):
    """Whatever two lanes shared by mistake would differ here sooner or later."""
    found = []
    for overlap in (True, False):
        vector = VectorConfig(num_envs=8192, backend="native", batch_size=1024, num_workers=2)
        trainer = fed(monkeypatch, "cuda", core=core, vector=vector, precision=precision)
        if not overlap:
            one = torch.cuda.Stream()
            for lane in trainer.source._lanes.values():
                lane.stream = one
        trainer.start()
        found.append(go_on(trainer, 12))
        trainer.close()
    assert torch.equal(*found)


@pytest.mark.gpu
@pytest.mark.parametrize("core", list(CORES))
def test_what_is_recorded_learns_what_the_same_code_does_step_by_step(monkeypatch, core):
    """A recording reads the memory it was made with: what it learns from must lie there every time."""
    found = []
    for recorded in (True, False):
        trainer = fed(monkeypatch, "cuda", core=core, precision="float32")
        if not recorded:
            trainer.unattended._learn.failure = "asked not to"
        trainer.start()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(go_on(trainer, 8))
        trainer.close()
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_what_a_batch_needs_is_recorded_on_its_own_stream(monkeypatch):
    trainer = fed(monkeypatch, "cuda", core="mingru")
    trainer.start()
    go_on(trainer, 3)
    lanes = list(trainer.source._lanes.values())
    assert len({lane.stream.cuda_stream for lane in lanes}) == len(lanes) == 4
    for lane in lanes:
        assert lane.failure is None
        assert all(work.recorded for work in lane._recorded.values()) and len(lane._recorded) == 7
    trainer.close()
