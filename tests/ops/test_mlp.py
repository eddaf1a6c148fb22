"""Small networks natively, on every instruction set there is, against torch in float64: values and gradients."""

from __future__ import annotations

import math

import pytest
import torch

from fugu.ops.mlp import mlp, mlp_reference
from tests.ops.cases import assert_same, call_mlp, gradients, layers, random


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(
    "rows, widths", [(1, (4, 64, 64)), (1001, (5, 67, 30)), (100, (1, 1)), (49, (118, 128)), (530, (3, 17, 256, 5))]
)
def test_mlp_and_its_gradients_equal_the_reference(instructions, rows, widths, activation):
    tensors = [random(rows, widths[0]), *layers(*widths)]
    assert_same(call_mlp(mlp, activation), call_mlp(mlp_reference, activation), tensors)


def test_mlp_with_a_linear_head_equals_the_reference(instructions):
    tensors = [random(100, 4), *layers(4, 64, 64, 3)]
    assert_same(call_mlp(mlp, "tanh", "none"), call_mlp(mlp_reference, "tanh", "none"), tensors)


def test_mlp_without_rows_has_zero_gradients(instructions):
    outputs, grads = gradients(call_mlp(mlp), [random(0, 4), *layers(4, 8, 8)])
    assert outputs[0].shape == (0, 8)
    assert all((grad == 0).all() for grad in grads)


def test_mlp_gives_the_same_with_and_without_gradients(instructions):
    x, *parameters = [random(333, 4), *layers(4, 64, 64)]
    with torch.no_grad():
        alone = call_mlp(mlp)(x, *parameters)
    outputs, _ = gradients(call_mlp(mlp), [x, *parameters])
    assert torch.equal(alone, outputs[0])


def test_mlp_leaves_out_the_gradient_of_its_input_when_nobody_wants_it(instructions):
    x, weight, bias = random(100, 4), *layers(4, 64)
    weight.requires_grad_()
    mlp(x, [weight], [bias], "tanh").sum().backward()
    assert x.grad is None
    exact = weight.detach().double().requires_grad_()
    mlp_reference(x.double(), [exact], [bias.double()], "tanh").sum().backward()
    torch.testing.assert_close(weight.grad.double(), exact.grad, rtol=1e-4, atol=1e-4)


def test_mlp_computes_the_gradient_of_its_input_alone_where_its_weights_are_given(instructions):
    x, *parameters = random(100, 23), *layers(23, 64, 64, 1)
    weights, biases = parameters[:3], parameters[3:]
    wanted = x.clone().requires_grad_()
    mlp(wanted, weights, biases, "relu", last="none").sum().backward()
    exact = x.double().requires_grad_()
    mlp_reference(exact, [w.double() for w in weights], [b.double() for b in biases], "relu", last="none").sum().backward()
    torch.testing.assert_close(wanted.grad.double(), exact.grad, rtol=1e-4, atol=1e-5)
    assert all(p.grad is None for p in parameters)


def test_mlp_takes_tensors_that_are_not_contiguous(instructions):
    x, weight, bias = random(4, 50).t(), random(4, 16).t(), random(32)[::2]
    torch.testing.assert_close(
        mlp(x, [weight], [bias], "relu"), mlp_reference(x, [weight], [bias], "relu"), rtol=1e-5, atol=1e-5
    )


def test_a_nan_stays_in_its_row_and_reaches_the_gradients(instructions):
    x, *parameters = [random(60, 4), *layers(4, 16, 16)]
    x[30, 2] = math.nan
    (out,), (grad_x, *grads) = gradients(call_mlp(mlp), [x, *parameters])
    assert out.isnan().all(1).nonzero().flatten().tolist() == [30]
    assert grad_x.isnan().any(1).nonzero().flatten().tolist() == [30]
    assert all(grad.isnan().any() for grad in grads)


def test_tanh_is_exact_to_a_few_roundings_everywhere(instructions):
    edges = torch.tensor([0.0, 1e-30, 1e-8, 8.9, 9.1, 50.0, 1e30, math.inf])
    x = torch.cat([edges, torch.logspace(-6, 1.2, 10_000)])
    x = torch.cat([x, -x])[:, None]
    found = mlp(x, [torch.ones(1, 1)], [torch.zeros(1)], "tanh").double()
    exact = x.double().tanh()
    assert ((found - exact).abs() <= 4e-7 * exact.abs()).all()
    assert (found.abs() <= 1).all()
