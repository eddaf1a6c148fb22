"""Distributions against torch.distributions, brute force and frequencies."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from gymnasium import spaces as gs
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch import distributions as td

from fugu.emulation.env import discrete_choices
from fugu.errors import SpaceError
from fugu.policy import Distribution
from fugu.policy.config import LOG_STD_RANGE
from fugu.spaces import Layout
from tests.policy.action_spaces import action_spaces

MIXED = gs.Dict(
    box=gs.Box(-1, 1, (2,)),
    move=gs.Discrete(4, start=1),
    keys=gs.MultiBinary(3),
    tools=gs.MultiDiscrete([2, 5, 3]),
)
DISCRETE = [gs.Discrete(2), gs.Discrete(7, start=-3), gs.MultiDiscrete([3, 3, 3]), gs.MultiDiscrete([[2, 5], [1, 3]])]
SPACES = [*DISCRETE, gs.MultiBinary(4), gs.Box(-1, 1, (3,)), MIXED, gs.Tuple([gs.Discrete(3), gs.MultiBinary(2)])]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_params(distribution: Distribution, *batch: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*batch, distribution.size, generator=generator(seed), dtype=dtype)


def random_mask(distribution: Distribution, *batch: int, seed: int = 1) -> Tensor | None:
    """Some choices forbidden, at least one of each head allowed."""
    if not distribution.heads:
        return None
    mask = torch.rand(*batch, distribution.choices, generator=generator(seed)) < 0.5
    end = 0
    for n in counts_of(distribution.layout):
        mask[..., end + n - 1] |= ~mask[..., end : end + n].any(-1)
        end += n
    return mask


def counts_of(layout: Layout) -> list[int]:
    counts: list[int] = []
    for leaf in layout.leaves:
        if isinstance(leaf.space, gs.Discrete):
            counts.append(int(leaf.space.n))
        elif isinstance(leaf.space, gs.MultiDiscrete):
            counts += leaf.space.nvec.ravel().tolist()
    return counts


def oracles(distribution: Distribution, params: Tensor, mask: Tensor | None) -> list[tuple[int, Any]]:
    """One torch distribution per column of the action."""
    out: list[Any] = []
    end = 0
    for n in counts_of(distribution.layout):
        logits = params[..., end : end + n]
        if mask is not None:
            logits = logits.masked_fill(~mask[..., end : end + n], -math.inf)
        out.append(td.Categorical(logits=logits, validate_args=False))
        end += n
    out += [td.Bernoulli(logits=params[..., end + k]) for k in range(distribution.binaries)]
    end += distribution.binaries
    for k in range(distribution.reals):
        log_std = params[..., end + distribution.reals + k]
        out.append(td.Normal(params[..., end + k], log_std.clamp(*LOG_STD_RANGE).exp()))
    return list(enumerate(out))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_logprob_entropy_and_mode_agree_with_torch(space: gs.Space, masked: bool) -> None:
    distribution = Distribution(space)
    params = random_params(distribution, 5, 11) * 2
    mask = random_mask(distribution, 5, 11) if masked else None
    action = distribution.sample(params, mask, generator())
    columns = oracles(distribution, params, mask)
    logprob = sum(oracle.log_prob(action[..., k].double()) for k, oracle in columns)
    entropy = sum(
        # torch itself gives NaN for 0 * log 0
        -torch.nan_to_num(oracle.probs * oracle.probs.log()).sum(-1) if isinstance(oracle, td.Categorical) else oracle.entropy()
        for _, oracle in columns
    )
    torch.testing.assert_close(distribution.logprob(params, action, mask), logprob)
    torch.testing.assert_close(distribution.entropy(params, mask), entropy)
    both = distribution.evaluate(params, action, mask)
    torch.testing.assert_close(both[0], logprob)
    torch.testing.assert_close(both[1], entropy)
    mode = torch.stack([oracle.mode for _, oracle in columns], -1)
    torch.testing.assert_close(distribution.mode(params, mask), mode.to(distribution.dtype))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_gradients_agree_with_finite_differences(space: gs.Space) -> None:
    distribution = Distribution(space)
    params = random_params(distribution, 3).requires_grad_()
    mask = random_mask(distribution, 3)
    action = distribution.sample(params.detach(), mask, generator())
    assert torch.autograd.gradcheck(lambda p: distribution.evaluate(p, action, mask), params)


@pytest.mark.parametrize("space", [*DISCRETE, MIXED], ids=str)
def test_masked_choices_are_never_taken_and_get_no_gradient(space: gs.Space) -> None:
    distribution = Distribution(space)
    params = (random_params(distribution, 400, dtype=torch.float32) * 5).requires_grad_()
    mask = random_mask(distribution, 400)
    assert mask is not None
    for action in (distribution.sample(params, mask, generator()), distribution.mode(params, mask)):
        begin = 0
        for head, n in enumerate(counts_of(distribution.layout)):
            chosen = mask[:, begin : begin + n].gather(1, action[:, head : head + 1].long())
            assert chosen.all()
            begin += n
    logprob, entropy = distribution.evaluate(params, action, mask)
    (logprob.sum() + entropy.sum()).backward()
    assert params.grad is not None and params.grad.isfinite().all()
    assert (params.grad[:, : distribution.choices][~mask] == 0).all()


def test_one_allowed_choice_has_probability_one_and_entropy_zero() -> None:
    distribution = Distribution(gs.Discrete(4))
    mask = torch.tensor([[False, False, True, False]])
    params = torch.tensor([[90.0, -90.0, -80.0, 30.0]])
    assert distribution.sample(params, mask).tolist() == [[2]]
    assert distribution.logprob(params, torch.tensor([[2]]), mask).tolist() == [0.0]
    assert distribution.entropy(params, mask).tolist() == [0.0]


def test_a_part_without_an_allowed_choice_is_uniform_over_those_that_exist() -> None:
    distribution = Distribution(gs.MultiDiscrete([2, 5]))
    params = random_params(distribution, 1000, dtype=torch.float32).requires_grad_()
    mask = torch.tensor([False, False, True, True, False, True, True]).expand(1000, -1)
    action = distribution.sample(params, mask, generator())
    assert action[:, 0].unique().tolist() == [0, 1] and action[:, 1].unique().tolist() == [0, 1, 3, 4]
    second = td.Categorical(logits=params[:, [2, 3, 5, 6]])
    torch.testing.assert_close(distribution.entropy(params, mask), second.entropy() + math.log(2))
    distribution.logprob(params, action, mask).sum().backward()
    assert torch.isfinite(params.grad).all()


def test_extreme_logits_stay_finite() -> None:
    distribution = Distribution(MIXED)
    for scale in (1e4, 1e30):
        params = (torch.randn(64, distribution.size, generator=generator()) * scale).requires_grad_()
        mask = random_mask(distribution, 64)
        action = distribution.mode(params, mask).detach()
        logprob, entropy = distribution.evaluate(params, action, mask)
        assert logprob.isfinite().all() and entropy.isfinite().all()
        (logprob.sum() + entropy.sum()).backward()
        assert params.grad is not None and params.grad.isfinite().all()


@pytest.mark.parametrize("masked", [False, True])
def test_sampled_choices_come_as_often_as_they_should(masked: bool) -> None:
    distribution = Distribution(MIXED)
    draws = 40_000
    params = random_params(distribution, 1, dtype=torch.float32)
    mask = random_mask(distribution, 1, seed=4) if masked else None
    action = distribution.sample(
        params.expand(draws, -1), None if mask is None else mask.expand(draws, -1), generator(3)
    ).double()
    for column, oracle in oracles(distribution, params[0].double(), None if mask is None else mask[0]):
        got = action[:, column]
        if isinstance(oracle, td.Normal):
            assert abs(float(got.mean() - oracle.mean)) < 5 * float(oracle.stddev) / math.sqrt(draws)
            assert float(got.std() / oracle.stddev) == pytest.approx(1, abs=0.03)
            continue
        chance = oracle.probs if isinstance(oracle, td.Categorical) else torch.stack([1 - oracle.probs, oracle.probs])
        share = torch.bincount(got.long(), minlength=len(chance)) / draws
        # five standard errors of a frequency
        assert ((share - chance).abs() <= 5 * (chance * (1 - chance) / draws).sqrt()).all()


def test_columns_are_sampled_independently() -> None:
    distribution = Distribution(gs.MultiDiscrete([2, 2]))
    action = distribution.sample(torch.zeros(20_000, 4), None, generator())
    assert torch.corrcoef(action.T.double())[0, 1].abs() < 0.03


def test_the_largest_uniform_number_stays_within_the_possible_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """u = 1 - 2^-24 is the largest float32 that torch draws; trailing choices are masked."""
    distribution = Distribution(gs.Discrete(8))
    monkeypatch.setattr(distribution, "_uniform", lambda like, _: torch.full_like(like, 1 - 2**-24))
    params = torch.randn(100_000, 8, generator=generator()) * 3
    mask = torch.tensor([True] * 5 + [False] * 3).expand(100_000, 8)
    assert int(distribution.sample(params, mask).max()) <= 4
    monkeypatch.setattr(distribution, "_uniform", lambda like, _: torch.zeros_like(like))
    assert int(distribution.sample(params, ~mask).min()) >= 5


def test_the_generator_decides_the_sample() -> None:
    distribution = Distribution(MIXED)
    params = random_params(distribution, 50)
    torch.testing.assert_close(distribution.sample(params, None, generator(1)), distribution.sample(params, None, generator(1)))
    assert not distribution.sample(params, None, generator(1)).equal(distribution.sample(params, None, generator(2)))


def test_log_std_is_clamped() -> None:
    distribution = Distribution(gs.Box(-1, 1, (1,)))
    low, high = LOG_STD_RANGE
    entropy = distribution.entropy(torch.tensor([[0.0, -99.0], [0.0, low], [0.0, high], [0.0, 99.0]]))
    assert entropy[0] == entropy[1] and entropy[2] == entropy[3]


def test_half_precision_is_computed_in_single() -> None:
    distribution = Distribution(gs.Discrete(3))
    params = torch.tensor([[0.5, -1.0, 2.0]])  # exact in both
    action = torch.tensor([[1]])
    torch.testing.assert_close(distribution.logprob(params.bfloat16(), action), distribution.logprob(params, action))


@settings(max_examples=60, deadline=None)
@given(space=action_spaces(), seed=st.integers(0, 2**31))
def test_sizes_follow_from_the_space(space: gs.Space, seed: int) -> None:
    distribution = Distribution(space)
    assert distribution.choices == discrete_choices(space)
    params = random_params(distribution, 2, 3, seed=seed, dtype=torch.float32)
    mask = random_mask(distribution, 2, 3, seed=seed)
    action = distribution.sample(params, mask, generator(seed))
    assert action.shape == (2, 3, distribution.dims) and action.dtype == distribution.dtype
    assert distribution.mode(params, mask).shape == action.shape and distribution.mode(params, mask).dtype == action.dtype
    logprob, entropy = distribution.evaluate(params, action, mask)
    assert logprob.shape == entropy.shape == (2, 3)
    assert logprob.isfinite().all() and entropy.isfinite().all()


def test_wrong_shapes_and_spaces_are_named() -> None:
    distribution = Distribution(gs.Discrete(3))
    with pytest.raises(SpaceError, match=r"expected params \[\.\.\., 3\].*got \[2, 4\]"):
        distribution.sample(torch.zeros(2, 4))
    with pytest.raises(SpaceError, match=r"expected action_mask \[\.\.\., 3\], got \[2, 2\]"):
        distribution.sample(torch.zeros(2, 3), torch.ones(2, 2, dtype=torch.bool))
    with pytest.raises(SpaceError, match="cannot choose a Text"):
        Distribution(gs.Dict(say=gs.Text(5)))
    with pytest.raises(SpaceError, match="nothing to choose"):
        Distribution(gs.Box(0, 1, (0,)))
