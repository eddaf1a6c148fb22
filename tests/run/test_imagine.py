"""What a world model expects to see, beside what there is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from gymnasium import spaces as gs

from fugu.algorithm.config_dreamer import DreamerConfig
from fugu.algorithm.dreamer import Dreamer
from fugu.algorithm.settings import DreamerSettings
from fugu.errors import ConfigError
from fugu.policy.config import PolicyConfig
from fugu.policy.config_world import SIZES
from fugu.policy.world import World
from fugu.rollout.acting import Carry, Seen
from fugu.run.imagine import EXPECTED, LOOK, WAS, Imagined

VECTOR = gs.Box(-1, 1, (3,))


def made(obs: gs.Space) -> Dreamer:
    torch.manual_seed(0)
    world = World(obs, gs.Discrete(2), SIZES["tiny"], PolicyConfig())
    return Dreamer(world, DreamerSettings(dreamer=DreamerConfig(size="tiny")))


def played(dreamer: Dreamer, steps: int) -> Iterator[tuple[torch.Tensor, Carry | None]]:
    """Yield observations, each with what the policy took along from the one before."""
    layout, carry = dreamer.policy.obs_layout, None
    layout.space.seed(0)
    for t in range(steps):
        rows = torch.from_numpy(np.array([layout.space.sample()]))
        yield rows, carry
        carry = dreamer.act(Seen(rows, torch.tensor([t == 0]), carry=carry, greedy=True)).carry


def test_between_two_looks_only_the_actions_are_followed():
    dreamer = made(VECTOR)
    world, dreams = dreamer.policy, Imagined(dreamer, "dreamer", ahead=3)
    steps = list(played(dreamer, 9))
    found = [dreams.expect(rows, carry) for rows, carry in steps]
    assert found[0][1] is None
    for t in range(1, 9):
        look = (t - 1) // 3 * 3 + 1  # the first row after a look, which was at the one before it
        state = world.state(steps[look][1])
        with torch.no_grad():
            for _, carry in steps[look : t + 1]:
                state = world.follow(*state, carry["before"], None, greedy=True)
            expected = world.decoder.shown(torch.cat(state, -1))
        torch.testing.assert_close(found[t][1], expected)
        torch.testing.assert_close(found[t][0], world.shown(steps[t][0]))


def test_numbers_are_drawn_as_strips_with_a_line_at_each_look():
    dreamer = made(VECTOR)
    dreams = Imagined(dreamer, "dreamer", ahead=4)
    pictures = [dreams.picture(rows, carry, 90) for rows, carry in played(dreamer, 10)]
    assert {picture.shape for picture in pictures} == {pictures[0].shape} and pictures[0].shape[0] == 90
    last = pictures[-1]

    def columns(colour: tuple[int, int, int]) -> set[int]:
        return set(np.flatnonzero((last == colour).all(-1).any(0)).tolist())

    step = last.shape[1] // 120
    assert columns(LOOK) == {step * t for t in (1, 5, 9)}
    assert max(columns(WAS) | columns(EXPECTED)) == 9 * step and min(columns(EXPECTED)) >= step


def test_images_are_shown_side_by_side():
    dreamer = made(gs.Box(0, 255, (16, 20, 3), np.uint8))
    dreams = Imagined(dreamer, "dreamer")
    (first, none), (second, carry) = played(dreamer, 2)
    assert dreams.picture(first, none, 32).shape == (32, 80, 3)
    picture = dreams.picture(second, carry, 32)
    assert np.abs(picture[::2, :40:2].astype(int) - second[0].numpy()).max() <= 1
    assert picture[:, 40:].std() > 0 and not np.array_equal(picture[:, 40:], picture[:, :40])


def test_an_algorithm_without_a_model_imagines_nothing():
    class Other:
        policy = torch.nn.Linear(1, 1)

    with pytest.raises(ConfigError, match="ppo learns no model"):
        Imagined(Other(), "ppo")
