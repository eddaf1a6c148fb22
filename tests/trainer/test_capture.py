"""Updates that do not ask the host: the same results as a run that does, exact after a cut, and honest about what they cannot do.

On a CPU the kernels of the environments are emulated and nothing is recorded; with the marker gpu the same tests run on a card.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from fugu.algorithm.config import PPOConfig, SafeConfig
from fugu.algorithm.parts.fused import FusedSurrogate
from fugu.errors import GpuError
from fugu.policy.config import PolicyConfig
from fugu.rollout.device import DeviceRollout
from fugu.rollout.onpolicy import OnPolicy
from fugu.trainer import build, checkpoint
from fugu.trainer.build import make_trainer
from fugu.trainer.config import CheckpointConfig, OptimizerConfig, TrainConfig, with_algorithm
from fugu.trainer.diverged import Diverged
from fugu.trainer.interrupt import Interrupt
from fugu.vector.config import VectorConfig

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
TENSOR_ENV = f"{Path(__file__).parents[2] / 'examples' / 'tensor_env.py'}:CartPole"


def config(device: str, **changes) -> TrainConfig:
    base = TrainConfig(
        env="cartpole",
        env_kwargs={"max_steps": 20},
        steps=64 * 8 * 12,
        horizon=8,
        minibatch=256,
        device=device,
        vector=VectorConfig(num_envs=64, backend="device", device=device),
        policy=PolicyConfig(hidden=(16,)),
        optimizer=OptimizerConfig(learning_rate=1e-2),
        checkpoint=CheckpointConfig(every=1000),
    )
    base = with_algorithm(base, changes.pop("algorithm", "ppo"))
    return dataclasses.replace(base, **changes)


def trained(settings: TrainConfig, updates: int, folder=None, cut: int | None = None):
    """Weights and metrics after this many updates; with ``cut`` saved there and gone on with in a new trainer."""
    seen: list[dict[str, float]] = []
    trainer = make_trainer(settings, folder)
    trainer.start()
    while trainer.updates < (cut or updates):
        seen.append(one_update(trainer))
    if cut is not None:
        trainer.save()
        trainer.close()
        trainer = make_trainer(settings, folder)
        trainer.load(checkpoint.find(folder, "latest"))
        while trainer.updates < updates:
            seen.append(one_update(trainer))
    weights = torch.cat([p.detach().cpu().flatten() for p in trainer.engine.optimizer.parameters])
    steps = trainer.steps
    trainer.close()
    return weights, steps, seen


def one_update(trainer) -> dict[str, float]:
    assert trainer.unattended is not None
    trainer.unattended.every = 1
    return trainer.update(Interrupt())


CORES = {"none": PolicyConfig(hidden=(16,)), "mingru": PolicyConfig(hidden=(16,), core="mingru", core_size=16)}
CORES["lstm"] = PolicyConfig(hidden=(16,), core="lstm", core_size=16)
CORES["normalised"] = PolicyConfig(hidden=(16,), normalize_observation=True)
CORES["apart"] = PolicyConfig(hidden=(16,), share=False)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("core", list(CORES))
def test_going_on_from_a_checkpoint_is_exact(device, core, tmp_path):
    scaled = PPOConfig(normalize_reward=True, normalize_value=True, entropy_final=0.0)
    settings = config(device, policy=CORES[core], epochs=2, ppo=scaled if core == "normalised" else PPOConfig())
    whole, steps, _ = trained(settings, 6)
    parts, same_steps, _ = trained(settings, 6, tmp_path, cut=3)
    assert steps == same_steps
    assert torch.equal(whole, parts)


@pytest.mark.parametrize("device", DEVICES)
def test_going_on_under_a_limit_is_exact(device, tmp_path):
    safe = SafeConfig(limit=(5.0,))
    settings = config(device, env="knapsack_cmdp", env_kwargs={}, algorithm="safe_ppo", safe=safe, epochs=2)
    whole, _, seen = trained(settings, 8)
    parts, _, again = trained(settings, 8, tmp_path, cut=5)
    assert torch.equal(whole, parts) and [m["safe/lambda"] for m in seen] == [m["safe/lambda"] for m in again]
    assert seen[-1]["safe/lambda"] > 0 and seen[-1]["episode/cost"] > 5 and seen[-1]["loss/cost_value"] > 0


@pytest.mark.parametrize("device", DEVICES)
def test_the_environments_are_on_the_device(device):
    trainer = make_trainer(config(device))
    assert isinstance(trainer.source, DeviceRollout)
    assert trainer.source.slab["obs"].device.type == device
    trainer.close()


@pytest.mark.parametrize("device", DEVICES)
def test_metrics_count_rows_that_acted(device):
    _, steps, seen = trained(config(device), 4)
    assert seen[-1]["steps"] == steps
    assert 0 < steps < 4 * 64 * 8  # rows after an ending do not count
    assert seen[-1]["episode/length"] <= 20
    assert 0 < seen[-1]["loss/entropy"] <= 0.6932


@pytest.mark.parametrize("device", DEVICES)
def test_the_learning_rate_follows_its_schedule(device):
    linear = config(device, optimizer=OptimizerConfig(learning_rate=1e-2, schedule="linear", warmup=0.25), steps=64 * 8 * 8)
    _, _, seen = trained(linear, 6)
    rates = [line["learning_rate"] for line in seen]
    assert rates[0] == 0 and max(rates) > 0.008 and rates[-1] < rates[-2] < max(rates)


@pytest.mark.parametrize("device", DEVICES)
def test_a_loss_that_is_not_finite_stops_training_and_leaves_the_weights(device):
    trainer = make_trainer(config(device))
    trainer.start()
    one_update(trainer)
    before = [p.detach().clone() for p in trainer.engine.optimizer.parameters]
    trainer.algorithm.prepare = poisoned(trainer.algorithm.prepare)
    with pytest.raises(Diverged):
        one_update(trainer)
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.engine.optimizer.parameters, strict=True))
    trainer.close()


def poisoned(prepare):
    def with_nan(batch, progress):
        batch = prepare(batch, progress)
        return batch.also(value_target=batch["value_target"] * float("nan"))

    return with_nan


@pytest.mark.parametrize("device", DEVICES)
def test_training_ends_at_a_look_whatever_the_time_it_took(device):
    settings = config(device, steps=64 * 8 * 3)
    trainer = make_trainer(settings)
    trainer.start()
    trainer.unattended.every = 5
    trainer.run(lambda metrics: None, Interrupt())
    assert trainer.updates == 5  # the steps were done after four
    trainer.close()


MASKED = """
import gymnasium as gym, numpy as np, torch

