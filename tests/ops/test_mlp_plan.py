"""Which shapes fit the fused network, and how its kernels are launched; that they compile for a card, where NVRTC is."""

from __future__ import annotations

import pytest

from fugu.errors import ConfigError, GpuError
from fugu.gpu import libraries
from fugu.gpu.module import EXACT, cubin
from fugu.ops.mlp_plan import Card, MlpShape, plan_prepare, plan_rollout, plan_update
from fugu.ops.mlp_ppo import mlp_source

CARD = Card()
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


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_the_kernels_compile_for_a_card(shape: MlpShape) -> None:
    try:
        libraries.nvrtc()
    except GpuError as error:
        pytest.skip(str(error))
    plan = plan_update(shape, 65536, CARD)
    assert cubin(mlp_source(shape, plan), "sm_90", EXACT, (), "the fused network").stat().st_size > 0
