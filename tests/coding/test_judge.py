"""The judge: what passes, what does not, in which order, and what the agent is told. Reward hacking is in test_reward_hacking.py."""

from __future__ import annotations

import collections
import dataclasses
import time

import pytest

from fugu.coding import builtin
from fugu.coding.judge import Judge, Verdict
from fugu.coding.sandbox.contract import Limits, Outcome
from fugu.coding.task import AssertTest, CallTest, StdioTest, Task, TaskError
from tests.timing import in_time

QUICK = Limits(cpu_s=0.5, wall_s=1.0)


def task(*hidden, visible=(), **more):
    return Task(id="t", prompt="p", entry_point="f", hidden=hidden, visible=visible, limits=QUICK, **more)


def call(*args, gives, **more):
    return CallTest(function="f", args=args, expected=gives, **more)


DOUBLE = task(call(1, gives=2), call(0, gives=0), call(-3, gives=-6), visible=(call(5, gives=10), call(6, gives=12)))


def verdict(sandbox, task, source, tests="hidden", **settings) -> Verdict:
    (out,) = Judge(sandbox, **settings).score([(task, source)], tests)
    return out


class Script:
    """A sandbox that answers as it was told to."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.open = collections.deque()
        self.programs = []

    def submit(self, program):
        self.programs.append(program)
        self.open.append(len(self.programs))
        return len(self.programs)

    def collect(self, timeout):
        return [(self.open.popleft(), self.answers.pop(0))] if self.open else []


def answered(*results, status="ok", **more):
    return Outcome(status=status, results=results, **more)


@pytest.mark.parametrize(
    "settings", [{}, {"share_process": True}, {"fail_fast": False}, {"fail_fast": False, "share_process": True}]
)
def test_right_programs_pass_and_wrong_ones_do_not(sandbox, settings):
    good = ["def f(x):\n return 2*x", "f=lambda x:x+x", "class A:\n def __call__(self,x):\n  return x<<1\nf=A()"]
    bad = [
        "def f(x):\n return x*x",
        "def f(x):\n return 2.0*x",
        "def g(x):\n return 2*x",
        "def f(x) return",
        "",
        "def f(): return 2",
    ]
    judge = Judge(sandbox, **settings)
    verdicts = judge.score([(DOUBLE, source) for source in good + bad], "all")
    assert [v.status == "ok" for v in verdicts] == [True] * len(good) + [False] * len(bad)
    assert all(v.passed == v.total == 5 and v.scored and not v.detail for v in verdicts[: len(good)])
    assert all(v.passed < 5 and v.detail and v.scored for v in verdicts[len(good) :])
    assert [v.status for v in verdicts[3:5]] == ["wrong_answer"] * 2 and verdicts[6].detail.count("SyntaxError")


def test_printed_answers(sandbox):
    echo = task(StdioTest(stdin="3 4\n", stdout="7\n"), StdioTest(stdin="1 1\n", stdout="2"))
    assert verdict(sandbox, echo, "print(sum(map(int, input().split())))").status == "ok"
    wrong = verdict(sandbox, echo, "print(7)")
    assert (wrong.status, wrong.passed, wrong.total) == ("wrong_answer", 1, 2)
    assert wrong.detail == 'hidden test 1: input "1 1\\n": printed "7\\n", expected "2"'
    assert verdict(sandbox, echo, "print(7)\nraise SystemExit(1)").status == "runtime_error"
    long = task(StdioTest(stdin="", stdout="x" * 70_000))
    assert verdict(sandbox, long, "print('x' * 70_000)").status == "output_limit"


ASSERTS = """
import math
def check(candidate):
    values = [candidate(i) for i in range(4)]
    assert values == sorted(values), "not sorted"
    assert math.isclose(f(3), 9) and helper() == {(1, 2)}
