"""The losses of the world model. That it learns worlds is in ``tests/learning/test_dreamer.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gs

from fugu.policy.config import PolicyConfig
from fugu.policy.config_world import SIZES
from fugu.policy.rssm import UNIMIX
from fugu.policy.world import World

OBS = gs.Box(-1, 1, (3,))
TIME, SEGMENTS = 5, 4


def world_of(action: gs.Space, obs: gs.Space = OBS, **net: Any) -> World:
    torch.manual_seed(0)
    return World(obs, action, SIZES["tiny"], PolicyConfig(**net))


def losses_of(world: World, free: float, mask: torch.Tensor | None = None, time: int = TIME) -> dict[str, torch.Tensor]:
    rows = torch.rand(time * SEGMENTS, 3)
    leaves = world.leaves(rows)
    zeros = [torch.zeros(SEGMENTS, width) for width in (world.size.deter, world.size.random)]
    before = torch.zeros(time, SEGMENTS, world.action_input.size)
    first = torch.zeros(time, SEGMENTS, dtype=torch.bool)
    seen = world.observe(leaves, before, first, *zeros, torch.Generator().manual_seed(0))
    ones = torch.ones(time, SEGMENTS)
    return world.losses(seen, leaves, ones, 0.9 * ones, mask, free)


def gradient(loss: torch.Tensor, module: torch.nn.Module) -> float:
    found = torch.autograd.grad(loss.sum(), list(module.parameters()), retain_graph=True, allow_unused=True)
    return sum(0.0 if part is None else part.abs().sum().item() for part in found)


def test_each_side_of_the_divergence_moves_its_own_distribution_and_nothing_below_the_free_nats():
    world = world_of(gs.Discrete(2))
    losses = losses_of(world, free=0.0, time=1)  # of several rows, the later ones depend on what was drawn from earlier ones
    assert gradient(losses["dynamics"], world.rssm.prior_net) > 0 == gradient(losses["dynamics"], world.rssm.posterior_out)
    assert gradient(losses["representation"], world.rssm.posterior_out) > 0
    assert gradient(losses["representation"], world.rssm.prior_net) == 0
    torch.testing.assert_close(losses["dynamics"], losses["representation"])
    below = losses_of(world, free=1e6)
    assert gradient(below["dynamics"] + below["representation"], world) == 0
    assert below["dynamics"].eq(1e6).all()


def test_what_is_allowed_is_learned_where_environments_say_it():
    world = world_of(gs.MultiDiscrete([2, 3]))
    mask = torch.tensor([True, True, False, True, False]).expand(TIME, SEGMENTS, 5)
    assert "allowed" not in losses_of(world, 1.0)
    assert losses_of(world, 1.0, mask)["allowed"].shape == (TIME, SEGMENTS)
    with torch.no_grad():
        world.mask_head.out.weight.zero_()
        world.mask_head.out.bias.copy_(torch.tensor([3.0, -3.0, -1.0, -1.0, -1.0]))
    features = torch.zeros(2, world.size.state)
    assert world.allowed(features).tolist() == [[True, False, True, True, True]] * 2  # of the second none is expected: then all


def test_choices_keep_a_share_spread_evenly_over_those_allowed():
    world = world_of(gs.MultiDiscrete([2, 4]))
    torch.nn.init.normal_(world.actor.out.bias, std=50)
    mask = torch.tensor([[True, True, True, False, True, False], [True, False, True, True, True, True]])
    params = world.params(torch.zeros(2, world.size.state), mask)
    for row, allowed in zip(params.exp(), mask, strict=True):
        for part, may in zip(row.split([2, 4]), allowed.split([2, 4]), strict=True):
            assert abs(part.sum().item() - 1) < 1e-5
            assert part[~may].max().item() < 1e-20 if (~may).any() else True
            assert part[may].min().item() >= UNIMIX / int(may.sum()) * 0.999


def test_continuous_actions_have_a_bounded_mean_and_deviation():
    world = world_of(gs.Box(-5, 5, (2,)))
    torch.nn.init.normal_(world.actor.out.weight, std=100)
    mean, log_std = world.distribution.gaussian(world.params(torch.randn(100, world.size.state)))
    assert mean.abs().max() <= 1 and log_std.exp().min() >= 0.0999 and log_std.exp().max() <= 1.0001


def test_observations_are_normalised_and_squeezed():
    world = world_of(gs.Discrete(2), normalize_observation=True)
    rows = torch.from_numpy(np.random.default_rng(0).normal(100, 20, (4000, 3)).astype(np.float32))
    world.take_in(rows.view(40, 100, 3), torch.ones(40, 100, dtype=torch.bool))
    z = (rows - rows.mean(0)) / rows.std(0)
    torch.testing.assert_close(world.leaves(rows)[0], z.sign() * (1 + z.abs()).log(), atol=1e-3, rtol=1e-3)
    huge = torch.full((2, 3), 1e30)
    assert world.leaves(huge)[0].abs().max() < 3 and world_of(gs.Discrete(2)).leaves(huge)[0].abs().max() < 70


@pytest.mark.parametrize(
    "obs",
    [gs.Dict(a=gs.Box(-1, 1, (2,)), b=gs.Discrete(3), c=gs.Text(4)), gs.Box(0, 255, (16, 16, 3), np.uint8)],
    ids=["dict", "image"],
)
def test_any_observation_is_encoded_and_predicted(obs: gs.Space):
    world = world_of(gs.Discrete(2), obs)
    rows = torch.from_numpy(world.obs_layout.zeros(6))
    zeros = [torch.zeros(2, width) for width in (world.size.deter, world.size.random)]
    first = torch.ones(3, 2, dtype=torch.bool)
    leaves = world.leaves(rows)
    seen = world.observe(leaves, torch.zeros(3, 2, 2), first, *zeros, None)
    losses = world.losses(seen, leaves, torch.zeros(3, 2), torch.ones(3, 2), None, 1.0)
    assert all(loss.shape == (3, 2) and loss.isfinite().all() for loss in losses.values())
    assert seen.classes().shape == (3, 2, world.size.stoch)
