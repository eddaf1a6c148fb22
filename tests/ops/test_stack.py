"""The native stack of layers, on every instruction set there is, against torch in float64."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from fugu.ops import stack
from tests.ops.cases import assert_same, random

CASES = [
    ((5, 3), [7], False),
    ((1, 16), [16, 16, 16], True),
    ((130, 192), [64, 64, 255], True),
    ((600, 20), [33, 17], False),
    ((3, 4, 9), [1], True),
]


def params_of(sizes: list[int], bare: bool) -> list[torch.Tensor]:
    params: list[torch.Tensor] = []
    for i, (size_in, size) in enumerate(pairwise(sizes)):
        params += [
            random(size, size_in, seed=i) / size_in**0.5,
            0.1 * random(size, seed=i + 20),
            1 + 0.3 * random(size, seed=i + 40),
        ]
    return params[:-1] if bare else params


def stacked(x: torch.Tensor, *params: torch.Tensor) -> torch.Tensor:
    return stack.stack(x, params)


def reference(x: torch.Tensor, *params: torch.Tensor) -> torch.Tensor:
    return stack.stack_reference(x, params)


@pytest.mark.parametrize(("shape", "sizes", "bare"), CASES, ids=str)
def test_output_and_gradients_equal_the_reference(instructions, shape, sizes, bare):
    params = params_of([shape[-1], *sizes], bare)
    x = random(*shape, seed=99)
    assert stack.takes(x, params)
    assert_same(stacked, reference, [x, *params], tolerance=2e-5)
    with torch.no_grad():
        alone = stack.stack(x, params)
    assert torch.equal(alone, stack.stack(x.requires_grad_(), params))


def test_no_rows_give_no_rows_and_gradients_of_zero():
    params = [p.requires_grad_() for p in params_of([4, 3, 2], bare=True)]
    y = stack.stack(torch.zeros(0, 4), params)
    assert y.shape == (0, 2) and all(g.eq(0).all() for g in torch.autograd.grad(y.sum(), params))


def test_any_number_of_threads_gives_the_same_bits(monkeypatch):
    params = [p.requires_grad_() for p in params_of([40, 30, 20], bare=True)]
    x = random(1500, 40).requires_grad_()
    found = []
    for threads in (1, 3):
        monkeypatch.setattr("fugu.native.threads", threads)
        found.append(torch.autograd.grad(stack.stack(x, params).square().sum(), [x, *params]))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*found, strict=True))


def test_what_is_wide_double_or_under_autocast_is_left_to_torch():
    params = params_of([4, 3], bare=False)
    assert stack.takes(torch.zeros(2, 4), params)
    assert not stack.takes(torch.zeros(2, 4, dtype=torch.float64), params)
    assert not stack.takes(torch.zeros(2, 4), [torch.zeros(stack.WIDEST + 1, 4), *2 * [torch.zeros(stack.WIDEST + 1)]])
    with torch.autocast("cpu", torch.bfloat16):
        assert not stack.takes(torch.zeros(2, 4), params)
        assert stack.stack(torch.zeros(2, 4), params).shape == (2, 3)


def test_one_row_of_nan_leaves_the_others_alone():
    params = params_of([4, 3, 2], bare=True)
    x = random(60, 4)
    spoiled = x.clone()
    spoiled[7] = torch.nan
    y, found = stack.stack(x, params), stack.stack(spoiled, params)
    assert found[7].isnan().all() and torch.equal(found[8:], y[8:]) and torch.equal(found[:7], y[:7])
