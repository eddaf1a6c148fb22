"""Every action a policy can store becomes a row inside the space."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from hypothesis import given, settings
from hypothesis import strategies as st

from fugu.errors import SpaceError
from fugu.policy import Distribution
from fugu.spaces import Packer
from tests.policy.action_spaces import action_spaces


@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")  # a Box without axes unpacks to a number
@settings(max_examples=150, deadline=None)
@given(space=action_spaces(), seed=st.integers(0, 2**31), scale=st.sampled_from([0.1, 3.0, 1e3]))
def test_samples_lie_in_the_space(space: gs.Space, seed: int, scale: float) -> None:
    distribution = Distribution(space)
    generator = torch.Generator().manual_seed(seed)
    params = torch.randn(2, 3, distribution.size, generator=generator) * scale
    rows = distribution.to_env(distribution.sample(params, None, generator)).numpy()
    layout = distribution.layout
    assert rows.shape == (2, 3, *layout.row_shape) and rows.dtype == layout.dtype
    packer = Packer(layout)
    for row in rows.reshape(-1, *layout.row_shape):
        value = packer.unpack(row)
        assert space.contains(value), f"{value} is not in {space}"


def test_choices_are_counted_from_the_start_of_their_space() -> None:
    assert Distribution(gs.Discrete(4, start=-2)).to_env(torch.tensor([[0], [3]])).tolist() == [-2, 1]
    multi = gs.MultiDiscrete([[3, 4], [5, 6]], start=[[0, 10], [20, 30]])
    assert Distribution(multi).to_env(torch.tensor([[1, 2, 3, 4]])).tolist() == [[[1, 12], [23, 34]]]


def test_a_bounded_box_maps_minus_one_to_low_and_one_to_high() -> None:
    space = gs.Box(np.array([0.0, -2.0], np.float32), np.array([10.0, 2.0], np.float32))
    raw = torch.tensor([[-1.0, -1.0], [1.0, 1.0], [0.0, 0.5], [-7.0, 7.0]])
    assert Distribution(space).to_env(raw).tolist() == [[0.0, -2.0], [10.0, 2.0], [5.0, 1.0], [0.0, 2.0]]


def test_a_box_without_two_bounds_gets_the_raw_number_clipped() -> None:
    space = gs.Box(np.array([-np.inf, 0.0, -np.inf], np.float32), np.array([np.inf, np.inf, 3.0], np.float32))
    raw = torch.tensor([[50.0, 50.0, 50.0], [-50.0, -50.0, -50.0]])
    assert Distribution(space).to_env(raw).tolist() == [[50.0, 50.0, 3.0], [-50.0, 0.0, -50.0]]


def test_bounds_that_are_the_largest_float_bound_nothing() -> None:
    most = np.finfo(np.float32).max
    assert Distribution(gs.Box(-most, most, (2,))).to_env(torch.tensor([[0.5, -3.0]])).tolist() == [[0.5, -3.0]]


def test_a_box_of_integers_is_rounded_to_the_nearest() -> None:
    rows = Distribution(gs.Box(0, 10, (1,), np.int32)).to_env(torch.tensor([[-1.0], [0.0], [0.11], [0.09], [5.0]]))
    assert rows.dtype == torch.int32
    assert rows.flatten().tolist() == [0, 5, 6, 5, 10]


def test_parts_of_a_mixture_find_their_leaves() -> None:
    """The action groups by kind (choices, bits, reals); the row is in the order of the space."""
    space = gs.Dict(a=gs.Box(-1, 1, (2,)), b=gs.MultiBinary(2), c=gs.Discrete(5, start=7), d=gs.Box(0, 4, ()), e=gs.Discrete(2))
    distribution = Distribution(space)
    rows = distribution.to_env(torch.tensor([[3.0, 1.0, 0.0, 1.0, 0.25, -0.5, 0.0]]))
    value = Packer(distribution.layout).unpack(rows[0].numpy())
    assert value["a"].tolist() == [0.25, -0.5]
    assert value["b"].tolist() == [0, 1]
    assert (value["c"], value["d"], value["e"]) == (10, 2.0, 1)


def test_whole_numbers_beyond_the_resolution_of_a_double_are_refused() -> None:
    most = np.iinfo(np.uint64).max
    with pytest.raises(SpaceError, match="holds no number that a double can represent"):
        Distribution(gs.Box(np.array([most - 7], np.uint64), np.array([most], np.uint64), dtype=np.uint64))