class Masked:
    observation_space = gym.spaces.Box(0, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(4)
    time_limit = 5

    def reset(self, n, uniform):
        return {"seen": uniform(3)}

    def step(self, state, action):
        return state, (action == 1).float(), torch.zeros_like(action, dtype=torch.bool)

    def observe(self, state):
        return state["seen"]

    def action_mask(self, state):
        return torch.arange(4, device=state["seen"].device).expand(len(state["seen"]), 4) < 2
"""


@pytest.mark.parametrize("device", DEVICES)
def test_forbidden_actions_count_in_the_loss_as_in_the_rollout(device, tmp_path):
    """The network is one that fused kernels take, but they know no action masks."""
    from fugu.gpu import emulation

    (tmp_path / "masked.py").write_text(MASKED)
    settings = config(device, env=f"{tmp_path / 'masked.py'}:Masked", env_kwargs={})
    with emulation():
        _, _, seen = trained(settings, 1)
    assert seen[0]["loss/entropy"] <= 0.6932  # of two choices, not of four
    assert seen[0]["loss/clip_fraction"] < 0.5


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["auto", "bf16"])
def test_an_environment_in_torch_is_compiled_and_recorded_and_goes_on_exactly(precision, tmp_path, recwarn):
    settings = config("cuda", env=TENSOR_ENV, env_kwargs={}, policy=CORES["mingru"], precision=precision)
    whole, _, _ = trained(settings, 6)
    parts, _, _ = trained(settings, 6, tmp_path, cut=3)
    assert torch.equal(whole, parts)
    trainer = make_trainer(settings)
    trainer.start()
    for _ in range(3):
        one_update(trainer)
    assert trainer.unattended._collect.recorded
    assert trainer.source.vec.worlds._next != trainer.source.vec.worlds._outcome
    assert not [w for w in recwarn if "could not be" in str(w.message)]
    trainer.close()


@pytest.mark.gpu
def test_a_policy_that_asks_the_host_runs_without_a_recording(recwarn):
    trainer = make_trainer(config("cuda"))
    trainer.start()
    policy = trainer.algorithm.policy
    encode = policy.net.whole
    policy.net.whole = lambda obs: encode(obs + 0.0 * float(obs.sum()))  # looks at a number
    trainer.algorithm.surrogate = trainer.algorithm.surrogate.plain
    trainer.source.whole = None
    for _ in range(4):
        one_update(trainer)
    assert any("could not be recorded as a CUDA graph" in str(w.message) for w in recwarn)
    trainer.close()


def test_fused_kernels_do_what_torch_does():
    """The first batch of both has the same actions; after an update the weights differ by the rounding of products alone.

    On a CPU, where random numbers are the same whether they are drawn for one step or for all."""
    device = "cpu"
    from fugu.gpu import emulation

    scaled = PPOConfig(normalize_value=True, entropy_final=0.0)
    settings = config(device, ppo=scaled, policy=CORES["normalised"], precision="float32")
    with emulation():
        fused, plain = make_trainer(settings), make_trainer(settings)
        assert isinstance(fused.algorithm.surrogate, FusedSurrogate) and fused.source.whole is not None
        plain.algorithm.surrogate, plain.source.whole = plain.algorithm.surrogate.plain, None
        weights = []
        for trainer in (fused, plain):
            trainer.start()
            one_update(trainer)
            weights.append(torch.cat([p.detach().cpu().flatten() for p in trainer.engine.optimizer.parameters]))
        assert torch.equal(fused.source.slab.acted["action"], plain.source.slab.acted["action"])
        for name in ("logprob", "value"):
            torch.testing.assert_close(fused.source.slab.acted[name], plain.source.slab.acted[name], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(*weights, atol=2e-4, rtol=0)
        assert (weights[0] - weights[1]).abs().median() < 1e-6
        for trainer in (fused, plain):
            trainer.close()


def test_a_run_whose_environments_leave_the_device_starts_new_episodes(tmp_path):
    settings = config("cpu")
    trainer = make_trainer(settings, tmp_path)
    trainer.start()
    one_update(trainer)
    trainer.save()
    trainer.close()
    elsewhere = make_trainer(dataclasses.replace(settings, vector=VectorConfig(num_envs=64)), tmp_path)
    elsewhere.load(checkpoint.find(tmp_path, "latest"))
    assert elsewhere.steps == trainer.steps
    elsewhere.update(Interrupt())
    elsewhere.close()


def test_environments_that_cannot_be_on_the_device_stay_on_the_cpu_and_say_why(monkeypatch):
    def fails(*_):
        raise GpuError("libnvrtc was not found")

    monkeypatch.setattr(build, "lives_on_device", lambda *_: True)
    monkeypatch.setattr(build, "make_device_vec", fails)
    settings = dataclasses.replace(config("cpu"), vector=VectorConfig(num_envs=64))
    with pytest.warns(RuntimeWarning, match="stay on the CPU.*libnvrtc was not found"):
        trainer = make_trainer(settings)
    assert isinstance(trainer.source, OnPolicy)
    trainer.close()
    with pytest.raises(GpuError):  # asked for by name
        make_trainer(config("cpu"))
