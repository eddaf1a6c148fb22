"""The native divergence, on every instruction set there is, against torch in float64."""

from __future__ import annotations

import pytest
import torch

from fugu.ops.divergence import divergences, divergences_reference
from tests.ops.cases import assert_same, random


@pytest.mark.parametrize("shape", [(1, 1, 2), (7, 3, 8, 8), (300, 3, 5)], ids=str)
def test_divergence_and_gradients_equal_the_reference(instructions, shape):
    p, q = (0.99 * random(*shape, seed=seed, scale=5).softmax(-1) + 0.01 / shape[-1] for seed in (0, 1))
    assert_same(divergences, divergences_reference, [p, q], tolerance=1e-5)


def test_each_gradient_goes_one_way():
    p, q = (random(4, 2, 3, seed=seed).softmax(-1).requires_grad_() for seed in (0, 1))
    of_q, of_p = divergences(p, q)
    assert torch.equal(of_p, of_q)
    assert torch.autograd.grad(of_q.sum(), p, retain_graph=True)[0].eq(0).all()
    assert torch.autograd.grad(of_p.sum(), q)[0].eq(0).all()


def test_a_distribution_is_no_distance_from_itself():
    p = random(4, 2, 3).softmax(-1)
    assert divergences(p, p.clone())[0].eq(0).all()
