"""Reading test code: what becomes a call test, and what does not."""

from __future__ import annotations

import pytest

from fugu.coding.lift import free_names, lift
from fugu.coding.task import AssertTest, CallTest, TaskError


@pytest.mark.parametrize(
    ("code", "args", "expected", "types"),
    [
        ("assert f(1, [2, 'x']) == 3", (1, [2, "x"]), 3, "python"),
        ("assert f() == None, 'a message'", (), None, "python"),
        (
            "assert candidate(-1.5, (1,), {2}, {'a': b'b'}) == (True, {3: 1j})",
            (-1.5, (1,), {2}, {"a": b"b"}),
            (True, {3: 1j}),
            "python",
        ),
        ("assert f(1) is True", (1,), True, "strict"),
        ("assert f(1) is None", (1,), None, "strict"),
    ],
)
def test_an_assert_that_only_compares_becomes_a_call_test(code, args, expected, types):
    assert lift(code, "f") == (CallTest(function="f", args=args, expected=expected, types=types),)


@pytest.mark.parametrize(
    "code",
    [
        "assert f(1)",  # anything true would do
        "assert not f(1)",
        "assert f(1) != 2",
        "assert f(1) == 2 == 2",
        "assert f(1) == x",
        "assert f(x=1) == 2",
        "assert f(*[1]) == 2",
        "assert g(1) == 2",
        "assert f(f(1)) == 2",
        "assert abs(f(1) - 2) < 0.1",
        "assert f(1) is 2",
        "assert f(1)(2) == 3",
        "assert a.f(1) == 3",
        "assert f(1) == 2 and f(2) == 3",
        "import math\nassert f(1) == 2",
        "for i in range(3):\n    assert f(i) == 2",
        "x = 1\nassert f(1) == 2",
        "assert f(1) == 2\nassert f(2) == x",
        "def check(candidate):\n    assert candidate(1) == 2",  # which is never called
        "def check(candidate):\n    assert candidate(1) == 2\n    print(1)\ncheck(f)",
        "",
    ],
)
def test_code_that_says_more_stays_code(code):
    assert lift(code, "f") == (AssertTest(code=code),)


def test_the_check_function_of_humaneval_is_looked_into():
    code = """

METADATA = {
    'author': 'jt'
}


def check(candidate):
    "some words"
    assert True, "always"
    assert candidate([1.0, 2.0], 0.3) == True
    assert candidate([], 0.3) == False, "empty"

check(f)
"""
    assert [(test.args, test.expected) for test in lift(code, "f")] == [(([1.0, 2.0], 0.3), True), (([], 0.3), False)]
    assert lift(code.replace("check(f)", "check(candidate)"), "f") == lift(code, "f")


def test_names_that_the_agent_must_have_written():
    code = """
import math as m, os.path
from random import Random
def check(candidate):
    try:
        for i, (a, b) in enumerate([(1, 2)]):
            assert m.isclose(other(i), Pair(a).x + len([c for c in range(b)])), f(candidate)
    except ValueError as error:
        print(error, os, Random)
with open(path) as file:
    pass
"""
    assert free_names(code) == ("Pair", "f", "other", "path")


def test_code_that_is_not_python_says_so():
    for code in ("assert f(", "x = " + "(" * 100_000, "a\0b"):
        with pytest.raises(TaskError, match="not Python"):
            lift(code, "f")
