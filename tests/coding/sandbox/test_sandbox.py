"""The facade over a backend made of lists: queueing, retries, shared outcomes, counting."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from fugu.coding.sandbox import Backend, Isolation, Limits, Outcome, Program, Sandbox, SandboxConfig
from fugu.errors import ConfigError, SandboxError


class Listed:
    """A backend with two places that finishes a program when asked, the last one first."""

    name, isolation = "listed", Isolation(3)

    def __init__(self, answer: Callable[[Program], str] = lambda program: "ok") -> None:
        self.answer, self.running, self.started, self.closed = answer, [], [], False

    @property
    def room(self) -> int:
        return 2 - len(self.running)

    def submit(self, ticket: int, program: Program) -> None:
        assert self.room > 0
        self.running.append((ticket, program))
        self.started.append(program.source)

    def collect(self, timeout: float | None) -> list[tuple[int, Outcome]]:
        if not self.running:
            return []
        ticket, program = self.running.pop()
        return [(ticket, Outcome(status=self.answer(program), stdout=program.source))]  # type: ignore[arg-type]

    def fileno(self) -> int:
        return 0

    def alive(self) -> bool:
        return not self.closed

    def close(self) -> None:
        self.closed = True


def programs(*names: str) -> list[Program]:
    return [Program(source=name.encode()) for name in names]


def test_a_list_of_methods_is_a_backend():
    assert isinstance(Listed(), Backend)


def test_outcomes_come_in_the_order_of_the_programs():
    sandbox = Sandbox(backend=Listed())
    assert [outcome.stdout for outcome in sandbox.run(programs(*"abcdefg"))] == [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]


def test_run_keeps_what_was_submitted_before():
    sandbox = Sandbox(backend=Listed())
    earlier = sandbox.submit(programs("early")[0])
    sandbox.run(programs("a", "b", "c"))
    found = dict(sandbox.collect())
    assert found[earlier].stdout == b"early" and sandbox.pending == 0 and sandbox.collect() == []


def test_internal_errors_are_tried_again_and_then_reported():
    failures = {b"once": 1, b"ever": 99}

    def answer(program: Program) -> str:
        failures[program.source] = failures.get(program.source, 0) - 1
        return "internal_error" if failures[program.source] >= 0 else "ok"

    sandbox = Sandbox(SandboxConfig(retries=2), backend=Listed(answer))
    once, ever, never = sandbox.run(programs("once", "ever", "never"))
    assert (once.status, once.attempt) == ("ok", 2)
    assert (ever.status, ever.attempt) == ("internal_error", 3)
    assert (never.status, never.attempt) == ("ok", 1)
    counts = sandbox.counts
    assert (counts.executions, counts.retries, counts.status) == (6, 3, {"ok": 2, "internal_error": 1})


def test_equal_programs_run_once_where_that_is_asked_for():
    backend = Listed()
    sandbox = Sandbox(SandboxConfig(cache=10), backend=backend)
    outcomes = sandbox.run(programs("a", "a", "b", "a"))
    assert [outcome.stdout for outcome in outcomes] == [b"a", b"a", b"b", b"a"]
    sandbox.run(programs("a", "c"))
    assert sorted(backend.started) == [b"a", b"b", b"c"]
    assert (sandbox.counts.executions, sandbox.counts.cache_hits) == (3, 3)
    again = Program(source=b"a", limits=Limits(cpu_s=1.0))
    sandbox.run([again])
    assert len(backend.started) == 4  # other limits, another outcome


def test_equal_programs_run_each_by_default():
    backend = Listed()
    Sandbox(backend=backend).run(programs("a", "a"))
    assert backend.started == [b"a", b"a"]


def test_an_outcome_that_the_clock_decided_is_not_kept():
    backend = Listed(lambda program: "time_limit")  # without any CPU time
    sandbox = Sandbox(SandboxConfig(cache=10), backend=backend)
    for _ in range(2):
        sandbox.run(programs("slow"))
    assert backend.started == [b"slow", b"slow"]


def test_kept_outcomes_are_bounded_and_internal_errors_are_not_kept():
    backend = Listed(lambda program: "internal_error" if program.source == b"bad" else "ok")
    sandbox = Sandbox(SandboxConfig(cache=2, retries=0), backend=backend)
    for name in ("a", "b", "c", "a", "bad", "bad"):
        sandbox.run(programs(name))
    assert backend.started == [b"a", b"b", b"c", b"a", b"bad", b"bad"]


def test_what_may_be_the_fault_of_a_busy_machine_is_not_kept():
    """Ended by the clock with CPU time to spare, or killed for want of memory: the next time it may go better."""
    backend = Listed()
    sandbox = Sandbox(SandboxConfig(cache=9), backend=backend)
    made = {b"wall": ("time_limit", 0.1, 9), b"cpu": ("time_limit", 2.1, 9), b"killed": ("runtime_error", 0.1, 9)}
    made[b"flood"] = ("output_limit", 0.1, 9)

    def collect(timeout):
        ticket, program = backend.running.pop()
        status, cpu_s, number = made[program.source]
        return [(ticket, Outcome(status=status, cpu_s=cpu_s, signal=number))]

    backend.collect = collect
    for name in ("wall", "cpu", "killed", "flood") * 2:
        sandbox.run(programs(name))
    assert backend.started == [b"wall", b"cpu", b"killed", b"flood", b"wall", b"killed"]


def test_kept_outcomes_are_bounded_in_size(monkeypatch):
    monkeypatch.setattr("fugu.coding.sandbox.sandbox.KEPT_BYTES", 1000)
    backend = Listed()  # prints its source
    sandbox = Sandbox(SandboxConfig(cache=100), backend=backend)
    for name in ("a" * 300, "b" * 180, "c" * 300, "a" * 300, "x" * 600, "x" * 600):
        sandbox.run(programs(name))
    assert [source[:1] for source in backend.started] == [b"a", b"b", b"c", b"a", b"x", b"x"]
    sandbox.run(programs("d" * 100, "d" * 100))
    assert backend.started[6:] == [b"d" * 100]


def test_collect_without_work_returns_at_once_and_closing_closes():
    backend = Listed()
    with Sandbox(backend=backend) as sandbox:
        assert sandbox.collect() == [] and sandbox.run([]) == []
    assert backend.closed
    with pytest.raises(SandboxError, match="closed"):
        sandbox.submit(programs("a")[0])


def test_a_copy_in_a_forked_process_is_refused(sandbox: Sandbox):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            sandbox.run(programs("print(1)"))
            os.write(write, b"ran")
        except SandboxError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    assert b"another process" in os.read(read, 1000)
    os.close(read)
    assert sandbox.run(programs("print(1)"))[0].status == "ok"


def test_what_cannot_be_is_refused_at_once():
    with pytest.raises(TypeError, match="encode"):
        Program(source="print(1)")  # type: ignore[arg-type]
    for wrong in ({"cpu_s": 0}, {"memory_mb": -1}, {"cpu_s": 9.0, "wall_s": 1.0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Limits(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="functions"):
        Program(source=b"", partner=Program(source=b""))
    with pytest.raises(ConfigError, match="profile"):
        Program(source=b"", profile="anything")  # type: ignore[arg-type]
