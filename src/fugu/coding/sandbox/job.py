"""A program under way: one execution, or two that talk to each other through the manager (test code and the agent's program)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from fugu.coding.sandbox import ending, wire
from fugu.coding.sandbox.contract import Outcome, Program
from fugu.coding.sandbox.execution import Execution


class Job:
    """``executions``: one, or tests and agent; ``ended``: those that have, in their order. OSError where descriptors have run out."""

    def __init__(self, ticket: int, program: Program, numbers: Iterator[int]) -> None:
        self.ticket, self.submitted = ticket, time.monotonic()
        self.executions: list[Execution] = []
        self.ended: list[Execution] = []
        try:
            if program.partner is None:
                self.executions.append(Execution(next(numbers), program, wire.CALLS if program.calls else wire.STDIO))
            else:
                self.executions.append(Execution(next(numbers), program, wire.TESTS))
                self.executions.append(Execution(next(numbers), program.partner, wire.CALLS))
                _introduce(*self.executions)
        except OSError:
            for execution in self.executions:
                execution.close()
            raise

    def outcome(self, **about: Any) -> Outcome:
        """Return the outcome, when all have ended."""
        if len(self.executions) == 1:
            return ending.outcome(self.executions[0], **about)
        tests, agent = self.executions
        return ending.pair_outcome(tests, agent, self.ended[0] is agent, **about)


def _introduce(tests: Execution, agent: Execution) -> None:
    """Send calls of the test code to the agent's process, and its answers back, as bytes; one at a time, as the caller waits."""
    waiting: list[bytes] = []

    def from_tests(kind: int, payload: bytes) -> None:
        if agent.loaded:
            agent.ask(payload)
        else:
            waiting.append(payload)

    def from_agent(kind: int, payload: bytes) -> None:
        if kind == wire.LOADED:
            for request in waiting:
                agent.ask(request)
            waiting.clear()
        else:
            tests.tell(kind, payload)

    tests.on_frame, agent.on_frame = from_tests, from_agent
