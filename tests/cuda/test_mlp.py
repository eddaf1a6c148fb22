"""The fused network against torch: outputs, loss and gradients. Run by the emulator here, by the card where there is one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fugu.algorithm.losses import normalized, ppo_loss_of, row_weight
from fugu.cuda import mlp
from fugu.cuda.mlp_plan import MlpShape
from fugu.policy.kernels import mlp_reference

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SHAPES = [
    MlpShape(4, (64, 64), 2),
    MlpShape(116, (128,), 18, "relu"),
    MlpShape(8, (16, 32, 64), 7),
    MlpShape(5, (48,), 31, "relu"),
    MlpShape(116, (128, 128), 3),
]
SETTINGS = {"clip": 0.2, "value_clip": 0.3, "value_coef": 0.5, "entropy_coef": 0.01}
ERROR = {1: 6e-3, 3: 3e-6}
"""of outputs of size 1, and of gradients relative to the largest, by passes"""


def network(shape: MlpShape, device: str, seed: int = 0) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    weights, biases = [], []
    for into, out in zip(shape.widths, shape.widths[1:], strict=False):
        weights.append((torch.randn(out, into, generator=generator) * 1.2 / math.sqrt(into)).to(device).requires_grad_())
        biases.append((torch.randn(out, generator=generator) * 0.2).to(device).requires_grad_())
    return weights, biases


def batch(shape: MlpShape, rows: int, device: str, seed: int = 1, *, masked: float = 0.2) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    columns = {
        "obs": torch.randn(rows, shape.inputs, generator=generator),
        "action": torch.randint(shape.choices, (rows,), generator=generator),
        "old_logprob": -math.log(shape.choices) + 0.3 * torch.randn(rows, generator=generator),
        "advantage": 0.7 + torch.randn(rows, generator=generator),
        "old_value": torch.randn(rows, generator=generator),
        "value_target": torch.randn(rows, generator=generator),
        "mask": torch.rand(rows, generator=generator) >= masked,
    }
    columns["old_value"] = columns["value_target"] + 0.5 * torch.randn(rows, generator=generator)
    for name in ("obs", "old_logprob", "advantage", "old_value", "value_target"):
        columns[name][~columns["mask"]] = math.nan
    columns["action"][~columns["mask"]] = -7
    return {name: column.to(device) for name, column in columns.items()}


def reference(
    shape: MlpShape, weights: list[Tensor], biases: list[Tensor], columns: dict[str, Tensor], normalize: bool, **settings: Any
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Loss and gradients by torch, on the rows that count."""
    rows = {name: column[columns["mask"]] for name, column in columns.items()}
    out = mlp_reference(rows["obs"], weights, biases, shape.activation, last="none")
    logp = out[:, :-1].log_softmax(-1)
    logprob, entropy = logp.gather(-1, rows["action"][:, None]).squeeze(-1), -(logp.exp() * logp).sum(-1)
    weight = row_weight(rows["mask"])
    advantage = normalized(rows["advantage"], weight) if normalize else rows["advantage"]
    loss = ppo_loss_of(
        logprob,
        entropy,
        out[:, -1],
        rows["old_logprob"],
        advantage,
        rows["old_value"],
        rows["value_target"],
        weight,
        **settings,
    )
    return loss._asdict(), list(torch.autograd.grad(loss.total, [*weights, *biases]))


def assert_near(got: Tensor, expected: Tensor, error: float) -> None:
    """Within ``error``, in units of the largest number there is."""
    assert got.shape == expected.shape
    scale = max(float(expected.abs().max()), 1e-3)
    assert float((got - expected).abs().max()) <= error * scale, f"{float((got - expected).abs().max()) / scale} of the largest"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outputs_are_those_of_torch(shape: MlpShape, passes: int, device: str) -> None:
    shape = replace(shape, passes=passes)
    weights, biases = network(shape, device)
    obs = torch.randn(77, shape.inputs, device=device)
    logits, value = mlp.mlp_forward(shape, obs, weights, biases)
    expected = mlp_reference(obs, weights, biases, shape.activation, last="none")
    assert_near(torch.cat([logits, value[:, None]], -1), expected, ERROR[passes])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_loss_and_gradients_are_those_of_torch(shape: MlpShape, passes: int, device: str) -> None:
    shape = replace(shape, passes=passes)
    weights, biases = network(shape, device)
    columns = batch(shape, 301 if max(shape.hidden) < 128 else 83, device)
    expected, gradients = reference(shape, weights, biases, columns, True, **SETTINGS)
    loss, stats = mlp.mlp_ppo(shape, weights=weights, biases=biases, **columns, **SETTINGS, normalize_advantage=True)
    got = torch.autograd.grad(loss, [*weights, *biases])
    assert_near(loss, expected["total"], ERROR[passes])
    for name in ("policy", "value", "entropy", "kl"):
        assert_near(stats[name], expected[name], ERROR[passes])
    assert abs(float(stats["clip_fraction"] - expected["clip_fraction"])) <= (0.02 if passes == 1 else 1e-6)
    for one, other in zip(got, gradients, strict=True):
        assert_near(one, other, 4 * ERROR[passes])
