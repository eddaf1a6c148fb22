"""Run programs for the user: programs in, outcomes out, in whatever order they finish.

``Sandbox`` opens a backend (or refuses, where that would keep programs apart less well than was asked for), queues what it has no room
for, tries internal errors again, and runs a program that it has seen before only once where that is allowed.
"""

from __future__ import annotations

import importlib
import itertools
import signal
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from fugu.coding.sandbox.config import SandboxConfig
from fugu.coding.sandbox.contract import Backend, Isolation, Outcome, Program
from fugu.errors import SandboxError

_BACKENDS = {
    "fork": ("fork", "ForkBackend"),
    "subprocess": ("plain", "open_plain"),
    "bubblewrap": ("bubblewrap", "open_bubblewrap"),
    "docker": ("container", "open_container"),
    "podman": ("container", "open_container"),
    "http": ("http", "open_http"),
}


KEPT_BYTES = 256 << 20
"""of programs and outcomes that are kept: a program can make each of them megabytes large"""


def open_backend(config: SandboxConfig) -> Backend:
    """Open the backend that ``config`` names, at the level it asks for or not at all."""
    module, opener = _BACKENDS[config.backend]
    backend: Backend = getattr(importlib.import_module(f"{__package__}.{module}"), opener)(config)
    return backend


@dataclass
class Counts:
    """Counts of what has happened so far."""

    executions: int = 0
    retries: int = 0
    cache_hits: int = 0
    restarts: int = 0
    """workers that died or fell silent and were replaced"""
    status: Counter[str] = field(default_factory=Counter)
    """outcomes handed out, by status"""


@dataclass
class _Request:
    tickets: list[int]
    """more than one where identical programs share one execution"""
    program: Program
    attempt: int = 1


class Sandbox:
    """``with Sandbox() as sandbox: outcomes = sandbox.run(programs)``, or ``submit`` and ``collect``."""

    def __init__(self, config: SandboxConfig | None = None, *, backend: Backend | None = None) -> None:
        self.config = config or SandboxConfig()
        self.backend = backend or open_backend(self.config)
        self._closed = False
        self._counts = Counts()
        self._tickets = itertools.count()
        self._waiting: deque[_Request] = deque()
        self._running: dict[int, _Request] = {}  # by the first of its tickets
        self._shared: dict[Program, _Request] = {}  # waiting or running, where outcomes are kept
        self._kept: OrderedDict[Program, Outcome] = OrderedDict()
        self._kept_bytes = 0
        self._finished: list[tuple[int, Outcome]] = []
        self._pending = 0

    @property
    def isolation(self) -> Isolation:
        return self.backend.isolation

    @property
    def counts(self) -> Counts:
        return replace(self._counts, restarts=getattr(self.backend, "restarts", 0), status=self._counts.status.copy())

    @property
    def pending(self) -> int:
        """Count the programs whose outcome has not been collected."""
        return self._pending

    def submit(self, program: Program) -> int:
        """Queue ``program`` and return its ticket. Starts it at once where there is room, and never waits."""
        if self._closed:
            raise SandboxError("the sandbox is closed")
        if len(self._waiting) >= self.config.queue:
            raise SandboxError(f"{len(self._waiting)} programs are waiting (queue={self.config.queue}); collect some first")
        ticket = next(self._tickets)
        self._pending += 1
        if self.config.cache:
            kept = self._kept.get(program)
            if kept is not None:
                self._kept.move_to_end(program)
                self._hand_out(ticket, kept, shared=True)
                return ticket
            if program in self._shared:
                self._shared[program].tickets.append(ticket)
                return ticket
        request = _Request([ticket], program)
        if self.config.cache:
            self._shared[program] = request
        self._waiting.append(request)
        self._feed()
        return ticket

    def collect(self, timeout: float | None = None) -> list[tuple[int, Outcome]]:
        """Return what has finished, at least one unless ``timeout`` seconds pass or nothing is under way."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            self._feed()
            busy = bool(self._running or self._waiting)
            if busy:
                left = None if until is None else max(0.0, until - time.monotonic())
                for first, outcome in self.backend.collect(0.0 if self._finished else left):
                    self._take(self._running.pop(first), outcome)
                self._feed()
            if self._finished:
                finished, self._finished = self._finished, []
                self._pending -= len(finished)
                return finished
            if not busy or (until is not None and time.monotonic() >= until):
                return []

    def run(self, programs: Iterable[Program]) -> list[Outcome]:
        """Return the outcomes of ``programs``, in their order."""
        tickets = [self.submit(program) for program in programs]
        wanted = set(tickets)
        found: dict[int, Outcome] = {}
        others: list[tuple[int, Outcome]] = []
        while len(found) < len(wanted):
            for ticket, outcome in self.collect():
                if ticket in wanted:
                    found[ticket] = outcome
                else:
                    others.append((ticket, outcome))
        self._finished += others  # submitted before; somebody will ask for them
        self._pending += len(others)
        return [found[ticket] for ticket in tickets]

    def fileno(self) -> int:
        """Return a descriptor that is readable when ``collect(0)`` may have something."""
        return self.backend.fileno()

    def alive(self) -> bool:
        return self.backend.alive()

    def close(self) -> None:
        self._closed = True
        self.backend.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        backend: Any = getattr(self, "backend", None)
        if backend is not None:
            backend.close()

    def _feed(self) -> None:
        while self._waiting and self.backend.room > 0:
            request = self._waiting.popleft()
            self._running[request.tickets[0]] = request
            self._counts.executions += 1
            self.backend.submit(request.tickets[0], request.program)

    def _take(self, request: _Request, outcome: Outcome) -> None:
        if outcome.status == "internal_error" and request.attempt <= self.config.retries:
            request.attempt += 1
            self._counts.retries += 1
            self._waiting.appendleft(request)
            return
        if request.attempt > 1:
            outcome = replace(outcome, attempt=request.attempt)
        self._shared.pop(request.program, None)
        if self.config.cache and _will_be_the_same(request.program, outcome):
            self._keep(request.program, outcome)
        for ticket in request.tickets:
            self._hand_out(ticket, outcome, shared=ticket != request.tickets[0])

    def _keep(self, program: Program, outcome: Outcome) -> None:
        self._kept[program] = outcome
        self._kept_bytes += _size(program, outcome)
        while len(self._kept) > self.config.cache or self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= _size(*self._kept.popitem(last=False))

    def _hand_out(self, ticket: int, outcome: Outcome, *, shared: bool) -> None:
        self._counts.cache_hits += shared
        self._counts.status[outcome.status] += 1
        self._finished.append((ticket, outcome))


def _will_be_the_same(program: Program, outcome: Outcome) -> bool:
    """Return False for what befell it because the machine had much to do: no CPU for it in time, or no memory."""
    if outcome.status == "time_limit":
        return outcome.cpu_s >= program.limits.cpu_s
    killed = outcome.signal == signal.SIGKILL and outcome.status in ("runtime_error", "memory_limit")
    return outcome.status != "internal_error" and not killed


def _size(program: Program, outcome: Outcome) -> int:
    """Return about how many bytes both take."""
    texts = [program.source, program.stdin, outcome.stdout, outcome.stderr, *outcome.results]
    texts += [call.args for call in program.calls] + ([] if program.partner is None else [program.partner.source])
    return sum(map(len, texts))
