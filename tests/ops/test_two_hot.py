"""The native two-hot loss and mean, on every instruction set there is, against torch in float64."""

from __future__ import annotations

import pytest
import torch

from fugu.ops import two_hot
from fugu.policy.symlog import TwoHot
from tests.ops.cases import random


@pytest.mark.parametrize("count", [3, 33, 63, 255])
@pytest.mark.parametrize("rows", [(1,), (300,), (4, 5)], ids=str)
def test_loss_gradient_and_mean_equal_the_reference(instructions, count, rows):
    bins = TwoHot(count).bins
    logits = random(*rows, count, scale=4)
    targets = 300 * random(*rows, 2, seed=1)
    targets.view(-1)[:2] = torch.tensor([1e30, 0.0])
    weight = random(*rows, seed=2)
    found, expected = [], []
    for function, dtype, into in (
        (two_hot.two_hot_loss, torch.float32, found),
        (two_hot.two_hot_loss_reference, torch.float64, expected),
    ):
        given = logits.to(dtype).requires_grad_()
        loss = function(given, bins.to(dtype), targets.to(dtype))
        into += [loss.detach(), torch.autograd.grad((loss * weight.to(dtype)).sum(), given)[0]]
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=2e-5, atol=2e-5)
    mean = two_hot.two_hot_mean_reference(logits.double(), bins.double())
    largest = (logits.double().softmax(-1) * bins.double().abs()).sum(-1)  # what cancels
    assert ((two_hot.two_hot_mean(logits, bins) - mean).abs() <= 1e-5 * largest + 1e-6).all()


def test_equal_logits_mean_exactly_zero(instructions):
    for count in (3, 33, 255):
        assert two_hot.two_hot_mean(torch.full((2, count), 0.7), TwoHot(count).bins).eq(0).all()


def test_huge_logits_are_finite_and_nan_stays_in_its_row():
    bins = TwoHot(255).bins
    logits = random(3, 255)
    logits[0, 200], logits[1, 9] = 1e30, torch.nan
    loss = two_hot.two_hot_loss(logits, bins, torch.zeros(3, 1))
    assert loss[0].isfinite() and loss[1].isnan() and loss[2].isfinite()
    assert two_hot.two_hot_mean(logits, bins).isnan().tolist() == [False, True, False]
    torch.testing.assert_close(two_hot.two_hot_mean(logits, bins)[0], bins[200])
    assert two_hot.two_hot_loss(random(1, 255), bins, torch.tensor([[torch.nan]])).isnan().all()


def test_a_mean_that_is_learned_from_has_a_gradient():
    logits = random(2, 33).requires_grad_()
    (grad,) = torch.autograd.grad(two_hot.two_hot_mean(logits, TwoHot(33).bins).sum(), logits)
    assert grad.abs().sum() > 0
