"""One sandbox and judge for all coding environments of a process: opened by the first, closed with the last.

An environment ``submit``s a program and asks with ``take`` whether its verdict is there. ``wait`` is what a vector env waits with: it
gathers whatever verdicts have come, for whichever environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from fugu.coding.judge import Judge, Verdict, Which
from fugu.coding.sandbox.config import SandboxConfig
from fugu.coding.task import Task
from fugu.errors import SandboxError

MOST = 8192
"""programs that may be without a verdict; submitting more waits until there are fewer"""


UNSCORED = 100
"""programs in a row that the sandbox could not run: then it is broken, and training on would learn nothing for ever"""


@dataclass(frozen=True)
class ServiceConfig:
    sandbox: SandboxConfig
    fail_fast: bool
    share_process: bool


class Service:
    def __init__(self, sandbox: Any, config: ServiceConfig) -> None:
        self.sandbox = sandbox
        self.judge = Judge(sandbox, fail_fast=config.fail_fast, share_process=config.share_process)
        self.users = 0
        self._verdicts: dict[int, Verdict] = {}
        """that nobody has taken yet"""
        self._dropped: set[int] = set()
        """tickets that nobody waits for any more"""
        self._unscored = 0
        """in a row, just now"""

    def submit(self, task: Task, source: str, tests: Which) -> int:
        while self.judge.pending >= MOST:
            self.wait(1.0)
        return self.judge.submit(task, source, tests)

    def take(self, ticket: int) -> Verdict | None:
        """Return the verdict, once, if it is there."""
        if ticket not in self._verdicts:
            self.wait(0.0)
        return self._verdicts.pop(ticket, None)

    def drop(self, ticket: int) -> None:
        """Forget a program; it may still be running."""
        if self._verdicts.pop(ticket, None) is None:
            self._dropped.add(ticket)

    def wait(self, timeout: float) -> None:
        """Wait until a verdict has come, at most ``timeout`` seconds."""
        for ticket, verdict in self.judge.collect(timeout):
            self._unscored = 0 if verdict.scored else self._unscored + 1
            if self._unscored >= UNSCORED:
                raise SandboxError(
                    f"the last {UNSCORED} programs could not be run: {verdict.detail}; `fugu doctor` looks for the cause"
                )
            if ticket in self._dropped:
                self._dropped.remove(ticket)
            else:
                self._verdicts[ticket] = verdict


_open: dict[ServiceConfig, tuple[int, Service]] = {}
"""settings -> the process that opened it (a forked copy is of no use) and what it shares"""


def acquire(config: ServiceConfig) -> Service:
    """Return the service of this process with these settings. ``release`` it, once for each time."""
    owner, service = _open.get(config, (0, None))
    if service is None or owner != os.getpid():
        service = Service(open_sandbox(config.sandbox), config)
        _open[config] = os.getpid(), service
    service.users += 1
    return service


def release(service: Service) -> None:
    service.users -= 1
    for config, (owner, shared) in list(_open.items()):
        if shared is service and service.users == 0 and owner == os.getpid():
            del _open[config]
            service.sandbox.close()


def open_sandbox(config: SandboxConfig) -> Any:
    """Open a sandbox; refuse where programs would not be kept apart as well as asked for."""
    from fugu.coding.sandbox.sandbox import Sandbox

    return Sandbox(config)
