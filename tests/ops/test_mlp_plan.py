"""Which policies fit the fused network, and how its kernels are launched; that they compile for a card, where NVRTC is."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces as gs

from fugu.errors import ConfigError, GpuError
from fugu.gpu import libraries
from fugu.gpu.module import EXACT, cubin
from fugu.ops.mlp_plan import Card, MlpShape, moments_of, parameters_of, plan_prepare, plan_rollout, plan_update, shape_of
from fugu.ops.mlp_ppo import mlp_source
from fugu.policy.actor_critic import make_policy
from fugu.policy.config import PolicyConfig

CARD = Card()
BOX = gs.Box(-1, 1, (4,), np.float32)
SHAPES = [
    MlpShape(4, (64, 64), 2),
    MlpShape(4, (64, 64), 2, passes=3),
    MlpShape(116, (128,), 18, "relu"),
    MlpShape(8, (16, 32, 64), 7),
    MlpShape(116, (128, 128), 3),
    MlpShape(128, (128, 128), 31, passes=3),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows", [1, 1000, 65536, 10**6])
def test_an_update_fits_the_card_and_covers_all_rows(shape: MlpShape, rows: int) -> None:
    plan = plan_update(shape, rows, CARD)
    assert plan.shared == 4 * shape.shared_words(plan.rows) <= CARD.block_shared
    assert plan.blocks_each * (plan.shared + 1024) <= CARD.processor_shared
    assert 256 <= plan.threads <= 512
    assert 1 <= plan.grid <= CARD.processors * plan.blocks_each
    assert (plan.grid - 1) * plan.rows < rows  # no block without a tile
    assert plan_prepare(rows, CARD) <= CARD.processors


def test_two_blocks_share_a_multiprocessor_for_the_usual_network() -> None:
    plan = plan_update(SHAPES[0], 65536, CARD)
    assert (plan.strips, plan.split, plan.blocks_each, plan.grid) == (8, 1, 2, 264)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("worlds", [1, 100, 8192, 65536, 10**6])
def test_a_rollout_fits_the_card_and_covers_all_worlds(shape: MlpShape, worlds: int) -> None:
    plan = plan_rollout(shape, worlds, CARD)
    assert plan.shared == 4 * shape.shared_words(plan.rows) <= CARD.block_shared
    assert plan.threads * plan.blocks_each <= 512
    assert (plan.grid - 1) * plan.rows < worlds <= plan.grid * plan.rows


def test_few_worlds_are_spread_and_many_share_parameters() -> None:
    few, many = plan_rollout(SHAPES[0], 8192, CARD), plan_rollout(SHAPES[0], 262144, CARD)
    assert few.strips == 1 and few.split > 1
    assert many.strips == 8 and many.split == 1


def test_a_smaller_card_gets_smaller_blocks_or_refuses() -> None:
    small = Card(20, 99 * 1024, 100 * 1024)
    assert plan_update(SHAPES[0], 65536, small).strips < plan_update(SHAPES[0], 65536, CARD).strips
    with pytest.raises(ConfigError, match=r"hidden=\(128, 128\) .* shared memory"):
        plan_update(SHAPES[4], 65536, small)
    with pytest.raises(ConfigError, match="shared memory"):
        plan_rollout(MlpShape(128, (128, 128, 128), 3), 64, CARD)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": 129}, "129 numbers"),
        ({"hidden": (64,) * 4}, "4 hidden layers"),
        ({"hidden": ()}, "0 hidden layers"),
        ({"hidden": (64, 40)}, "multiples of 16"),
        ({"hidden": (144,)}, "at most 128"),
        ({"choices": 32}, "32 choices"),
        ({"activation": "gelu"}, "'gelu' is not one of tanh, relu"),
        ({"passes": 2}, "passes=2"),
    ],
)
def test_shapes_it_cannot_compute_are_refused_by_name(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MlpShape(**{"inputs": 4, "hidden": (64,), "choices": 2, **change})


def test_normalised_observations_are_taken_where_the_kernels_get_their_moments() -> None:
    policy = make_policy(BOX, gs.Discrete(3), PolicyConfig(normalize_observation=True))
    assert shape_of(policy, normalized=True).inputs == 4
    assert moments_of(policy) is policy.moments["0"]
    assert moments_of(make_policy(BOX, gs.Discrete(3))) is None


def test_the_shape_of_a_policy_is_found() -> None:
    policy = make_policy(BOX, gs.Discrete(3), PolicyConfig(hidden=(64, 32), activation="relu"))
    assert shape_of(policy, 3) == MlpShape(4, (64, 32), 3, "relu", 3)
    weights, biases = parameters_of(policy)
    in_order = [parameter for layer in zip(weights, biases, strict=True) for parameter in layer]
    assert all(one is other for one, other in zip(in_order, policy.parameters(), strict=True))
    assert shape_of(policy).parameters == sum(parameter.numel() for parameter in policy.parameters())


@pytest.mark.parametrize(
    ("observation", "action", "settings", "message"),
    [
        (BOX, gs.Discrete(2), {"share": False}, "share"),
        (BOX, gs.Discrete(2), {"core": "lstm"}, "memory"),
        (BOX, gs.Discrete(2), {"normalize_observation": True}, "normalised"),
        (BOX, gs.MultiDiscrete([2, 2]), {}, "one choice"),
        (BOX, BOX, {}, "one choice"),
        (gs.Box(0, 9, (4,), np.int8), gs.Discrete(2), {}, "Box of float32"),
        (gs.Box(0, 9, (4,), np.float64), gs.Discrete(2), {}, "Box of float32"),
        (gs.Box(-1, 1, (2, 3), np.float32), gs.Discrete(2), {}, "axes"),
        (gs.Dict(a=BOX, b=BOX), gs.Discrete(2), {}, "Box of float32"),
        (BOX, gs.Discrete(2), {"hidden": (50,)}, "multiples of 16"),
    ],
)
def test_policies_it_cannot_compute_are_refused_by_name(
    observation: gs.Space, action: gs.Space, settings: dict, message: str
) -> None:
    policy = make_policy(observation, action, PolicyConfig(**settings))
    with pytest.raises(ConfigError, match=message):
        shape_of(policy)


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_the_kernels_compile_for_a_card(shape: MlpShape) -> None:
    try:
        libraries.nvrtc()
    except GpuError as error:
        pytest.skip(str(error))
    plan = plan_update(shape, 65536, CARD)
    assert cubin(mlp_source(shape, plan), "sm_90", EXACT, (), "the fused network").stat().st_size > 0
