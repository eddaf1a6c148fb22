"""The LSTM natively, on every instruction set there is, against torch in float64: values and gradients."""

from __future__ import annotations

import math

import pytest
import torch

from fugu.ops.lstm import lstm, lstm_reference
from tests.ops.cases import assert_same, gradients, lstm_case


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 5, 2, 8), (100, 7, 5, 19), (49, 3, 118, 128), (2, 40, 3, 33)])
@pytest.mark.parametrize("often", [0.0, 0.2, 1.0])
def test_lstm_and_its_gradients_equal_the_reference(instructions, shape, often):
    tensors, first = lstm_case(*shape, often)
    assert_same(lstm, lstm_reference, tensors, first, tolerance=1e-5)


def test_lstm_equals_torch(instructions):
    (x, weight_ih, weight_hh, bias, state), first = lstm_case(5, 6, 4, 12, often=0.0)
    module = torch.nn.LSTM(4, 12, batch_first=True)
    with torch.no_grad():
        for parameter, ours in zip(module.parameters(), (weight_ih, weight_hh, bias, torch.zeros_like(bias)), strict=True):
            parameter.copy_(ours)
        out, (h, c) = module(x, tuple(half.unsqueeze(0).contiguous() for half in state.chunk(2, -1)))
    ours, new_state = lstm(x, weight_ih, weight_hh, bias, state, first)
    torch.testing.assert_close(ours, out, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(new_state, torch.cat([h[0], c[0]], -1), rtol=1e-5, atol=1e-5)


def test_lstm_step_by_step_equals_the_sequence(instructions):
    (x, *weights, state), first = lstm_case(60, 9, 7, 16)
    whole, last = lstm(x, *weights, state, first)
    for t in range(9):
        h, state = lstm(x[:, t : t + 1], *weights, state, first[:, t : t + 1])
        assert torch.equal(h[:, 0], whole[:, t])
    assert torch.equal(state, last)


def test_what_was_before_a_first_row_never_comes_back(instructions):
    (x, *weights, state), first = lstm_case(4, 6, 3, 8, often=0.0)
    first[:, (0, 3)] = True
    state[:] = math.nan
    outputs, (grad_x, *grad_weights, grad_state) = gradients(
        lambda *tensors: lstm(*tensors, first)[0][:, 3:], [x, *weights, state]
    )
    alone, _ = lstm(x[:, 3:], *weights, torch.zeros_like(state), first[:, 3:])
    assert torch.equal(outputs[0], alone)
    assert (grad_state == 0).all()
    assert (grad_x[:, :3] == 0).all()
    assert not any(grad.isnan().any() for grad in (grad_x, *grad_weights))
