"""The native norm, on every instruction set there is, against torch in float64."""

from __future__ import annotations

import pytest
import torch

from fugu.ops import norm
from tests.ops.cases import random

SHAPES = [(1, 1), (3, 5), (300, 64), (17, 130), (2, 7, 32)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_output_and_gradients_equal_the_reference(instructions, shape):
    x, scale, grad = random(*shape, scale=3), 1 + random(shape[-1], seed=1), random(*shape, seed=2)
    found, expected = [], []
    for function, into, dtype in ((norm.norm_silu, found, x.dtype), (norm.norm_silu_reference, expected, torch.float64)):
        inputs = [t.detach().to(dtype).requires_grad_() for t in (x, scale)]
        y = function(*inputs)
        into += [y.detach(), *torch.autograd.grad(y, inputs, grad.to(dtype))]
        with torch.no_grad():
            assert torch.equal(function(*inputs), y)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=2e-5, atol=2e-5)


def test_rows_of_zeros_huge_numbers_and_nan():
    scale = torch.ones(4)
    x = torch.tensor([[0.0] * 4, [1e15, -1e15, 0, 0], [1.0, torch.nan, 0, 0]], requires_grad=True)
    y = norm.norm_silu(x, scale)
    assert y[0].eq(0).all() and y[1].isfinite().all() and y[2].isnan().all()
    (grad,) = torch.autograd.grad(y[:2].sum(), x)
    assert grad[:2].isfinite().all()


def test_columns_that_lie_apart_are_read_as_they_are():
    x, scale = random(6, 10)[:, ::2], torch.ones(5)
    torch.testing.assert_close(norm.norm_silu(x, scale), norm.norm_silu_reference(x, scale))
    wide = random(8, 5).t().contiguous().t().requires_grad_()
    (grad,) = torch.autograd.grad(norm.norm_silu(wide, scale).square().sum(), wide)
    again = wide.detach().clone().requires_grad_()
    (expected,) = torch.autograd.grad(norm.norm_silu_reference(again, scale).square().sum(), again)
    torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-5)
