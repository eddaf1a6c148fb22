"""One value or many, to rows and back: the same rows as packing them one by one, for every space."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gs
from hypothesis import HealthCheck, given, settings

from fugu.errors import SpaceError
from fugu.spaces import Layout, Packer, bound
from fugu.spaces.values import Values
from tests.spaces.strategies import generators, same, spaces, stacked, value_of

drawn = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
MIXED = gs.Dict(
    speed=gs.Box(-9, 9, (2,), np.float32),
    pixels=gs.Box(0, 255, (2, 2), np.uint8),
    pick=gs.Tuple([gs.Discrete(3, start=1), gs.MultiDiscrete([2, 4])]),
)
ONE: dict[str, Any] = {"speed": np.ones(2, np.float32), "pixels": np.zeros((2, 2), np.uint8), "pick": (2, np.array([1, 3]))}
THREE = stacked(MIXED, [ONE] * 3)


@drawn
@given(spaces(), generators)
def test_one_value_of_any_space_is_packed_and_comes_back(space, rng):
    value, values, layout = value_of(space, rng), Values(space), Layout(space)
    row = layout.zeros()
    Packer(layout).pack(value, row)
    rows, single = values.rows(value)
    assert single and rows.tobytes() == row.tobytes()
    assert same(values.value(rows, single=True), value) or isinstance(space, gs.Discrete)


@drawn
@given(spaces(plain=True), generators)
def test_stacked_values_are_packed_like_one_by_one(space, rng):
    layout, values, items = Layout(space), Values(space), [value_of(space, rng) for _ in range(3)]
    expected = layout.zeros(3)
    for i, item in enumerate(items):
        Packer(layout).pack(item, expected[i, ...])
    if not layout.leaves or 0 in layout.row_shape:
        return  # nothing in it tells how many there are
    rows, single = values.rows(stacked(space, items))
    assert not single and rows.tobytes() == expected.tobytes()


def test_a_list_of_values_is_a_batch():
    for batch in ([ONE] * 3, THREE):
        rows, single = Values(MIXED).rows(batch)
        assert not single and len(rows) == 3 and rows.tobytes() == Values(MIXED).rows(THREE)[0].tobytes()
    either = gs.OneOf([gs.Discrete(2), bound(gs.Sequence(gs.Discrete(3)), 2)])
    rows, single = Values(either).rows([(0, 1), (1, (2, 1))])
    assert not single and Values(either).value(rows, single=False) == ((0, 1), (1, (2, 1)))


def test_a_batch_comes_back_stacked():
    values = Values(MIXED)
    found = values.value(values.rows(THREE)[0], single=False)
    assert same(found["speed"], THREE["speed"]) and found["pick"][0].tolist() == [2, 2, 2]


def test_numbers_of_another_width_are_converted():
    wide = {**THREE, "speed": THREE["speed"].astype(np.float64)}
    assert Values(MIXED).rows(wide)[0].tobytes() == Values(MIXED).rows(THREE)[0].tobytes()
    assert Values(gs.Box(-1, 1, (2,))).rows([0.5, 0.25])[1]


def changed(name: str, value: Any) -> dict[str, Any]:
    return {**THREE, name: value}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (changed("speed", np.ones((3, 5), np.float32)), r"speed of number 0.*shape \[2\], got \[5\]"),
        (changed("pixels", np.zeros((3, 2, 2))), "pixels of number 0.*uint8, got float64"),
        (changed("speed", np.array([[1, 2], [3, np.nan], [5, 6]], np.float32)), "speed of number 1.*nan"),
        (changed("pick", (np.array([1, 2, 4]), THREE["pick"][1])), "pick/0 of number 2.*4 is outside"),
        ({name: part for name, part in THREE.items() if name != "pixels"}, "missing 'pixels'"),
        ({**THREE, "more": 1}, "unknown 'more'"),
        (changed("speed", np.ones((2, 2), np.float32)), r"one number of values, got \[2, 3\]"),
        (np.zeros((3, 9)), "expected a dict"),
        (None, "expected a dict"),
        ({**ONE, "speed": [[1.0], [1.0, 2.0]]}, "speed"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_what_does_not_fit_is_named(value, says):
    with pytest.raises(SpaceError, match=says):
        Values(MIXED).rows(value)