check(candidate)
"""


def test_test_code_runs_apart_from_the_program(sandbox):
    square = task(AssertTest(code=ASSERTS))
    right = "def f(x):\n return x * x\ndef helper():\n return {(1, 2)}"
    assert verdict(sandbox, square, right).status == "ok"
    wrong = verdict(sandbox, square, right.replace("x * x", "-x"))
    assert wrong.status == "wrong_answer" and "AssertionError: not sorted" in wrong.detail
    assert verdict(sandbox, square, "def f(x):\n return x * x").status == "runtime_error"
    assert verdict(sandbox, square, right + "\ndef f(x):\n while True: pass").status == "time_limit"


def test_statuses_are_those_of_the_first_test_that_failed(sandbox):
    for source, status in {
        "def f(x):\n while True: pass": "time_limit",
        "def f(x):\n return [0] * 10**9": "memory_limit",
        "def f(x):\n print('x' * 10**7)": "output_limit",
        "def f(x):\n return 1/0": "runtime_error",
        "def f(x):\n return 2*x if x else 7": "wrong_answer",
    }.items():
        assert verdict(sandbox, DOUBLE, source).status == status, source


def test_tests_run_one_after_the_other_until_one_fails():
    script = Script(answered(b"2"), answered(b"1"))
    out = verdict(script, DOUBLE, "x")
    assert [program.calls[0].args for program in script.programs] == [b"[1]", b"[0]"]
    assert (out.status, out.passed, out.total) == ("wrong_answer", 1, 3)
    script = Script(answered(b"1"), answered(b"0"), answered(b"5"))
    out = verdict(script, DOUBLE, "x", fail_fast=False)
    assert (
        len(script.programs) == 3 and (out.passed, out.total) == (1, 3) and out.detail.startswith("hidden test 0: f(1) gave 1")
    )


def test_the_sandbox_is_not_given_more_tests_than_it_queues(monkeypatch):
    monkeypatch.setattr("fugu.coding.judge._STARTED", 7)
    script = Script(*[answered(b"1")] * 60)
    most, submit = [], script.submit
    script.submit = lambda program: (submit(program), most.append(len(script.open)))[0]
    many = task(*[call(k, gives=1) for k in range(20)])
    verdicts = Judge(script, fail_fast=False).score([(many, "")] * 3)
    assert [each.passed for each in verdicts] == [20] * 3 and max(most) == 7


def test_a_shared_process_gets_all_calls_and_its_end_counts_against_the_call_it_was_at():
    script = Script(answered(b"2", b"0", status="time_limit"))
    out = verdict(script, DOUBLE, "x", share_process=True)
    assert [call.args for call in script.programs[0].calls] == [b"[1]", b"[0]", b"[-3]"] and len(script.programs) == 1
    assert (out.status, out.passed) == ("time_limit", 2) and out.detail.startswith("hidden test 2: f(-3)")
    died = verdict(Script(answered(b"2", status="violation")), DOUBLE, "x", share_process=True, fail_fast=False)
    assert (died.status, died.passed, died.total) == ("violation", 1, 3)
    after_the_last = verdict(Script(answered(b"2", b"0", b"-6", status="runtime_error")), DOUBLE, "x", share_process=True)
    assert (after_the_last.status, after_the_last.passed) == ("runtime_error", 2)


def test_more_answers_than_questions_are_forged():
    out = verdict(Script(answered(b"2", b"0", b"-6", b"2")), DOUBLE, "x", share_process=True)
    assert (out.status, out.passed, out.total) == ("violation", 0, 3)
    assert verdict(Script(answered(b"2", b"2")), DOUBLE, "x").status == "violation"


def test_an_internal_error_is_never_scored_whatever_else_failed():
    broken = Outcome(status="internal_error", detail="the zygote died")
    for answers in ([broken], [answered(b"2"), broken]):
        out = verdict(Script(*answers), DOUBLE, "x")
        assert not out.scored and out.status == "internal_error" and "the zygote died" in out.detail
    out = verdict(Script(answered(b"7"), broken, answered(b"-6")), DOUBLE, "x", fail_fast=False)
    assert not out.scored
    out = verdict(Script(broken), DOUBLE, "x", share_process=True)
    assert not out.scored
    out = verdict(Script(answered(b"7"), broken, *[answered(b"7")] * 3), DOUBLE, "x", "all", fail_fast=False)
    assert not out.scored and not out.feedback


def test_feedback_tells_of_visible_tests_only():
    wrong = [answered(b'"\\u001b[31m"'), answered(b"13")]
    out = verdict(Script(*wrong), DOUBLE, "x", "visible", fail_fast=False)
    assert out.feedback.splitlines() == ["f(5) gave '\\x1b[31m', expected 10", "f(6) gave 13, expected 12"]
    out = verdict(Script(*wrong, *[answered(b"7")] * 3), DOUBLE, "x", "all", fail_fast=False)
    assert out.feedback.count("\n") == 1 and (out.passed, out.total) == (0, 5)
    out = verdict(Script(answered(b"10"), answered(b"12"), answered(b"7")), DOUBLE, "x", "all")
    assert out.feedback == "" and out.detail == "hidden test 0: f(1) gave 7, expected 2"
    out = verdict(Script(answered(status="runtime_error", detail="ValueError: 1")), DOUBLE, "x")
    assert out.feedback == "" and "ValueError" in out.detail


def test_other_answers_can_be_right_as_well():
    either = task(call(1, gives=[2], alternatives=(2,)))
    assert [verdict(Script(answered(r)), either, "x").status for r in (b"[2]", b"2", b"3")] == ["ok", "ok", "wrong_answer"]


def test_verdicts_come_in_any_order_and_none_is_waited_for_longer_than_asked(sandbox):
    judge = Judge(sandbox, share_process=True)
    patient = dataclasses.replace(DOUBLE, limits=Limits())
    slow = judge.submit(patient, "import time\ntime.sleep(1.5)\ndef f(x):\n return 2*x")
    quick = judge.submit(patient, "def f(x):\n return 2*x")
    assert judge.pending == 2
    assert [ticket for ticket, _ in judge.collect()] == [quick] and judge.pending == 1
    start = time.monotonic()
    assert judge.collect(0.05) == []
    in_time(time.monotonic() - start, 0.5)
    ((ticket, late),) = judge.collect()
    assert ticket == slow and late.status == "ok" and late.wall_s > 1.4 and judge.pending == 0
    assert judge.collect() == []


def test_a_task_without_tests_is_refused_since_everything_would_pass():
    with pytest.raises(TaskError, match="'t' has no visible tests"):
        Judge(Script()).submit(task(call(1, gives=2)), "x", "visible")


def test_reference_solutions_of_built_in_tasks_pass_and_others_do_not(sandbox):
    tasks = [builtin.make(seed, level) for seed in range(3) for level in builtin.LEVELS]
    judge = Judge(sandbox, share_process=True)
    assert all(v.status == "ok" and v.total == 8 for v in judge.score([(t, t.solution) for t in tasks], "all"))
    others = judge.score(list(zip(tasks, [t.solution for t in tasks[1:] + tasks[:1]], strict=True)))
    assert all(v.status in ("wrong_answer", "runtime_error") for v in others)


def test_sources_of_any_bytes_are_judged(sandbox):
    sources = [
        "\ud800",
        "\0",
        b"\xff\xfe",
        "f = 1",
        "\x0cdef f(x):\r\n\treturn 2*x",
        "# " + "x" * 300_000,
        b"\xef\xbb\xbff=lambda x:2*x",
    ]
    got = [v.status for v in Judge(sandbox, share_process=True).score([(DOUBLE, source) for source in sources])]
    assert got[4] == got[6] == "ok"
    assert all(status not in ("ok", "internal_error") for k, status in enumerate(got) if k not in (4, 6)), got
