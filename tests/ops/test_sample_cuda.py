"""Sampling kernels against the functions of torch that say what they compute."""

from __future__ import annotations

import math

import pytest
import torch
from gymnasium import spaces as gs

from fugu.algorithm.parts.scale import ValueScale
from fugu.gpu import use
from fugu.ops import sample
from fugu.policy.distribution import Distribution
from tests.ops.cases import forbidden, random


@pytest.mark.parametrize(("rows", "choices"), [(1, 1), (300, 2), (70, 18), (9, 300)])
@pytest.mark.parametrize("masked", [False, True])
def test_choices_are_those_of_the_reference(device: torch.device, rows: int, choices: int, masked: bool) -> None:
    logits, uniform = random(rows, choices, scale=3), torch.rand(rows, generator=torch.Generator().manual_seed(1))
    mask = random(rows, choices, seed=2) > 0 if masked else None
    on_device = (logits.to(device), uniform.to(device), None if mask is None else mask.to(device))
    action, logprob = (out.cpu() for out in sample.sample_categorical(*on_device))
    expected, _ = sample.sample_categorical_reference(logits.double(), uniform.double(), mask)
    probability = forbidden(logits.double(), mask).softmax(-1)
    gap = (probability.cumsum(-1) - uniform[:, None]).abs().amin(-1)
    assert torch.equal(action[gap > 1e-6], expected[gap > 1e-6])
    torch.testing.assert_close(logprob.double(), probability.gather(1, action[:, None])[:, 0].log(), rtol=1e-5, atol=1e-5)


def test_edges_give_possible_choices_and_nan_is_seen(device: torch.device) -> None:
    logits, uniform = torch.zeros(5, 4), torch.tensor([0.0, 1.0, 0.6, 0.6, 0.6])
    logits[3, 2] = math.nan
    mask = torch.tensor([[False, True, True, False]] * 2 + [[False] * 4] + [[True] * 4] * 2)
    action, logprob = sample.sample_categorical(logits.to(device), uniform.to(device), mask.to(device))
    assert action[:3].tolist() == [1, 2, 2]
    assert 0 <= action[3] < 4
    assert logprob[2].item() == pytest.approx(-math.log(4))
    assert logprob.isnan().tolist() == [False, False, False, True, False]


@pytest.mark.parametrize(("rows", "dims"), [(1, 1), (200, 3), (40, 17)])
def test_real_actions_and_their_logprob_are_those_of_the_distribution(device: torch.device, rows: int, dims: int) -> None:
    distribution = Distribution(gs.Box(-1, 1, (dims,)))
    params, noise = random(rows, 2 * dims, scale=4), random(rows, dims, seed=1)
    params[0, dims] = 9.0  # a deviation past its bound
    action, logprob = (out.cpu() for out in sample.sample_gaussian(params.to(device), noise.to(device)))
    mean, log_std = distribution.gaussian(params.double())
    torch.testing.assert_close(action.double(), mean + noise * log_std.exp(), rtol=1e-5, atol=1e-5)
    exact = distribution.logprob(params.double(), action.double())  # of the action as it was rounded
    torch.testing.assert_close(logprob.double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("space", [gs.Discrete(5), gs.Box(-1, 1, (3,))])
def test_the_distribution_samples_with_these_kernels(
    device: torch.device, space: gs.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution = Distribution(space).to(device)
    params = random(64, distribution.size).to(device)
    called: list[str] = []
    real = use.kernel
    monkeypatch.setattr(use, "kernel", lambda *args: called.append(args[1]) or real(*args))
    generator = torch.Generator(device).manual_seed(0)
    action, logprob = distribution.sample_with_logprob(params, None, generator)
    assert called == ["sample_categorical" if distribution.heads else "sample_gaussian"]
    assert action.dtype == distribution.dtype
    torch.testing.assert_close(logprob, distribution.logprob(params, action), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_a_head_is_sampled_and_kept_in_one_launch(device: torch.device, dtype: torch.dtype, masked: bool) -> None:
    rows, choices = 70, 5
    head = random(rows, choices + 1, scale=3).to(dtype)
    uniform = torch.rand(rows, generator=torch.Generator().manual_seed(1))
    mask = random(rows, choices, seed=2) > -1 if masked else None
    scale = ValueScale()
    scale.update(torch.tensor([3.0, 5.0, 11.0]), torch.ones(3, dtype=torch.bool))
    action, logprob, value = torch.zeros(rows, 1, dtype=torch.int64), torch.zeros(rows), torch.zeros(rows)
    kept = [tensor.to(device) for tensor in (action, logprob, value)]
    on_device = [None if tensor is None else tensor.to(device) for tensor in (head, uniform, mask)]
    sample.choose(*on_device, scale.to(device).moments, *kept)
    expected, expected_logprob = sample.sample_categorical(
        on_device[0][:, :-1].float().contiguous(), on_device[1], on_device[2]
    )
    assert torch.equal(kept[0][:, 0], expected)
    torch.testing.assert_close(kept[1], expected_logprob, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(kept[2], scale.real(on_device[0][:, -1].float()), rtol=1e-6, atol=1e-6)
