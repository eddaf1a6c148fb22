"""Layers in bfloat16 with kernels of our own against torch's under autocast: outputs and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from fugu.ops import half, linear
from fugu.ops.half import weights_stay
from fugu.ops.mlp import mlp, mlp_reference
from fugu.policy.net import MLP, Linear


@pytest.fixture(autouse=True)
def half_precision(device: torch.device) -> Iterator[None]:
    with torch.autocast(device.type, torch.bfloat16):
        yield


def layers(device: torch.device, *sizes: int) -> tuple[list[Tensor], list[Tensor]]:
    torch.manual_seed(0)
    weights = [(torch.randn(o, i) / i**0.5).to(device).requires_grad_() for i, o in pairwise(sizes)]
    biases = [torch.randn(o).to(device).requires_grad_() for o in sizes[1:]]
    return weights, biases


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
@pytest.mark.parametrize(("rows", "sizes"), [(1, (3, 4)), (37, (13, 24, 5)), (70, (16, 40, 4)), (9, (7, 1100, 3))])
def test_layers_and_their_gradients(device: torch.device, activation: str, rows: int, sizes: tuple[int, ...]) -> None:
    weights, biases = layers(device, *sizes)
    x = torch.randn(rows, sizes[0]).to(device).requires_grad_()
    out = mlp(x, weights, biases, activation, last="none")
    assert out.dtype == torch.bfloat16
    given = [x, *weights, *biases]
    found = [out, *torch.autograd.grad(_loss(out), given)]
    expected_out = mlp_reference(x, weights, biases, activation, last="none")
    expected = [expected_out, *torch.autograd.grad(_loss(expected_out), given)]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        assert (ours.double() - theirs.double()).abs().max() <= 0.02 * max(1.0, theirs.abs().max().item())


def _loss(out: Tensor) -> Tensor:
    return (out.float() * torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out)).sum()


@pytest.mark.parametrize("width", [5, 12, 16])
def test_rows_of_a_part_are_taken_as_they_lie(device: torch.device, width: int) -> None:
    weights, biases = layers(device, width, 8)
    whole = torch.randn(6, 10, width).to(device)  # [steps, segments, ...]
    part = whole[1:5, 3:7]
    rows = linear.half_rows(part)
    assert rows.shape == (16, 8 if width == 5 else 16)
    assert torch.equal(rows[:, :width], part.reshape(16, width).to(torch.bfloat16))
    assert not rows[:, width:].any()
    out = mlp(part, weights, biases, "relu")
    assert torch.equal(out, mlp(part.reshape(16, width), weights, biases, "relu").view(4, 4, 8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "size"), [(1, 4), (300, 8), (77, 30), (5, 2048), (9000, 16)])
def test_sums_over_rows(device: torch.device, dtype: torch.dtype, rows: int, size: int) -> None:
    torch.manual_seed(0)
    d = torch.randn(rows, size).to(device, dtype)
    given, total = linear.summed(d)
    assert given is d and total.dtype == torch.float32
    torch.testing.assert_close(total.double(), d.double().sum(0), rtol=1e-5, atol=1e-4)
    assert torch.equal(linear.summed(d)[1], total)


def test_weights_that_stay_are_rounded_once(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Tensor] = []
    real = linear.padded
    monkeypatch.setattr(linear, "padded", lambda weight: made.append(weight) or real(weight))
    encoder, head = MLP(6, [16], "relu").to(device), Linear(16, 4).to(device)
    x = torch.randn(3, 6).to(device)
    with torch.inference_mode(), weights_stay():
        outs = [head(encoder(x)) for _ in range(3)]
    assert len(made) == 4
    assert torch.equal(outs[0], outs[2])
    assert half._kept is None
    with torch.inference_mode():
        head.weight.zero_()
        head.bias.zero_()
        assert torch.equal(head(encoder(x)), torch.zeros_like(outs[0]))
    assert set(head.state_dict()) == {"weight", "bias"}


def test_rows_of_integers_are_left_to_torch(device: torch.device) -> None:
    weights, biases = layers(device, 4, 8)
    assert linear.takes_half(torch.zeros(3, 4, device=device), *weights, *biases)
    assert not linear.takes_half(torch.zeros(3, 4, dtype=torch.int8, device=device), *weights, *biases)
