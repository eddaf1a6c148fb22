"""A world model finds out how small worlds work: what follows from what, and how uncertain it is."""

from __future__ import annotations

import math

import pytest
import torch
from gymnasium import spaces as gs
from torch import Tensor
from torch.nn import functional as F

from fugu.algorithm.dreamer import WEIGHTS
from fugu.ops.laprop import LaProp
from fugu.policy.config import PolicyConfig
from fugu.policy.config_world import SIZES
from fugu.policy.world import Believed, World

pytestmark = pytest.mark.learning

PLACES, SEGMENTS, TIME, AHEAD = 6, 32, 16, 10
SLIP = 0.2


def walked(segments: int, time: int, slip: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Walk around a ring: ``place`` and ``action [time, segments]``; the action (back or on) that led to the place. ``slip``: how
    likely it is that a step does not take place."""
    action = torch.randint(2, (time, segments), generator=generator)
    stays = torch.rand((time, segments), generator=generator) < slip
    step = torch.where(stays, 0, 2 * action - 1)
    step[0] = torch.randint(PLACES, (segments,), generator=generator)
    return step.cumsum(0) % PLACES, action


def learned(slip: float, updates: int) -> tuple[World, torch.Generator]:
    torch.manual_seed(0)
    world = World(gs.Discrete(PLACES), gs.Discrete(2), SIZES["small"], PolicyConfig())
    optimizer = LaProp(world.parameters(), learning_rate=1e-3, betas=(0.9, 0.999), eps=1e-20, clip=0.3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(updates):
        place, action = walked(SEGMENTS, TIME, slip, generator)
        seen, leaves = observed(world, place, action, generator)
        losses = world.losses(seen, leaves, rewarded(place), torch.full(place.shape, 0.99), None, 1.0)
        loss = torch.stack([WEIGHTS.get(name, 1.0) * part.mean() for name, part in losses.items()]).sum()
        for p in optimizer.parameters:
            p.grad = None
        loss.backward()
        optimizer.step()
    return world, generator


def rewarded(place: Tensor) -> Tensor:
    return (place == 0).float()


def observed(world: World, place: Tensor, action: Tensor, generator: torch.Generator) -> tuple[Believed, list[Tensor]]:
    leaves = world.leaves(place.flatten())
    segments = place.shape[1]
    first = torch.zeros(place.shape, dtype=torch.bool)
    first[0] = True
    zeros = [torch.zeros(segments, width) for width in (world.size.deter, world.size.random)]
    return world.observe(leaves, F.one_hot(action, 2).float(), first, *zeros, generator), leaves


def test_ten_steps_ahead_are_foreseen_where_nothing_is_random():
    world, generator = learned(slip=0.0, updates=500)
    place, action = walked(500, 5 + AHEAD, 0.0, generator)
    with torch.no_grad():
        seen, _ = observed(world, place[:5], action[:5], generator)
        deter, stoch = seen.deter[-1], seen.stoch[-1]
        for t in range(5, 5 + AHEAD):
            deter, stoch = world.follow(deter, stoch, F.one_hot(action[t], 2).float(), generator, greedy=True)
            features = torch.cat([deter, stoch], -1)
            right = world.decoder.shown(features)[0].argmax(-1) == place[t]
            assert right.float().mean() >= 0.99, t
            assert (world.reward(features) - rewarded(place[t])).abs().mean() < 0.02, t


def test_what_is_random_is_as_uncertain_to_the_model_as_it_is():
    """What the model says of the next place, over many draws of what it expects, costs as many nats as the world leaves open."""
    world, generator = learned(slip=SLIP, updates=1000)
    place, action = walked(300, 6, SLIP, generator)
    with torch.no_grad():
        seen, _ = observed(world, place[:-1], action[:-1], generator)
        states = (part[-1].repeat(64, 1) for part in (seen.deter, seen.stoch))
        after = torch.cat(world.follow(*states, F.one_hot(action[-1], 2).float().repeat(64, 1), generator), -1)
        shown = world.decoder.shown(after)[0]
        chance = (shown / shown.sum(-1, keepdim=True)).view(64, 300, PLACES).mean(0)
        nats = -chance.gather(-1, place[-1, :, None]).log().mean().item()
    step = (place[-1] - place[-2]).abs()
    happened = (step == 0).float().mean().item()  # in these rows; the loss of who knows SLIP, on average
    best = -(happened * math.log(SLIP) + (1 - happened) * math.log(1 - SLIP))
    assert abs(nats - best) < 0.05, (nats, best)
