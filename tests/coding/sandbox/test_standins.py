"""Test code and program in two processes: what they share stays shared, and nothing that the program sends is more than data."""

from __future__ import annotations

import json
import time
from collections import OrderedDict, deque

import pytest

from fugu.coding.sandbox.shared import _FEW
from fugu.coding.sandbox.standins import Agent, Examiner
from tests.timing import in_time


def connected(**program):
    """Return the test code's side, and its stand-ins for the functions of a program."""
    agent = Agent(lambda message: b"", program.__getitem__, lambda error: None)
    tests = Examiner(lambda message: agent.serve(message))
    return tests, *[tests.named(name) for name in program]


def test_containers_that_nobody_needs_any_more_are_forgotten_on_both_sides():
    agent = Agent(lambda message: b"", {"f": lambda x: [x, [1]]}.__getitem__, lambda error: None)
    tests = Examiner(lambda message: agent.serve(message))
    f = tests.named("f")
    kept = [[1], [2, [3]]]
    circle: list = []
    circle.append(circle)
    f(kept)
    f(circle)
    for k in range(1000):
        f([[k], (k, [k])])
    assert len(tests._known) < 3 * _FEW and len(agent._known) < 3 * _FEW
    assert f(kept)[0] is kept and f(kept[1])[0] is kept[1] and f(circle)[0] is circle


def test_what_is_kept_only_inside_something_kept_is_not_forgotten():
    seen = []
    _, f, g = connected(f=seen.append, g=lambda: seen[0][0].append("changed"))
    inner: list = []
    kept = [inner]
    del inner
    f(kept)
    for k in range(3 * _FEW):
        f([k])
    g()
    assert kept == [["changed"]]


def test_what_became_of_something_that_was_dropped_is_told():
    box: list = []
    agent = Agent(lambda message: b"", {"f": lambda: box}.__getitem__, lambda error: None)
    f = Examiner(lambda message: agent.serve(message)).named("f")
    f().append([1])
    f()[0].append(2)
    assert f() == [[1, 2]] == box


def test_only_what_changed_is_sent_again():
    sizes = []
    agent = Agent(lambda message: b"", {"f": len}.__getitem__, lambda error: None)

    def swap(message):
        sizes.append(len(message))
        return agent.serve(message)

    f = Examiner(swap).named("f")
    large = list(range(10_000))
    assert [f(large), f(large), large.append(1) or f(large)] == [10_000, 10_000, 10_001]
    assert sizes[0] > 40_000 and sizes[1] < 200 and sizes[2] > 40_000


def test_long_chains_of_lists_pass():
    _, f = connected(f=lambda x: x)
    chain: list = []
    for _ in range(5000):
        chain = [chain]
    assert f(chain) is chain
    while chain:
        chain = chain[0]


def test_kinds_of_containers_stay_what_they_are():
    for made in (OrderedDict(b=1), deque([1], 3), bytearray(b"a"), {1: [2]}, {1}, [()]):
        _, f = connected(f=lambda x: type(x)(x))
        back = f(made)
        assert back == made and type(back) is type(made) and back is not made
    assert f(deque([1], 3)).maxlen is None


BAD = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff",
    b"[" * 100_000,
    b'{"value": 1}',
    *[
        json.dumps({"value": 1, "changed": [], "forgotten": [], **more}).encode()
        for more in (
            {"value": {"__ref__": 6}},
            {"value": {"__ref__": 1}},
            {"value": {"__ref__": [1]}},
            {"value": {}},
            {"value": [1]},
            {"value": {"__unknown__": 1}},
            {"value": {"a": 1, "b": 2}},
            {"value": {"__builtin__": "exit"}},
            {"value": {"__global__": "f"}},
            {"value": {"__yours__": 5}},
            {"value": {"__mine__": [0, "object", 1]}},
            {"value": {"__mine__": [0, "Made"]}},
            {"value": {"__mine__": [[], "object"]}},
            {"value": {"__keys__": 1}},
            {"value": {"__keys__": {"__tuple__": []}}},
            {"value": {"__frozenset__": [{"__ref__": 1}]}, "changed": [[1, "list", None, []]]},
            {"value": {"__named__": ["P", ["__eq__"], [1]]}},
            {"value": {"__named__": ["P", ["x"], []]}},
            {"value": {"__named__": [1, ["x"], [1]]}},
            {"value": {"__fraction__": ["1e99999999", None]}},
            {"value": {"__fraction__": [1, 0]}},
            {"value": {"__decimal__": "x"}},
            {"value": {"__range__": [1, 2]}},
            {"value": {"__date__": "2020-13-01"}},
            {"value": {"__timedelta__": [1e300, 0, 0]}},
            {"value": {"__complex__": ["x", 1]}},
            {"value": {"__bytes__": 3}},
            {"changed": [[6, "list", None, []]]},
            {"changed": [[1, "object", None, []]]},
            {"changed": [["1", "list", None, []]]},
            {"changed": [[1, "defaultdict", "eval", []]]},
            {"changed": [[1, "dict", None, [1]]]},
            {"changed": [[1, "set", None, [{"__ref__": 1}]]]},
            {"changed": [[1, "deque", "x", []]]},
            {"changed": 5},
            {"raised": 5},
            {"raised": []},
            {"raised": [[]]},
            {"raised": ["StopIteration"]},
            {"raised": ["SystemExit"]},
            {"raised": ["GeneratorExit"]},
            {"raised": ["eval"]},
            {"ask": "get", "value": {"__tuple__": [1, 2]}},
            {"ask": []},
            {"value": {"__tuple__": [{"__tuple__": [1] * 3}]}, "ask": "call"},
        )
    ],
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad[:80])
def test_what_is_no_answer_is_a_runtime_error_of_the_test_code(bad):
    answers = [bad, b'{"raised": ["RuntimeError"], "value": {"__tuple__": []}, "changed": [], "forgotten": []}']
    f = Examiner(lambda message: answers.pop(0)).named("f")
    start = time.process_time()
    with pytest.raises(RuntimeError):
        f([1])
    in_time(time.process_time() - start, 1)


def test_the_program_can_ask_test_code_for_calls_of_what_it_was_given_and_nothing_else():
    class Here:
        def __call__(self):
            return 1

    asked, here = [], Here()
    answers = [
        {
            "ask": what,
            "value": {"__tuple__": [{"__tuple__": [{"__yours__": 0}, *more]}, {"__tuple__": []}]},
            "changed": [],
            "forgotten": [],
        }
        for what, *more in (["get", "__class__"], ["set", "x", 1], ["make"], ["call"])
    ]
    answers.append({"value": None, "changed": [], "forgotten": []})

    def swap(message):
        asked.append(json.loads(message))
        return json.dumps(answers.pop(0)).encode()

    Examiner(swap).named("f")(here)
    assert (
        ["raised" in answer for answer in asked[1:]] == [True, True, True, False] and asked[-1]["value"] == 1 and not vars(here)
    )
