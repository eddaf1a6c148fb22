"""Spaces as JSON: every space fugu lays out comes back equal to the bit, and nothing but a space is read."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gs
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fugu.errors import SpaceError
from fugu.spaces import Layout, bound, maxima
from fugu.spaces.as_json import from_json, to_json
from tests.spaces.strategies import DTYPES, generators, spaces

drawn = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])


def through_text(space: gs.Space) -> gs.Space:
    return from_json(json.loads(json.dumps(to_json(space), allow_nan=False)))


def has_tuple_keys(space: gs.Space) -> bool:
    return any(isinstance(key, tuple) for leaf in Layout(space).leaves for key in leaf.path)


@drawn
@given(spaces())
def test_every_space_comes_back_equal(space):
    try:
        written = through_text(space)
    except SpaceError:
        assert has_tuple_keys(space) or "(1, 'x')" in str(space)
        assume(False)
    assert written == space and Layout(written) == Layout(space) and maxima(written) == maxima(space)


@drawn
@given(st.sampled_from(DTYPES), st.sampled_from([(), (1,), (3,), (2, 2), (0,)]), generators)
def test_bounds_come_back_to_the_bit(dtype, shape, rng):
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        some = [-np.inf, np.inf, 0.1, -0.0, np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal, 1 / 3]
    else:
        some = [0, 1] if dtype.kind == "b" else [np.iinfo(dtype).min, np.iinfo(dtype).max, 1]
    low, high = np.sort(np.asarray([rng.choice(np.array(some, dtype), shape) for _ in range(2)], dtype), 0)
    space = gs.Box(np.asarray(low), np.asarray(high), dtype=dtype)
    again = through_text(space)
    assert again.dtype == space.dtype and again.shape == space.shape
    for name in ("low", "high", "bounded_below", "bounded_above"):
        a, b = getattr(space, name), getattr(again, name)
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def test_whole_numbers_without_a_bound_stay_unbounded():
    space = gs.Box(np.array([-np.inf, 0.0]), np.array([np.inf, 5.0]), dtype=np.int64)
    again = through_text(space)
    assert again.bounded_below.tolist() == [False, True] and again.bounded_above.tolist() == [False, True]
    assert again.low.tolist() == space.low.tolist()


def test_other_byte_orders_and_the_order_of_keys_are_kept():
    space = gs.Dict([("b", gs.Box(0, 1, (2,), np.dtype(">f4"))), ("a", gs.Discrete(3, start=-1))])
    again = through_text(space)
    assert list(again.spaces) == ["b", "a"] and again["b"].dtype == np.dtype(">f4")


def test_equal_bounds_of_an_image_take_one_number():
    assert len(json.dumps(to_json(gs.Box(0, 255, (210, 160, 3), np.uint8)))) < 200


def test_a_mission_becomes_a_text_with_the_same_row():
    class MissionSpace(gs.Space):
        ordered_placeholders = (("red", "blue"),)

        @staticmethod
        def mission_func(color: str) -> str:
            return f"go to the {color} door"

        def contains(self, x: Any) -> bool:
            return isinstance(x, str) and x.startswith("go")

    layout, again = Layout(MissionSpace()), Layout(through_text(MissionSpace()))
    assert again.row_shape == layout.row_shape and again.root.characters == layout.root.characters


def test_a_space_without_a_layout_is_refused():
    with pytest.raises(SpaceError, match="Graph"):
        to_json(gs.Graph(gs.Discrete(2), None))


BOX = to_json(gs.Box(-1, 1, (2,)))
BAD = {
    "no dict": [1],
    "no type": {},
    "unknown type": {"type": "Graph"},
    "type is a list": {"type": ["Box"]},
    "dtype of code": {**BOX, "dtype": "object"},
    "dtype is a number": {**BOX, "dtype": 3},
    "huge": {**BOX, "shape": [1 << 40]},
    "many axes": {**BOX, "shape": [1] * 70},
    "negative": {**BOX, "shape": [-2]},
    "too few bounds": {**BOX, "low": [0.0]},
    "bounds of text": {**BOX, "low": "low"},
    "NaN": {**BOX, "low": None},
    "low above high": {**BOX, "low": 2.0},
    "whole bounds for reals": {**BOX, "low": 0},
    "past the dtype": {**BOX, "dtype": "int8", "low": 0, "high": 1000},
    "wider than the dtype": {**BOX, "high": 1e300},
    "no choices": {"type": "Discrete", "n": 0, "start": 0, "dtype": "int64"},
    "choices of text": {"type": "Discrete", "n": "2", "start": 0, "dtype": "int64"},
    "true choices": {"type": "Discrete", "n": True, "start": 0, "dtype": "int64"},
    "real choices": {"type": "Discrete", "n": 2, "start": 0, "dtype": "float32"},
    "nvec of zeros": {"type": "MultiDiscrete", "dtype": "int64", "shape": [2], "nvec": 0, "start": 0},
    "no bits": {"type": "MultiBinary", "n": 0},
    "endless text": {"type": "Text", "min_length": 0, "max_length": 1 << 50, "charset": "a"},
    "a key twice": {"type": "Dict", "spaces": [["a", BOX], ["a", BOX]]},
    "a key that is a list": {"type": "Dict", "spaces": [[["a"], BOX]]},
    "no pair": {"type": "Dict", "spaces": ["ab"]},
    "bad part": {"type": "Tuple", "spaces": [BOX, {"type": "Box"}]},
    "no options": {"type": "OneOf", "spaces": []},
    "no maximum": {"type": "Sequence", "space": BOX, "stack": False},
}


@pytest.mark.parametrize("case", BAD)
def test_bad_content_is_one_typed_error(case):
    with pytest.raises(SpaceError, match="space"):
        from_json(BAD[case])


def test_a_bad_part_is_named_by_its_path():
    with pytest.raises(SpaceError, match="space 'b/1'"):
        from_json({"type": "Dict", "spaces": [["a", BOX], ["b", {"type": "Tuple", "spaces": [BOX, 3]}]]})


def test_deep_nesting_is_refused():
    value: Any = BOX
    for _ in range(200):
        value = {"type": "Tuple", "spaces": [value]}
    with pytest.raises(SpaceError, match="deeper"):
        from_json(value)


def test_a_space_of_parts_that_are_too_large_together_is_refused():
    part = {"type": "Box", "dtype": "float32", "shape": [1 << 16], "low": 0.0, "high": 1.0}
    with pytest.raises(SpaceError, match="takes .* bytes, more than"):
        from_json({"type": "Sequence", "space": part, "stack": False, "max_length": 1 << 26})


def test_keys_that_json_cannot_hold_are_refused():
    with pytest.raises(SpaceError, match="cannot be written"):
        to_json(gs.Dict({("a", 1): gs.Discrete(2)}))


def test_the_maximum_of_a_sequence_is_kept():
    space = bound(gs.Sequence(gs.Discrete(2), stack=True), 7)
    again = through_text(space)
    assert maxima(again) == [7] and again.stack
