"""Recurrent cores against torch's own LSTM, against stepping, and against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fugu.ops.mingru import accumulate_in_rounds, accumulate_row_by_row, scan
from fugu.policy import LSTM, MinGRU

BATCH, HORIZON, SIZE_IN, SIZE = 4, 9, 5, 6

CORES: dict[str, Callable[[], Any]] = {
    "lstm": lambda: LSTM(SIZE_IN, SIZE),
    "mingru": lambda: MinGRU(SIZE_IN, SIZE),
    "mingru, three layers": lambda: MinGRU(SIZE_IN, SIZE, 3),
    "mingru, same width": lambda: MinGRU(SIZE_IN, SIZE_IN, 2),
}


def core_and_input(name: str) -> tuple[Any, Tensor, Tensor]:
    torch.manual_seed(0)
    core = CORES[name]().double()
    return core, torch.randn(BATCH, HORIZON, SIZE_IN).double(), torch.randn(BATCH, core.state_size).double()


def firsts(kind: str) -> Tensor:
    first = torch.zeros(BATCH, HORIZON, dtype=torch.bool)
    if kind == "some":
        first[0, 0] = first[1, 3] = first[1, 4] = first[2, HORIZON - 1] = True
    elif kind == "all":
        first[:] = True
    return first


def by_steps(core: Any, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    out = []
    for t in range(x.shape[1]):
        row, state = core.step(x[:, t], state, first[:, t])
        out.append(row)
    return torch.stack(out, 1), state


def gradients(core: Any, run: Callable[..., tuple[Tensor, Tensor]], x: Tensor, state: Tensor, first: Tensor) -> list[Tensor]:
    """Of a loss that weighs every output and the last state differently."""
    x, state = x.clone().requires_grad_(), state.clone().requires_grad_()
    out, last = run(x, state, first)
    weights = torch.linspace(-1, 2, out.numel()).double().view_as(out)
    loss = (out * weights).sum() + (last * torch.linspace(1, 3, last.numel()).double().view_as(last)).sum()
    return list(torch.autograd.grad(loss, [x, state, *core.parameters()]))


@pytest.mark.parametrize("kind", ["none", "some", "all"])
@pytest.mark.parametrize("name", CORES)
def test_a_sequence_equals_its_steps(name: str, kind: str) -> None:
    core, x, state = core_and_input(name)
    first = firsts(kind)
    out, last = core.sequence(x, state, first)
    expected, expected_last = by_steps(core, x, state, first)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(last, expected_last, rtol=1e-12, atol=1e-12)
    got = gradients(core, core.sequence, x, state, first)
    want = gradients(core, lambda *args: by_steps(core, *args), x, state, first)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CORES)
def test_gradients_of_a_sequence_agree_with_finite_differences(name: str) -> None:
    core, x, state = core_and_input(name)
    x, state, first = x[:2, :4].requires_grad_(), state[:2].requires_grad_(), firsts("some")[:2, :4]
    assert torch.autograd.gradcheck(
        lambda x, state, *_: core.sequence(x, state, first), (x, state, *core.parameters()), fast_mode=True
    )


@pytest.mark.parametrize("name", CORES)
def test_an_episode_does_not_see_the_one_before(name: str) -> None:
    core, x, state = core_and_input(name)
    first = torch.zeros(BATCH, HORIZON, dtype=torch.bool)
    first[:, 4] = True
    other = x.clone()
    other[:, :4] += 1.0
    one, two = (core.sequence(values, state, first)[0] for values in (x, other))
    assert torch.equal(one[:, 4:], two[:, 4:])
    assert not torch.allclose(one[:, 3], two[:, 3])
    fresh = core.sequence(x[:, 4:], torch.zeros_like(state), torch.zeros_like(first[:, 4:]))[0]
    torch.testing.assert_close(one[:, 4:], fresh)


@pytest.mark.parametrize("name", CORES)
def test_memory_reaches_from_the_first_row_to_the_last(name: str) -> None:
    core, x, state = core_and_input(name)
    x = x.requires_grad_()
    core.sequence(x, state, firsts("none"))[0][:, -1].sum().backward()
    assert (x.grad[:, 0].abs().sum(-1) > 0).all()


def test_lstm_equals_torch() -> None:
    core, x, state = core_and_input("lstm")
    reference = nn.LSTM(SIZE_IN, SIZE, batch_first=True).double()
    with torch.no_grad():
        reference.weight_ih_l0.copy_(core.weight_in)
        reference.weight_hh_l0.copy_(core.weight_state)
        reference.bias_ih_l0.copy_(core.bias)
        reference.bias_hh_l0.zero_()
    h, c = state.chunk(2, -1)
    expected, (h, c) = reference(x, (h[None].contiguous(), c[None].contiguous()))
    out, last = core.sequence(x, state, firsts("none"))
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(last, torch.cat([h[0], c[0]], -1))
    cell = nn.LSTMCell(SIZE_IN, SIZE).double()
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in reference.state_dict().items()})
    expected_h, expected_c = cell(x[:, 0], tuple(state.chunk(2, -1)))
    row, after = core.step(x[:, 0], state, firsts("none")[:, 0])
    torch.testing.assert_close(row, expected_h)
    torch.testing.assert_close(after, torch.cat([expected_h, expected_c], -1))


def test_mingru_follows_its_formula() -> None:
    core, x, state = core_and_input("mingru, same width")
    row, after = core.step(x[:, 0], state, firsts("none")[:, 0])
    value, states = x[:, 0], []
    for layer, h in zip(core.layers, state.chunk(2, -1), strict=True):
        candidate, gate, highway = (
            layer.weight[k * 5 : k * 5 + 5] @ value.T + layer.bias[k * 5 : k * 5 + 5, None] for k in range(3)
        )
        z, through = torch.sigmoid(gate.T), torch.sigmoid(highway.T)
        h = (1 - z) * h + z * candidate.T
        value = through * h + (1 - through) * value
        states.append(h)
    torch.testing.assert_close(row, value)
    torch.testing.assert_close(after, torch.cat(states, -1))


@pytest.mark.parametrize("horizon", [1, 2, 3, 8, 13])
def test_both_ways_to_scan_follow_the_recurrence(horizon: int) -> None:
    torch.manual_seed(horizon)
    a, b, start = torch.rand(horizon, 3, 2).double(), torch.randn(horizon, 3, 2).double(), torch.randn(3, 2).double()
    a[torch.rand(horizon, 3) < 0.2] = 0.0
    expected, h = [], start
    for t in range(horizon):
        h = a[t] * h + b[t]
        expected.append(h)
    for accumulate in (accumulate_row_by_row, accumulate_in_rounds):
        torch.testing.assert_close(accumulate(a, b, start), torch.stack(expected))
    inputs = [value.requires_grad_() for value in (a, b, start)]
    assert torch.autograd.gradcheck(scan, inputs)


@pytest.mark.parametrize("name", CORES)
def test_a_sequence_of_one_row_works(name: str) -> None:
    core, x, state = core_and_input(name)
    first = firsts("some")[:, :1]
    out, last = core.sequence(x[:, :1], state, first)
    row, after = core.step(x[:, 0], state, first[:, 0])
    torch.testing.assert_close(out[:, 0], row)
    torch.testing.assert_close(last, after)
