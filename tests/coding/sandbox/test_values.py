"""Values that cross the border: plain data comes back equal, everything else is a ValueError."""

from __future__ import annotations

import collections
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fugu.coding.sandbox.values import decode, encode

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
HASHABLE = st.recursive(SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(HASHABLE, inner, max_size=4)
        | st.tuples(inner)
        | st.sets(HASHABLE, max_size=4)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_plain_data_comes_back_equal_and_of_the_same_type(value):
    back = decode(encode(value))
    assert back == value and type(back) is type(value)


def test_what_looks_like_a_tag_stays_a_dict():
    for value in ({"__tuple__": [1]}, {"__set__": 1, "b": 2}, {"__dict__": [[1, 2]]}, {"__nonsense__": None}):
        assert decode(encode(value)) == value


def test_nan_inf_and_minus_zero_survive():
    back = decode(encode([math.nan, math.inf, -math.inf, -0.0]))
    assert math.isnan(back[0]) and back[1:3] == [math.inf, -math.inf] and math.copysign(1, back[3]) == -1


def test_a_subclass_goes_as_the_data_it_extends():
    class Liar(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    class Text(str):
        def __str__(self):
            return "something else"

    point = collections.namedtuple("point", "x y")
    back = decode(encode([Liar(3), Text("abc"), point(1, 2), collections.Counter("aab"), collections.OrderedDict(b=1)]))
    assert back == [3, "abc", (1, 2), {"a": 2, "b": 1}, {"b": 1}]
    assert [type(each) for each in back] == [int, str, tuple, dict, dict]


@pytest.mark.parametrize(
    "value", [object(), len, iter([]), (x for x in ()), {1: object()}, [lambda: 0], {1: iter([])}.values()]
)
def test_other_types_do_not_pass(value):
    with pytest.raises(ValueError, match="cannot be passed on"):
        encode(value)


def test_cycles_and_depth_are_refused_quickly():
    cycle: list = []
    cycle.append(cycle)
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    for value in (cycle, deep):
        with pytest.raises(ValueError, match="nested"):
            encode(value)
    while deep:  # or taking it apart recurses
        deep = deep[0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        b"nonsense",
        b"[" * 100_000,
        b"[" * 900 + b"]" * 900,
        b'{"__tuple__": 1}',
        b'{"__set__": [[]]}',
        b'{"__bytes__": "xyz"}',
        b'{"__bytes__": 3}',
        b'{"__complex__": [1]}',
        b'{"__complex__": ["a", "b"]}',
        b'{"__dict__": [[[], 1]]}',
        b'{"__dict__": [1]}',
        b'{"__unknown__": 1}',
        b"9" * 10_000,
        b'{"__reduce__": ["os.system", "id"]}',
    ],
)
def test_hostile_data_is_a_value_error(data):
    with pytest.raises(ValueError):
        decode(data)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_a_value_error(data):
    try:
        decode(data)
    except ValueError:
        return
