"""Native probabilities with a floor, on every instruction set there is, against torch in float64."""

from __future__ import annotations

import pytest
import torch

from fugu.ops.mixed import mixed, mixed_reference
from tests.ops.cases import assert_same, random


@pytest.mark.parametrize(("shape", "classes"), [((1, 2), 2), ((7, 3, 64), 8), ((300, 15), 5), ((2, 33), 33)], ids=str)
def test_probabilities_and_gradients_equal_the_reference(instructions, shape, classes):
    logits = random(*shape, scale=2)
    assert_same(mixed, mixed_reference, [logits], classes, 0.01, tolerance=1e-5)


def test_huge_logits_leave_the_floor_to_the_others_and_nan_stays_in_its_row():
    logits = torch.tensor([[1e30, 0.0, 0.0, 0.0], [-1e30, 0.0, 1.0, 2.0], [torch.nan, 0.0, 0.0, 0.0]])
    chance = mixed(logits, 4, 0.04)
    torch.testing.assert_close(chance[0, 0], torch.tensor([0.97, 0.01, 0.01, 0.01]))
    assert abs(chance[1].sum() - 1) < 1e-6 and chance[1].min() >= 0.0099
    assert chance[2].isnan().any() and not chance[:2].isnan().any()


def test_a_single_class_is_certain_and_has_no_gradient():
    logits = random(3, 4).requires_grad_()
    chance = mixed(logits, 1, 0.01)
    torch.testing.assert_close(chance, torch.ones(3, 4, 1))
    assert torch.autograd.grad(chance.sum(), logits)[0].abs().max() < 1e-6
