"""From what the kernel and the zygote saw to a status.

The order matters: what we decided ourselves first, then limits, then how the process ended. Nothing a program writes can make its
outcome an internal error, which would take it out of the training: those come only from before ``READY`` and from a zygote's trouble.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any, cast

from fugu.coding.sandbox import wire
from fugu.coding.sandbox.contract import Isolation, Outcome, Status, printable
from fugu.coding.sandbox.execution import Execution
from fugu.errors import signal_name


def outcome(execution: Execution, **about: Any) -> Outcome:
    """Return the outcome of a program that is one process."""
    status, detail = judge(execution, _apart(about))
    return Outcome(status=status, detail=detail, results=tuple(execution.results), **facts(execution), **about)


def pair_outcome(tests: Execution, agent: Execution, agent_first: bool, **about: Any) -> Outcome:
    """Return the outcome of test code and the agent's program: facts are the agent's, the verdict the tests', if they reached one."""
    if agent_first or agent.setup_error or agent.problem is not None:
        status, detail = judge(agent, _apart(about))
        if status == "ok":
            status, detail = "runtime_error", "the program ended before the tests did"
    else:
        status, detail = judge(tests, _apart(about))
        if status == "ok" and not tests.tested:
            status, detail = "runtime_error", "the tests did not come to their end"
    return Outcome(status=status, detail=detail, **facts(agent), **about)


def _apart(about: Mapping[str, Any]) -> bool:
    isolation: Isolation = about["isolation"]
    return isolation.level == 3


def facts(execution: Execution) -> dict[str, Any]:
    report = execution.report
    assert report is not None
    ended = os.waitstatus_to_exitcode(report.status) if report.why != wire.NOT_STARTED else None
    return {
        "stdout": bytes(execution.out.data),
        "stderr": bytes(execution.err.data),
        "truncated": any(stream.total > len(stream.data) for stream in (execution.out, execution.err)),
        "exit_code": ended if ended is not None and ended >= 0 else None,
        "signal": -ended if ended is not None and ended < 0 else None,
        "cpu_s": report.cpu_s,
        "wall_s": report.wall_s,
        "max_rss_mb": report.max_rss_mb,
    }


def judge(execution: Execution, apart: bool) -> tuple[Status, str]:
    """Judge how it ended. ``apart``: it was the first process of a namespace, which nothing inside can kill, itself included; nor
    may it set the limit at which the kernel would (``seccomp``)."""
    report, limits = execution.report, execution.program.limits
    assert report is not None
    if report.why == wire.NOT_STARTED:
        return "internal_error", "the worker could not start a process"
    if not execution.ready:
        return "internal_error", "set-up failed: " + (execution.setup_error or "it was ended before it was complete")
    if execution.problem is not None:
        status, detail = execution.problem
        return cast(Status, status), detail
    if report.why == wire.WALL:
        if execution.kept_waiting:
            return "internal_error", f"nobody was there to answer it for {limits.wall_s:g} s"
        if execution.stood_full:  # it was not slow: we were away
            return "output_limit", "wrote more than a pipe holds at a time when nobody could read it"
        return "time_limit", f"did not end within {limits.wall_s:g} s"
    if report.why == wire.MEMORY:
        return "memory_limit", f"its processes needed more than {limits.memory_mb} MB together"
    number = os.waitstatus_to_exitcode(report.status)
    together = execution.program.profile == "program" and report.cpu_s > limits.cpu_s  # of processes that have all ended since
    # By the time that was used, not by the signal: the first process of a namespace is deaf to most of them.
    if together or report.why == wire.CPU or (number < 0 and report.cpu_s >= limits.cpu_s):
        return "time_limit", f"used more than {limits.cpu_s:g} s of CPU time"
    if number < 0:
        large = report.max_rss_mb > limits.memory_mb / 2
        if number == -signal.SIGKILL and not large and apart:
            return "internal_error", "killed from outside; perhaps memory ran out"
        return _by_signal(-number, large)
    last = _last_line(execution)
    if number:
        if last.startswith("MemoryError"):
            return "memory_limit", f"needed more than {limits.memory_mb} MB"
        return "runtime_error", last or f"exit code {number}"
    if execution.mode == wire.CALLS and execution.on_frame is None:
        if execution.raised:
            kind: Status = "memory_limit" if execution.raised.startswith("MemoryError") else "runtime_error"
            return kind, execution.raised
        if len(execution.results) < len(execution.program.calls):
            return "runtime_error", f"ended before it answered call {len(execution.results) + 1}"
    return "ok", ""


def _by_signal(number: int, large: bool) -> tuple[Status, str]:
    if number == signal.SIGSYS:
        return "violation", "a system call that no program here may make"
    if number == signal.SIGKILL and large:
        return "memory_limit", "killed, with much memory in use"
    return "runtime_error", f"ended by {signal_name(number)}"


def _last_line(execution: Execution) -> str:
    """Return Python's last word on stderr: the exception and its message."""
    if execution.err.total > len(execution.err.data):
        return ""
    lines = bytes(execution.err.data[-4096:]).strip().splitlines()
    return printable(lines[-1]) if lines else ""
