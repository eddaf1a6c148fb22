"""The judge: which tests of a task does a program pass?

``submit`` sets a program going, ``collect`` gives the verdicts that are ready, in the order they become so. Every test runs in a
sandbox of its own; what was expected stays here, and the answer is compared here (``compare``). Nothing that a program writes is taken
for more than its answer: not its exit code, not what it says of itself. Where the sandbox itself failed there is no verdict to be had:
``scored`` is False, and nothing may be learned from it.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from fugu.coding.compare import result_equals, text_equals
from fugu.coding.lift import free_names
from fugu.coding.sandbox.contract import Call, Outcome, Program, Status, printable
from fugu.coding.sandbox.values import decode, encode
from fugu.coding.task import AssertTest, CallTest, StdioTest, Task, TaskError, Test

Which = Literal["visible", "hidden", "all"]
_AT_ONCE = 4096  # programs that ``score`` has waiting
_STARTED = 16384  # tests that the sandbox has been given; the others wait here, since its queue has an end


@dataclass(frozen=True, kw_only=True)
class Verdict:
    status: Status
    """ok: all tests passed; else what happened in the first that did not"""
    passed: int
    total: int
    detail: str = ""
    """what happened, for people: it may tell what a hidden test expects"""
    feedback: str = ""
    """what happened in visible tests, for the agent"""
    cpu_s: float = 0.0
    wall_s: float = 0.0

    @property
    def scored(self) -> bool:
        """Return False where the sandbox failed, not the program."""
        return self.status != "internal_error"


class Runs(Protocol):
    """The members a judge needs of a ``Sandbox``, which must be its own."""

    def submit(self, program: Program) -> int: ...
    def collect(self, timeout: float | None) -> list[tuple[int, Outcome]]: ...


class Judge:
    """``fail_fast``: tests run one after the other, up to the first that fails; else all at once. ``share_process``: all call tests of
    a program run in one process, which is faster, but a program can tell the second call from the first."""

    def __init__(self, sandbox: Runs, *, fail_fast: bool = True, share_process: bool = False) -> None:
        self.sandbox, self.fail_fast, self.share_process = sandbox, fail_fast, share_process
        self._tickets = itertools.count()
        self._running: dict[int, tuple[_Case, _Part]] = {}  # by the sandbox's ticket
        self._held: deque[tuple[_Case, _Part]] = deque()
        """tests that the sandbox has not been given yet"""
        self.pending = 0
        """programs without a verdict"""

    def submit(self, task: Task, source: str | bytes, tests: Which = "hidden") -> int:
        """Set ``source`` (see ``Task.source``) going, and return the ticket its verdict will have."""
        data = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source
        parts = self._parts(task, data, tests)
        if not parts:
            raise TaskError(
                f"task {task.id!r} has no {'' if tests == 'all' else tests + ' '}tests, so nothing can be said of a program"
            )
        case = _Case(next(self._tickets), parts)
        for part in parts[:1] if self.fail_fast else parts:
            case.open += 1
            if len(self._running) < _STARTED:
                self._start(case, part)
            else:
                self._held.append((case, part))
        self.pending += 1
        return case.ticket

    def collect(self, timeout: float | None = None) -> list[tuple[int, Verdict]]:
        """Return verdicts that are ready. Waits up to ``timeout`` seconds (None: as long as it takes) for the first."""
        until = None if timeout is None else time.monotonic() + timeout
        done: list[tuple[int, Verdict]] = []
        while not done and self._running:
            left = None if until is None else max(0.0, until - time.monotonic())
            for ticket, outcome in self.sandbox.collect(left):
                case, part = self._running.pop(ticket)
                self._take(case, part, outcome)
                if self._held:
                    self._start(*self._held.popleft())
                if case.open == 0:
                    self.pending -= 1
                    done.append((case.ticket, case.verdict()))
            if until is not None and time.monotonic() >= until:
                break
        return done

    def score(self, pairs: Iterable[tuple[Task, str | bytes]], tests: Which = "hidden") -> list[Verdict]:
        """Return the verdict of every program, in the order given."""
        verdicts: dict[int, Verdict] = {}
        tickets: list[int] = []
        for task, source in pairs:
            tickets.append(self.submit(task, source, tests))
            while self.pending >= _AT_ONCE:
                verdicts.update(self.collect())
        while self.pending:
            verdicts.update(self.collect())
        return [verdicts[ticket] for ticket in tickets]

    def _parts(self, task: Task, source: bytes, which: Which) -> list[_Part]:
        """Split tests into parts that run in one process each."""
        tests = [("visible", k, test) for k, test in enumerate(task.visible) if which != "hidden"]
        tests += [("hidden", k, test) for k, test in enumerate(task.hidden) if which != "visible"]
        groups: list[list[_Asked]] = []
        for name, k, test in tests:
            asked = _Asked(test, name == "visible", f"{name} test {k}")
            if self.share_process and groups and isinstance(test, CallTest) and isinstance(groups[-1][0].test, CallTest):
                groups[-1].append(asked)
            else:
                groups.append([asked])
        return [self._part(task, source, group) for group in groups]

    def _part(self, task: Task, source: bytes, group: list[_Asked]) -> _Part:
        first = group[0].test
        if isinstance(first, StdioTest):
            return _Part(group, Program(source=source, stdin=first.stdin.encode("utf-8", "surrogatepass"), limits=task.limits))
        if isinstance(first, CallTest):
            calls = [Call(asked.test.function, encode(list(asked.test.args))) for asked in group]  # type: ignore[union-attr]
            return _Part(group, Program(source=source, calls=tuple(calls), limits=task.limits))
        others = [name for name in free_names(first.code) if name != task.entry_point]
        partner = Program(source=source, calls=tuple(Call(name) for name in (task.entry_point, *others)), limits=task.limits)
        code = first.code.encode("utf-8", "surrogatepass")
        return _Part(group, Program(source=code, partner=partner, limits=task.limits))

    def _start(self, case: _Case, part: _Part) -> None:
        self._running[self.sandbox.submit(part.program)] = case, part

    def _take(self, case: _Case, part: _Part, outcome: Outcome) -> None:
        case.open -= 1
        case.cpu_s += outcome.cpu_s
        case.wall_s += outcome.wall_s
        part.marks = marks(part, outcome)
        following = case.parts.index(part) + 1
        if self.fail_fast and following < len(case.parts) and all(mark.status == "ok" for mark in part.marks):
            case.open += 1
            self._start(case, case.parts[following])


@dataclass(frozen=True)
class _Asked:
    test: Test
    visible: bool
    name: str


@dataclass(frozen=True)
class _Mark:
    status: Status
    detail: str = ""


@dataclass(eq=False)
class _Part:
    """Tests that run in one process, and what came of them."""

    asked: Sequence[_Asked]
    program: Program
    marks: Sequence[_Mark] = ()
    """empty until it has run"""


@dataclass(eq=False)
class _Case:
    ticket: int
    parts: list[_Part]
    open: int = 0
    """parts that are running or about to"""
    cpu_s: float = 0.0
    wall_s: float = 0.0

    def verdict(self) -> Verdict:
        marked = [(asked, mark) for part in self.parts for asked, mark in zip(part.asked, part.marks, strict=False)]
        failed = [(asked, mark) for asked, mark in marked if mark.status != "ok"]
        # One internal error and nothing is known for certain, whatever else failed.
        failed.sort(key=lambda pair: pair[1].status != "internal_error")
        asked, mark = failed[0] if failed else (None, _Mark("ok"))
        shown = [f"{mark.detail or mark.status}" for asked, mark in failed if asked.visible]
        return Verdict(
            status=mark.status,
            passed=len(marked) - len(failed),
            total=sum(len(part.asked) for part in self.parts),
            detail=f"{asked.name}: {mark.detail or mark.status}" if asked else "",
            feedback="" if mark.status == "internal_error" else "\n".join(shown)[:2000],
            cpu_s=self.cpu_s,
            wall_s=self.wall_s,
        )


def marks(part: _Part, outcome: Outcome) -> list[_Mark]:
    """Return one mark for each test of the part."""
    if outcome.status == "internal_error":
        return [_Mark("internal_error", outcome.detail) for _ in part.asked]
    test = part.asked[0].test
    if isinstance(test, StdioTest):
        return [_stdio_mark(test, outcome)]
    if isinstance(test, AssertTest):
        return [_assert_mark(test, outcome)]
    return _call_marks([asked.test for asked in part.asked if isinstance(asked.test, CallTest)], outcome)


def _stdio_mark(test: StdioTest, outcome: Outcome) -> _Mark:
    asked = f"input {_short(test.stdin)}"
    if outcome.status != "ok":
        return _Mark(outcome.status, f"{asked}: {_what(outcome)}")
    if outcome.truncated:
        return _Mark("output_limit", f"{asked}: printed too much")
    if text_equals(test.stdout, outcome.stdout, match=test.match, tolerance=test.tolerance):
        return _Mark("ok")
    return _Mark("wrong_answer", f"{asked}: printed {_short(outcome.stdout)}, expected {_short(test.stdout)}")


def _call_marks(tests: list[CallTest], outcome: Outcome) -> list[_Mark]:
    """Mark calls, which are answered one after the other. How the process ended is held against the call it was at, or the last one."""
    if len(outcome.results) > len(tests):
        return [_Mark("violation", "gave more answers than there were questions") for _ in tests]
    out = [_call_mark(test, result) for test, result in zip(tests, outcome.results, strict=False)]
    if outcome.status == "ok" and len(out) == len(tests):
        return out
    out = out[: len(tests) - 1]
    status: Status = outcome.status if outcome.status != "ok" else "runtime_error"
    what = _what(outcome) if outcome.status != "ok" else "ended without an answer"
    at = tests[len(out)]
    out.append(_Mark(status, f"{_asked(at)}: {what}"))
    return out + [_Mark(status, f"{_asked(test)}: the program had ended") for test in tests[len(out) :]]


def _call_mark(test: CallTest, result: bytes) -> _Mark:
    for expected in (test.expected, *test.alternatives):
        if result_equals(expected, result, types=test.types, tolerance=test.tolerance):
            return _Mark("ok")
    return _Mark("wrong_answer", f"{_asked(test)} gave {_shown(result)}, expected {_short(repr(test.expected), quote=False)}")


def _assert_mark(test: AssertTest, outcome: Outcome) -> _Mark:
    """Mark an assert. Of a pair of programs the status is that of the test code, in whose process there is nothing of the agent's."""
    if outcome.status == "ok":
        return _Mark("ok")
    wrong = outcome.status == "runtime_error" and outcome.detail.startswith("AssertionError")
    return _Mark("wrong_answer" if wrong else outcome.status, f"{_short(test.code.strip(), quote=False)}: {_what(outcome)}")


def _what(outcome: Outcome) -> str:
    return outcome.detail or outcome.status.replace("_", " ")


def _asked(test: CallTest) -> str:
    return f"{test.function}({_short(', '.join(map(repr, test.args)), quote=False)})"


def _shown(result: bytes) -> str:
    """Write a result as Python does where that is safe to find out: large ones can be made to take long."""
    if len(result) < 1000:
        try:
            return _short(repr(decode(result)), quote=False)
        except ValueError:
            pass
    return _short(result, quote=False)


def _short(text: str | bytes, *, quote: bool = True) -> str:
    shown = printable(text)
    return f'"{shown}"' if quote else shown
