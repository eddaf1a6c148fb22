"""Sampling natively, on every instruction set there is, against torch in float64."""

from __future__ import annotations

import math

import pytest
import torch

from fugu.algorithm.parts.scale import ValueScale
from fugu.ops import sample
from tests.ops.cases import forbidden, random


@pytest.mark.parametrize("rows, choices", [(1, 1), (1, 2), (1500, 5), (33, 19), (9, 300)])
@pytest.mark.parametrize("masked", [False, True])
def test_samples_equal_the_reference(instructions, rows, choices, masked):
    logits, uniform = random(rows, choices, scale=3), torch.rand(rows, generator=torch.Generator().manual_seed(1))
    mask = random(rows, choices, seed=2) > 0 if masked else None
    action, logprob = sample.sample_categorical(logits, uniform, mask)
    expected, _ = sample.sample_categorical_reference(logits.double(), uniform.double(), mask)
    probability = forbidden(logits.double(), mask).softmax(-1)
    gap = (probability.cumsum(-1) - uniform[:, None]).abs().amin(-1)
    assert torch.equal(action[gap > 1e-6], expected[gap > 1e-6])
    torch.testing.assert_close(logprob.double(), probability.gather(1, action[:, None])[:, 0].log(), rtol=1e-5, atol=1e-5)


def test_samples_follow_the_distribution_and_the_mask(instructions):
    logits = torch.tensor([0.0, 1.0, 2.0, 3.0]).expand(200_000, 4)
    mask = torch.tensor([True, True, False, True]).expand(200_000, 4)
    action, _ = sample.sample_categorical(logits, torch.rand(200_000, generator=torch.Generator().manual_seed(0)), mask)
    counts = action.bincount(minlength=4) / 200_000
    exact = torch.tensor([1.0, math.e, 0.0, math.e**3]) / (1 + math.e + math.e**3)
    assert counts[2] == 0
    torch.testing.assert_close(counts, exact, rtol=0, atol=0.005)


def test_the_ends_of_the_interval_give_possible_choices(instructions):
    mask = torch.tensor([[False, True, True, False]] * 2)
    action, _ = sample.sample_categorical(torch.zeros(2, 4), torch.tensor([0.0, 1.0]), mask)
    assert action.tolist() == [1, 2]


def test_a_row_without_choices_is_uniform_and_nan_is_seen_in_the_logprob(instructions):
    logits, uniform = random(3, 4), torch.tensor([0.6, 0.6, 0.6])
    logits[1, 2] = math.nan
    mask = torch.tensor([[False] * 4, [True] * 4, [True] * 4])
    action, logprob = sample.sample_categorical(logits, uniform, mask)
    assert action[0] == 2
    assert logprob[0].item() == pytest.approx(-math.log(4))
    assert logprob.isnan().tolist() == [False, True, False]
    assert 0 <= action[1] < 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_head_is_sampled_and_kept_also_where_there_is_no_kernel(dtype, scaled):
    head, uniform = random(70, 6, scale=3).to(dtype), torch.rand(70, generator=torch.Generator().manual_seed(1))
    mask = random(70, 5, seed=2) > -1
    scale = ValueScale()
    scale.update(torch.tensor([3.0, 5.0, 11.0]), torch.ones(3, dtype=torch.bool))
    action, logprob, value = torch.zeros(70, 1, dtype=torch.int64), torch.zeros(70), torch.zeros(70)
    sample.choose(head, uniform, mask, scale.moments if scaled else None, action, logprob, value)
    expected, expected_logprob = sample.sample_categorical(head[:, :-1].float(), uniform, mask)
    assert torch.equal(action[:, 0], expected) and torch.equal(logprob, expected_logprob)
    said = head[:, -1].float()
    assert torch.equal(value, scale.real(said) if scaled else said)
