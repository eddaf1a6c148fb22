"""Comparators: right about values of every kind, and never slow, wrong or surprised by bytes an agent has chosen."""

from __future__ import annotations

import json
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fugu.coding.compare import result_equals, text_equals
from fugu.coding.sandbox.values import encode
from tests.timing import in_time

HASHABLE = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text("ab_", max_size=3) | st.binary(max_size=2),
    lambda inner: st.tuples(inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
VALUES = st.recursive(
    HASHABLE | st.complex_numbers(max_magnitude=2) | st.sets(HASHABLE, max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(HASHABLE, inner, max_size=3),
    max_leaves=8,
)


def same_types(a, b):
    """The reference: equal, and of the same types all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same_types, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(any(same_types(x, y) and same_types(a[x], b[y]) for y in b) for x in a)
    if isinstance(a, set | frozenset):
        return len(a) == len(b) and all(any(same_types(x, y) for y in b) for x in a)
    return a == b


@settings(max_examples=200, deadline=None)
@given(a=VALUES, b=VALUES)
def test_equal_means_what_python_means_by_it(a, b):
    assert result_equals(a, encode(a), types="strict") and result_equals(a, encode(a), types="python")
    assert result_equals(a, encode(b), types="python") == (a == b)
    assert result_equals(a, encode(b), types="strict") == same_types(a, b)


@pytest.mark.parametrize(
    ("expected", "got", "strict", "python", "as_json"),
    [
        (1, True, False, True, True),
        (True, 1, False, True, True),
        (1, 1.0, False, True, True),
        (2, 2.5, False, False, False),
        (0.0, -0.0, True, True, True),
        ([1], (1,), False, False, True),
        ((1, 2), [1, 2], False, False, True),
        ({1}, frozenset({1}), False, True, True),
        ({1}, [1], False, False, False),
        (b"a", "a", False, False, False),
        (b"a", "61", False, False, False),
        ("1", 1, False, False, False),
        (None, False, False, False, False),
        ([], {}, False, False, False),
        ({"a": 1}, {"a": True}, False, True, True),
        ({1: 2}, {1.0: 2}, False, True, True),
        ({"1": 2}, {1: 2}, False, False, False),
        (10**30, float(10**30), False, False, False),
        (1 + 0j, 1, False, True, True),
        (1 + 1j, 1, False, False, False),
        (10**400, float("inf"), False, False, False),
    ],
)
def test_types(expected, got, strict, python, as_json):
    assert result_equals(expected, encode(got)) is strict
    assert result_equals(expected, encode(got), types="python") is python
    assert result_equals(expected, encode(got), types="json") is as_json


def test_not_a_number_equals_only_itself_where_it_is_expected():
    nan = float("nan")
    assert result_equals(nan, b"NaN") and result_equals([nan], b"[NaN]")
    for other in (0.0, 1.0, float("inf"), [nan], None):
        assert not result_equals(other, b"NaN", types="python", tolerance=0.5)
        assert not result_equals(other, b"NaN")
    assert not result_equals(1.0, b"Infinity", tolerance=0.9) and result_equals(float("inf"), b"Infinity")
    assert not result_equals(float("inf"), b"-Infinity", tolerance=0.9)


def test_tolerance_is_for_floats_only():
    assert result_equals(1.0, b"1.0001", tolerance=1e-3) and not result_equals(1.0, b"1.01", tolerance=1e-3)
    assert result_equals(1e6, b"1000100.0", tolerance=1e-3)
    assert not result_equals(1000000, b"1000001", tolerance=1e-3)
    assert not result_equals(1000000, b"1000000.5", tolerance=1e-3, types="python")
    assert result_equals([{"a": 0.1 + 0.2}], b'[{"a": 0.3}]', tolerance=1e-9)
    assert result_equals(1 + 2j, b'{"__complex__": [1.0, 2.0000001]}', tolerance=1e-3)


HOSTILE = [
    b"",
    b"{",
    b"\xff\xfe",
    b"nul",
    b'"\\ud800"',
    b"1" * 100_000,
    b"[" * 400_000,
    b"[" * 990 + b"]" * 990,
    b'{"__tuple__": 5}',
    b'{"__list__": 5}',
    b'{"__value__": 1}',
    b'{"__set__": {"a": 1}}',
    b'{"__set__": [' + b'{"__set__": [' * 300 + b"]}" * 301,
    b'{"__dict__": "ab"}',
    b'{"__dict__": [1]}',
    b'{"__dict__": [[1, 2, 3]]}',
    b'{"__dict__": [[1, 2], [1, 2]]}',
    b'{"__bytes__": ["61"]}',
    b'{"__complex__": 1}',
    b'{"__complex__": [1, true]}',
    b'{"__complex__": ["1", "0"]}',
    b'{"__class__": "os.system"}',
    b"1e99999",
    b"-1e99999",
    b'{"__fraction__": ["1e99999999", null]}',
    b'{"__fraction__": [1, 0]}',
    b'{"__decimal__": "x"}',
    b'{"__decimal__": "sNaN"}',
    b'{"__decimal__": 1}',
    b'{"__range__": [0, 1, 0]}',
    b'{"__range__": "abc"}',
    b'{"__date__": "2020-13-01"}',
    b'{"__datetime__": null}',
    b'{"__timedelta__": [1e300, 0, 0]}',
    b'{"__set__": [{"__decimal__": "1e999999999"}]}',
    b'{"__set__": [{"__datetime__": "0001-01-01T00:00:00+23:00"}]}',
    b'{"__keys__": 1}',
    b'{"__values__": [1]}',
    b'{"__deque__": {"a": 1}}',
]


@pytest.mark.parametrize(
    "expected", [1, [1], (1,), {1}, {1: 2}, {"a": 1}, b"a", 1 + 0j, None, "a", 1.0, [{(1,): {2}}]], ids=repr
)
def test_hostile_results_are_not_equal_to_anything(expected):
    for result in HOSTILE:
        for types in ("strict", "python", "json"):
            assert not result_equals(expected, result, types=types, tolerance=0.1), result[:80]


def test_results_made_to_be_slow_are_not():
    """Numbers with the same hash, sets in sets, a million small things: a megabyte, compared soon."""
    same_hash = [k * (2**61 - 1) for k in range(20_000)]
    nested = '{"__frozenset__": [' * 60 + "1" + "]}" * 60
    start = time.process_time()
    assert not result_equals(set(range(20_000)), json.dumps({"__set__": same_hash}).encode())
    assert not result_equals(dict.fromkeys(range(20_000), 0), json.dumps({"__dict__": [[k, 0] for k in same_hash]}).encode())
    assert not result_equals({1}, f'{{"__set__": [{nested}]}}'.encode())
    assert not result_equals(
        {frozenset({1})}, ('{"__set__": [' + '{"__set__": [' * 50 + "1," * 100_000 + "1" + "]}" * 51).encode()
    )
    assert not result_equals([0] * 200_000, b"[" + b"0," * 199_999 + b"1]")
    digits = "9" * 500_000
    assert not result_equals({1}, f'{{"__set__": [{{"__decimal__": "{digits}"}}]}}'.encode(), types="python")
    assert not result_equals(0.5, f'{{"__decimal__": "{digits}E-999999"}}'.encode(), types="python", tolerance=0.1)
    assert not result_equals({0.5}, b'{"__set__": [{"__decimal__": "1e-999999999999"}]}', types="python")
    in_time(time.process_time() - start, 3)  # half a second is usual


@pytest.mark.parametrize(
    ("expected", "output", "accepted"),
    [
        ("1 2\n", b"1 2\n", "exact lines tokens numbers"),
        ("1 2\n", b"1 2", "lines tokens numbers"),
        ("1 2\n", b"1 2  \r\n\n", "lines tokens numbers"),
        ("1 2\n", b"1\n2\n", "tokens numbers"),
        ("1 2\n", b" 1 2\n", "tokens numbers"),
        ("0.3\n", b"0.30000000000000004", "numbers"),
        ("0.3\n", b"3e-1", "numbers"),
        ("3\n", b"3.0", "numbers"),
        ("3\n", b"3.0000001", ""),
        ("1000000007\n", b"1000000008", ""),
        ("12345678901234567890\n", b"1.2345678901234567e19", ""),
        ("12345678901234567890\n", b"1.234567890123456789e19", "numbers"),
        (f"{math.factorial(200)}\n", b"1e999", ""),
        ("1\n", b"1e-9999", ""),
        ("1e400\n", b"1e999", ""),
        ("0.3\n", b"nan", ""),
        ("0.3\n", b"inf", ""),
        ("0.3\n", b"0_3.0", ""),
        ("0.3\n", b"0.4", ""),
        ("yes\n", b"yes\nno", ""),
        ("yes\n", b"YES", ""),
        ("\u00fc\n", "\u00fc".encode(), "lines tokens numbers"),
        ("\u00fc\n", b"\xfc", ""),
        ("1\n\n2", b"1\n2", "tokens numbers"),
        ("", b"", "exact lines tokens numbers"),
        ("", b"\n", "lines tokens numbers"),
        ("", b"0", ""),
        ("1", b"1\x00", ""),
    ],
)
def test_texts(expected, output, accepted):
    for match in ("exact", "lines", "tokens", "numbers"):
        assert text_equals(expected, output, match=match) is (match in accepted.split()), match
