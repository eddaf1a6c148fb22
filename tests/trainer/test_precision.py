"""bfloat16 on a CPU: who may have it, and that it computes the same up to rounding."""

from __future__ import annotations

import dataclasses

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces as gs

import fugu
from fugu.errors import ConfigError
from fugu.policy.actor_critic import make_policy
from fugu.policy.config import PolicyConfig
from fugu.presets import preset
from fugu.trainer import precision
from fugu.trainer.build import make_trainer
from fugu.trainer.precision import check_precision, would_gain

CPU = torch.device("cpu")
SCREEN = gs.Box(0, 255, (2, 40, 40), np.uint8)


@pytest.fixture
def knows_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines without the instructions compute it too, only slower."""
    monkeypatch.setattr(precision, "cpu_multiplies_bf16", lambda: True)


@pytest.mark.parametrize("core", ["none", "lstm", "mingru"])
def test_in_bfloat16_a_policy_says_and_learns_the_same_up_to_rounding(core: str) -> None:
    policy = make_policy(SCREEN, gs.Discrete(3), PolicyConfig(hidden=(32,), core=core, core_size=16), seed=1)
    torch.manual_seed(0)
    obs, first = torch.randint(0, 256, (4, 6, 2, 40, 40), dtype=torch.uint8), torch.rand(4, 6) < 0.2
    state = torch.randn(4, policy.state_size)

    def look(in_bf16: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        policy.in_bf16 = in_bf16
        with torch.no_grad():
            step = policy(obs[:, 0], state, first[:, 0])
        out = policy(obs, state, first)
        grads = torch.autograd.grad(
            out.value.pow(2).mean() + out.params.log_softmax(-1)[..., 0].mean(), list(policy.parameters())
        )
        return [step.params, step.value, step.state, out.params, out.value, out.state], list(grads)

    (said, learned), (said_half, learned_half) = look(False), look(True)
    assert all(tensor.dtype == torch.float32 for tensor in said_half + learned_half)
    assert not torch.equal(said[3], said_half[3])
    for full, half in zip(said + learned, said_half + learned_half, strict=True):
        assert (half - full).norm() <= 0.1 * full.norm()


def test_a_cpu_without_the_instructions_is_not_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "cpu_multiplies_bf16", lambda: False)
    with pytest.raises(ConfigError, match="no instructions for it and would be slower; leave it at auto"):
        check_precision("bf16", CPU)
    for name in ("auto", "float32"):
        check_precision(name, CPU)


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16", True),
        ("Features\t: fp asimd bf16", True),
        ("flags\t\t: fpu avx2", False),
        ("", False),
    ],
)
def test_what_a_cpu_knows_is_read_from_its_flags(line, known, monkeypatch, tmp_path) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\n")
    monkeypatch.setattr(precision, "Path", lambda _: tmp_path / "cpuinfo")
    assert precision.cpu_multiplies_bf16.__wrapped__() is known


def test_a_network_of_our_own_kernels_has_no_use_for_it(knows_bf16: None) -> None:
    with pytest.raises(ConfigError, match="computed by fugu's own kernels, which are float32"):
        make_trainer(dataclasses.replace(preset("cartpole"), precision="bf16"))
    with pytest.raises(ConfigError, match="tf32 is for GPUs"):
        dataclasses.replace(preset("cartpole"), precision="tf32")


def test_it_is_advised_only_where_it_would_help(knows_bf16: None) -> None:
    sees, feels = (make_policy(space, gs.Discrete(2)) for space in (SCREEN, gs.Box(-1, 1, (4,))))
    assert would_gain("auto", sees) and not would_gain("bf16", sees) and not would_gain("auto", feels)


class Corner(gymnasium.Env):
    """A bright half of the screen says which button is right."""

    observation_space = gs.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = gs.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 8
        return self._show(), {}

    def step(self, action):
        self.left -= 1
        paid = float(action == self.right)
        return self._show(), paid, self.left == 0, False, {}

    def _show(self):
        self.right = int(self.np_random.integers(2))
        screen = np.zeros((36, 36, 1), np.uint8)
        screen[:, 18 * self.right : 18 * self.right + 18] = 200
        return screen


def test_a_run_in_bfloat16_learns_and_repeats_itself_to_the_byte(knows_bf16, tmp_path) -> None:
    settings = {
        "steps": 2000,
        "threads": 1,
        "learning_rate": 1e-3,
        "num_envs": 8,
        "horizon": 16,
        "minibatch": 64,
        "passes": 1,
        "epochs": 2,
        "log.board": "off",
    }
    runs = [fugu.train(f"{__name__}:Corner", precision="bf16", runs=tmp_path / name, **settings) for name in "ab"]
    metrics = [(run.path / "metrics.jsonl").read_bytes() for run in runs]
    assert metrics[0] == metrics[1]
    assert runs[0].metrics()[-1]["episode/return"] > 7
