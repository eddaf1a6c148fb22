"""The short way from one observation to the most probable action: where it is taken, and that it says what the long one says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces as gs

from fugu.emulation.env import EnvSpec
from fugu.policy.actor_critic import ActorCritic
from fugu.policy.config import PolicyConfig
from fugu.run.observed import Reader
from fugu.run.quick import decoder, masked
from tests.spaces.strategies import same

SEES = gs.Box(-1, 1, (2,), np.float32)
BOX = gs.Box(np.array([-2, 0], np.float32), np.array([0.3, 7], np.float32))
SHORT = [
    gs.Discrete(4, start=-3),
    BOX,
    gs.Box(-1, 1, (2, 3), np.float32),
    gs.Box(-0.1, np.inf, (3,), np.float32),
    gs.MultiDiscrete([3, 3]),
    gs.MultiDiscrete([[3, 2], [4, 1]], start=[[0, 1], [-2, 5]]),
    gs.MultiBinary((2, 2)),
    gs.Dict(turn=gs.Discrete(3, start=1), gas=BOX, keys=gs.Tuple((gs.MultiBinary(3), gs.MultiDiscrete([2, 5]), gs.Box(-3, 9)))),
]
LONG = [
    gs.Box(-2, 2, (2,), np.float64),
    gs.Box(-5, 5, (2,), np.int32),
    gs.MultiDiscrete([2, 3], dtype=np.int32),
    gs.OneOf((gs.Discrete(2), gs.Discrete(3))),
]


def both(space, params, mask=None):
    """Return the action by the short way and by the long one, and whether the first took the second."""
    network = ActorCritic(SEES, space, PolicyConfig(hidden=(4,)))
    reader, distribution, took = Reader(EnvSpec(SEES, space, 1)), network.distribution, []
    to_env = distribution.to_env
    distribution.to_env = lambda action: took.append(True) or to_env(action)
    short = decoder(network, reader) if mask is None else masked(decoder(network, reader), mask, reader)
    params = torch.from_numpy(params(distribution.size))
    before = params.clone()
    found, long = short(params), bool(took)
    assert torch.equal(params, before)
    allowed = None if mask is None else torch.from_numpy(mask[None] != 0) | torch.tensor(not mask.any())
    expected = reader.actions.value(to_env(distribution.mode(params, allowed)).numpy(), single=True)
    return found, expected, long


def normal(rng):
    return lambda size: rng.normal(0, 3, (1, size)).astype(np.float32)


@pytest.mark.parametrize("space", [*SHORT, *LONG], ids=str)
def test_the_short_way_says_what_the_long_one_says(space):
    rng = np.random.default_rng(1)
    for _ in range(60):
        found, expected, long = both(space, normal(rng))
        assert same(found, expected), (found, expected)
        assert space.contains(found) and long == (space in LONG)
    found, expected, _ = both(space, lambda size: np.zeros((1, size), np.float32))
    assert same(found, expected)  # of equally probable choices the first
    found, expected, _ = both(space, lambda size: rng.normal(0, 3, (1, size)))  # from a network of doubles
    assert same(found, expected)


def test_an_action_does_not_change_when_the_next_is_asked_for():
    network = ActorCritic(SEES, BOX, PolicyConfig(hidden=(4,)))
    decode = decoder(network, Reader(EnvSpec(SEES, BOX, 1)))
    first = decode(torch.zeros(1, 4))
    before = first.copy()
    assert not np.array_equal(decode(torch.ones(1, 4)), before) and np.array_equal(first, before)


@pytest.mark.parametrize("space", [s for s in SHORT if Reader(EnvSpec(SEES, s, 1)).choices], ids=str)
def test_forbidden_choices_are_not_made_by_the_short_way(space):
    rng = np.random.default_rng(1)
    choices = Reader(EnvSpec(SEES, space, 1)).choices
    for _ in range(60):
        mask = rng.integers(2, size=choices).astype(np.int8)
        found, expected, long = both(space, normal(rng), mask)
        assert same(found, expected) and not long
    found, expected, _ = both(space, normal(rng), np.zeros(choices, np.int8))
    assert same(found, expected)  # without any choice left it has all
