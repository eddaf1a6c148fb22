from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces as gs
from torch.distributions import Categorical, kl_divergence
from torch.nn import functional as F

from fugu.ops.divergence import divergence
from fugu.ops.norm import EPSILON
from fugu.policy import rssm
from fugu.policy.action_input import ActionInput
from fugu.policy.config_world import SIZES
from fugu.policy.distribution import Distribution
from fugu.policy.rssm import RSSM, UNIMIX, draw

SIZE = SIZES["tiny"]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def model() -> RSSM:
    torch.manual_seed(0)
    return RSSM(SIZE, features=5, action=3)


@pytest.fixture
def drawn_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all draws be the middle of their distribution."""
    monkeypatch.setattr(rssm, "uniform", lambda *shape, like, generator: torch.full(shape, 0.5))


def test_a_step_is_that_of_a_gated_unit_with_dense_weights(model):
    deter, stoch, action = random(6, SIZE.deter), random(6, SIZE.random, seed=1), random(6, SIZE.hidden, seed=2)
    blocks, width = SIZE.blocks, SIZE.deter // SIZE.blocks
    common = torch.cat([model.from_deter(deter), model.from_stoch(stoch), action], -1)
    own, shared = model.mix.weight[:, :width], model.mix.weight[:, width:]
    mixed = deter @ torch.block_diag(*own) + common @ torch.cat(list(shared), 1) + model.mix.bias.flatten()
    mixed = F.silu(F.rms_norm(mixed, (SIZE.deter,), model.mix_scale, EPSILON))
    weights, biases = model.gates.weight.unflatten(-1, (3, width)), model.gates.bias.view(blocks, 3, width)
    reset, candidate, update = (mixed @ torch.block_diag(*weights[:, :, i]) + biases[:, i].flatten() for i in range(3))
    share = torch.sigmoid(update - 1)
    expected = share * torch.tanh(torch.sigmoid(reset) * candidate) + (1 - share) * deter
    torch.testing.assert_close(model.step(deter, stoch, action), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 16, 200])
def test_at_first_numbers_are_kept_over_all_spans_up_to_the_one_asked_for(rows: int):
    model = RSSM(SIZES["small"], features=5, action=3, remember=rows)
    torch.nn.init.zeros_(model.mix_scale)  # nothing but the biases decides
    deter = torch.ones(1, SIZES["small"].deter)
    kept = model.step(deter, torch.zeros(1, SIZES["small"].random), torch.zeros(1, SIZES["small"].hidden))
    spans = (1 / (1 - kept)).view(SIZES["small"].blocks, -1)
    torch.testing.assert_close(spans, spans[:1].expand_as(spans), rtol=1e-3, atol=0.0)
    torch.testing.assert_close(spans[0, -1].item(), float(max(10**0.1, rows)), rtol=1e-2, atol=0.0)
    torch.testing.assert_close(spans[0].log().diff(), spans[0].log().diff().mean().expand(len(spans[0]) - 1), rtol=0, atol=1e-2)


def test_probabilities_have_a_floor_and_the_divergence_is_that_of_torch(model):
    p, q = model.prior(10 * random(9, SIZE.deter)), model.prior(random(9, SIZE.deter, seed=1))
    assert p.min() >= UNIMIX / SIZE.classes * 0.999
    expected = kl_divergence(Categorical(p), Categorical(q)).sum(-1)
    torch.testing.assert_close(divergence(p, q), expected, rtol=1e-4, atol=1e-5)


def test_one_hot_probabilities_have_a_finite_divergence(model):
    torch.nn.init.normal_(model.prior_net.out.bias, std=1e4)
    p = model.prior(random(2, SIZE.deter))
    assert divergence(p, p.roll(1, -1)).isfinite().all()


def test_draws_have_the_probabilities_and_their_gradient():
    logits = random(2, 4).requires_grad_()
    chance = logits.softmax(-1).expand(20_000, 2, 4)
    drawn = draw(chance, torch.Generator().manual_seed(0))
    counts = drawn.detach().unflatten(-1, (2, 4))
    assert set(counts.unique().round(decimals=5).abs().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(counts.mean(0), logits.softmax(-1).detach(), atol=0.02, rtol=0)
    weight = random(8, seed=1)
    (found,) = torch.autograd.grad((drawn[0] * weight).sum(), logits, retain_graph=True)
    (expected,) = torch.autograd.grad((chance[0].flatten() * weight).sum(), logits)
    torch.testing.assert_close(found, expected)


def test_a_first_row_in_the_middle_begins_a_sequence_of_its_own(model, drawn_alike):
    features, action = random(10, 3, 5), random(10, 3, 3, seed=1)
    first = torch.zeros(10, 3, dtype=torch.bool)
    first[4, 1] = True
    deter, stoch = random(3, SIZE.deter, seed=2), random(3, SIZE.random, seed=3)
    whole = model.observe(features, action, first, deter, stoch, None)
    other = torch.full_like(deter, 9.0), torch.full_like(stoch, 9.0)
    later = model.observe(features[4:], action[4:], first[4:], *other, None)
    for everything, from_there in zip(whole, later, strict=True):
        torch.testing.assert_close(everything[4:, 1], from_there[:, 1])
        assert not torch.allclose(everything[4:, 0], from_there[:, 0])


@pytest.mark.parametrize(
    ("space", "actions", "expected"),
    [
        (gs.Discrete(3, start=5), [[2], [0]], [[0, 0, 1], [1, 0, 0]]),
        (gs.MultiDiscrete([2, 3]), [[1, 2], [0, 0]], [[0, 1, 0, 0, 1], [1, 0, 1, 0, 0]]),
        (gs.Box(-2, 2, (2,)), [[0.5, -3.0], [2.0, 1.0]], [[0.5, -1.0], [1.0, 1.0]]),
        (gs.Tuple((gs.Box(-1, 1, (1,)), gs.MultiBinary(1), gs.Discrete(2))), [[1, 1, 0.25]], [[0, 1, 1, 0.25]]),
    ],
)
def test_actions_are_read_one_hot_and_within_bounds(space: gs.Space, actions: Any, expected: Any):
    distribution = Distribution(space)
    read = ActionInput(distribution)
    found = read(torch.tensor(actions, dtype=distribution.dtype))
    assert found.tolist() == expected and found.shape[-1] == read.size
    time = torch.tensor(actions, dtype=distribution.dtype).expand(4, -1, -1)
    assert read(time)[2].tolist() == expected
