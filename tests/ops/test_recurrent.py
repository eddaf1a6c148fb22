"""Recurrent cores with kernels of our own against the same cores in float64 with torch's: outputs, states and gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fugu.gpu import use
from fugu.policy import LSTM, MinGRU

BATCH, HORIZON, SIZE_IN = 5, 7, 6

CORES: dict[str, tuple[int, Callable[[int], Any]]] = {
    "lstm": (6, lambda size_in: LSTM(size_in, 9)),
    "mingru": (6, lambda size_in: MinGRU(size_in, 9)),
    "mingru, two layers": (6, lambda size_in: MinGRU(size_in, size_in, 2)),
    "lstm, channels in fours": (8, lambda size_in: LSTM(size_in, 12)),
    "mingru, channels in fours": (6, lambda size_in: MinGRU(size_in, 12)),
    "mingru, two layers, channels in fours": (8, lambda size_in: MinGRU(size_in, size_in, 2)),
}
"""inputs and core; rows of four channels and their multiples are read in one piece"""


def case(name: str, device: torch.device, order: str = "time") -> tuple[Any, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    size_in, build = CORES[name]
    core = build(size_in).to(device)
    x, state = torch.randn(BATCH, HORIZON, size_in), torch.randn(BATCH, core.state_size)
    first = torch.zeros(BATCH, HORIZON, dtype=torch.bool)
    first[0, 0] = first[1, 3] = first[1, 4] = first[2, HORIZON - 1] = True
    if order == "time":
        x, first = x.transpose(0, 1).contiguous().transpose(0, 1), first.t().contiguous().t()
    return core, x.to(device), state.to(device), first.to(device)


def results(core: Any, x: Tensor, state: Tensor, first: Tensor) -> list[Tensor]:
    """Outputs, last state and the gradients of a loss that weighs them all differently, in float64 on the CPU."""
    x, state = x.clone().requires_grad_(), state.clone().requires_grad_()
    out, last = core.sequence(x, state, first)
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype, device=x.device).view_as(out)
    others = torch.linspace(1, 3, last.numel(), dtype=last.dtype, device=x.device).view_as(last)
    grads = torch.autograd.grad((out * weights).sum() + (last * others).sum(), [x, state, *core.parameters()])
    return [tensor.detach().double().cpu() for tensor in (out, last, *grads)]


def exact(core: Any, x: Tensor, state: Tensor, first: Tensor) -> list[Tensor]:
    """float64 is not for these kernels: this is torch."""
    return results(copy.deepcopy(core).cpu().double(), x.cpu().double(), state.cpu().double(), first.cpu())


def assert_close(found: list[Tensor], expected: list[Tensor], error: float) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert (ours - theirs).abs().max().item() <= error * max(1.0, theirs.abs().max().item())


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    real = use.kernel

    def noted(header: str, name: str, *rest: Any) -> Any:
        if name.startswith(("lstm", "mingru")):
            names.append(name)
        return real(header, name, *rest)

    monkeypatch.setattr(use, "kernel", noted)
    return names


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("order", ["time", "segment"])
def test_sequences_and_their_gradients(device: torch.device, launched: list[str], name: str, order: str) -> None:
    core, *inputs = case(name, device, order)
    found = results(core, *inputs)
    assert any("forward" in kernel for kernel in launched) and any("backward" in kernel for kernel in launched)
    assert_close(found, exact(core, *inputs), 2e-6)


@pytest.mark.parametrize("name", CORES)
def test_steps_are_those_of_the_sequence(device: torch.device, launched: list[str], name: str) -> None:
    core, x, state, first = case(name, device)
    expected, expected_last = core.sequence(x, state, first)
    launched.clear()
    with torch.no_grad():
        for t in range(HORIZON):
            out, state = core.step(x[:, t], state, first[:, t])
            torch.testing.assert_close(out, expected[:, t], rtol=1e-6, atol=1e-6)
    assert len(launched) >= HORIZON
    torch.testing.assert_close(state, expected_last, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CORES)
def test_sequences_in_half_precision(device: torch.device, name: str) -> None:
    core, *inputs = case(name, device)
    expected = exact(core, *inputs)
    x, state, first = inputs
    with torch.autocast(device.type, torch.bfloat16):
        found = results(core, *inputs)
        with torch.no_grad():
            out, after = core.step(x[:, 0], state, first[:, 0])
    assert_close(found, expected, 0.03)
    assert (found[0] - expected[0]).abs().max() > 1e-5  # it was half precision
    assert after.dtype == torch.float32
    assert_close([out.double().cpu()], [expected[0][:, 0]], 0.03)


@pytest.mark.parametrize(("size", "rows", "horizon"), [(16, 3, 1), (32, 70, 4), (128, 17, 3)])
def test_an_lstm_of_a_size_that_fits_takes_one_launch_each_way(
    device: torch.device, launched: list[str], size: int, rows: int, horizon: int
) -> None:
    torch.manual_seed(0)
    core = LSTM(SIZE_IN, size).to(device)
    x, state = torch.randn(rows, horizon, SIZE_IN).to(device), torch.randn(rows, 2 * size).to(device)
    first = (torch.rand(rows, horizon) < 0.2).to(device)
    expected = exact(core, x, state, first)
    with torch.autocast(device.type, torch.bfloat16):
        found = results(core, x, state, first)
        assert launched == ["lstm_scan_forward", "lstm_scan_backward"]
        with torch.no_grad():
            out, after = core.step(x[:, 0], state, first[:, 0])
    assert_close(found, expected, 0.02)
    assert_close([out.double().cpu()], [expected[0][:, 0]], 0.02)
    if horizon == 1:
        torch.testing.assert_close(after.double().cpu(), found[1], rtol=0, atol=0.01)


def test_what_was_before_a_first_row_reaches_nothing(device: torch.device) -> None:
    for name in CORES:
        core, x, state, _ = case(name, device)
        first = torch.zeros(BATCH, HORIZON, dtype=torch.bool, device=device)
        first[:, 3] = True
        state.fill_(float("nan"))
        x, state = x.requires_grad_(), state.requires_grad_()
        out, last = core.sequence(x, state, first)
        d_x, _ = torch.autograd.grad(out[:, 3:].sum() + last.sum(), [x, state])
        assert out[:, 3:].isfinite().all()
        assert d_x[:, 3:].isfinite().all()
