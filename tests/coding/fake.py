"""A sandbox for tests that are not about sandboxes: runs reference solutions and nonsense in this process, at the times it is told."""

from __future__ import annotations

import time

from fugu.coding.sandbox.contract import Outcome, Program
from fugu.coding.sandbox.values import decode, encode


class FakeSandbox:
    """Counts; fails where the source says ``broken``; is as slow as ``delay`` says of a source."""

    def __init__(self, delay=lambda source: 0.0) -> None:
        self.delay = delay
        self.tickets = 0
        self.most = 0
        self.closed = 0
        self.due: dict[int, tuple[float, Outcome]] = {}

    def submit(self, program: Program) -> int:
        self.tickets += 1
        self.due[self.tickets] = time.monotonic() + self.delay(program.source.decode()), _run(program)
        self.most = max(self.most, len(self.due))
        return self.tickets

    def collect(self, timeout: float | None) -> list[tuple[int, Outcome]]:
        until = time.monotonic() + (1e6 if timeout is None else timeout)
        while True:
            now = time.monotonic()
            done = [ticket for ticket, (due, _) in self.due.items() if due <= now]
            if done or not self.due or now >= until:
                return [(ticket, self.due.pop(ticket)[1]) for ticket in done]
            time.sleep(max(0.0, min(until, min(due for due, _ in self.due.values())) - now))

    def close(self) -> None:
        self.closed += 1


def _run(program: Program) -> Outcome:
    if b"broken" in program.source:
        return Outcome(status="internal_error", detail="on purpose")
    results = []
    try:
        names: dict[str, object] = {}
        assert b"import" not in program.source and b"open" not in program.source, "only for harmless programs"
        exec(program.source, names)
        for call in program.calls:
            results.append(encode(names[call.function](*decode(call.args))))  # type: ignore[operator]
    except Exception as error:
        return Outcome(status="runtime_error", detail=f"{type(error).__name__}: {error}", results=tuple(results))
    return Outcome(status="ok", results=tuple(results))
