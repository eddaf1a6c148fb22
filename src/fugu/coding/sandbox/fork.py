"""The default backend: zygotes that fork, started, fed, watched and replaced from here. Single-threaded; waits on one epoll.

A program is a ``Job`` of one execution, or of two that talk through us (test code and the agent's program). Zygotes keep the deadlines;
here it is noticed when a zygote dies or falls silent, and its jobs come back as internal errors. Outcomes are complete when the
zygote has reaped the process, never when a pipe closes: by then everything the program started is dead too.
"""

from __future__ import annotations

import errno
import itertools
import os
import select
import time
from collections import deque
from typing import Any

from fugu.coding.sandbox import cgroup, probe
from fugu.coding.sandbox.config import SandboxConfig
from fugu.coding.sandbox.contract import Isolation, Outcome, Program, printable
from fugu.coding.sandbox.execution import Execution
from fugu.coding.sandbox.job import Job
from fugu.coding.sandbox.worker import Worker
from fugu.errors import SandboxError

_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT
_YOUNG_S = 0.01
"""the output of an execution is not waited for before this age: most have ended by then, and it is all read at the end"""
_SPARE = 8
"""executions fewer than would be possible, where descriptors ran out: what else needs some, such as a new worker, shall find them"""
_AWAY_S = 0.05
"""between two turns, from which on we were not there for programs that wait for an answer"""


class ForkBackend:
    """See ``contract.Backend``."""

    name = "fork"

    def __init__(self, config: SandboxConfig | None = None) -> None:
        self.config = config or SandboxConfig()
        self._pid = os.getpid()
        self._workers: list[Worker] = []
        report = probe.require(self.config)
        self.isolation: Isolation = report.isolation
        self._plan = report.plan
        self.restarts = 0
        self._failures = 0
        self._most: int | None = None
        """executions at once, where there are descriptors for no more"""
        self._postponed: deque[tuple[int, Program]] = deque()
        self._numbers = itertools.count(1)
        self._jobs: dict[int, tuple[Job, Worker]] = {}  # by number of execution
        self._young: deque[Execution] = deque()
        self._watched: dict[int, Execution] = {}  # by descriptor
        self._finished: list[tuple[int, Outcome]] = []
        self._last_watch = 0.0
        self._left = time.monotonic()
        self._away = (0.0, 0.0)
        """the last time that nobody took a turn: from, until"""
        self._epoll = select.epoll()
        self._closed = False
        if self.config.cgroup is not None:
            cgroup.sweep(self.config.cgroup)
        try:
            for _ in range(self.config.worker_count):
                self._hire()
            self._await_workers()
        except BaseException:
            self.close()
            raise

    # What the contract asks for.

    @property
    def room(self) -> int:
        places = sum(self.config.in_flight - len(worker.running) for worker in self._workers if self._takes(worker))
        if self._most is not None:
            places = min(places, self._most - len(self._jobs))
        return 0 if self._postponed else max(0, places)

    def submit(self, ticket: int, program: Program) -> None:
        self._check()
        too_large = program.too_large()
        if too_large is not None:
            self._finish(ticket, Outcome(status="runtime_error", detail=too_large, **self._about()))
            return
        worker = min((each for each in self._workers if self._takes(each)), key=lambda each: len(each.running), default=None)
        if worker is None:
            self._finish(ticket, self._internal("no worker is running"))
            return
        try:
            job = Job(ticket, program, self._numbers)
        except OSError as error:  # out of descriptors
            if error.errno in (errno.EMFILE, errno.ENFILE) and self._jobs:
                self._most = max(1, len(self._jobs) - _SPARE)
                self._postponed.append((ticket, program))  # until some have ended: nothing is wrong with it
            else:
                self._finish(ticket, self._internal(str(error)))
            return
        for execution in job.executions:
            self._jobs[execution.number] = (job, worker)
            try:
                worker.start(execution)
            except OSError as error:
                self._lose(worker, f"could not be reached: {error}")
                return
            if execution.needs_nobody:
                self._young.append(execution)
            else:
                self._watch(execution)

    def collect(self, timeout: float | None) -> list[tuple[int, Outcome]]:
        self._check()
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            self._turn(0.0 if self._finished else left)
            if self._finished:
                finished, self._finished = self._finished, []
                return finished
            idle = not self._jobs and not self._postponed and all(worker.ready for worker in self._workers)
            if idle or (until is not None and time.monotonic() >= until):
                return []

    def fileno(self) -> int:
        return self._epoll.fileno()

    def alive(self) -> bool:
        return not self._closed and os.getpid() == self._pid and any(each.process.poll() is None for each in self._workers)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._pid:  # a copy in a forked process: the workers are not ours
            return
        for worker in self._workers:
            worker.control.close()
        until = time.monotonic() + 2.0
        for worker in self._workers:
            worker.close(grace=max(0.0, until - time.monotonic()))
        self._workers.clear()
        self._jobs.clear()
        self._postponed.clear()
        self._epoll.close()

    # One turn: what has come, who is silent.

    def _turn(self, timeout: float | None) -> None:
        now = time.monotonic()
        if now - self._left > _AWAY_S:
            self._away = (self._left, now)
        self._take_turn(timeout)
        self._left = time.monotonic()

    def _take_turn(self, timeout: float | None) -> None:
        wait = 1.0 if timeout is None else min(timeout, 1.0)
        if self._young:
            wait = min(wait, _YOUNG_S)
        for descriptor, event in self._epoll.poll(wait, 256):
            execution = self._watched.get(descriptor)
            if execution is not None:
                self._attend(execution, descriptor, event)
                continue
            for worker in [each for each in self._workers if each.fileno() == descriptor]:
                self._listen(worker)
        self._resume()
        now = time.monotonic()
        while self._young and (self._young[0].report is not None or now - self._jobs_time(self._young[0]) > _YOUNG_S):
            execution = self._young.popleft()
            if execution.number in self._jobs and execution.report is None:
                self._watch(execution)
        if now - self._last_watch > 0.25:
            self._last_watch = now
            self._look_after(now)

    def _resume(self) -> None:
        """Start what there were no descriptors for, as soon as there are."""
        while self._postponed and len(self._jobs) < (self._most or 1) and any(map(self._takes, self._workers)):
            self.submit(*self._postponed.popleft())

    def _jobs_time(self, execution: Execution) -> float:
        entry = self._jobs.get(execution.number)
        return entry[0].submitted if entry is not None else 0.0

    def _attend(self, execution: Execution, descriptor: int, event: int) -> None:
        if event & _WRITE and execution.write():
            self._epoll.modify(descriptor, _READ)
        if event & ~_WRITE:
            before = execution.problem
            execution.read()
            if execution.problem is not None and before is None:
                self._kill(execution)
            if event & (select.EPOLLHUP | select.EPOLLERR):
                self._ignore(descriptor)
            self._sync(execution)

    def _sync(self, execution: Execution) -> None:
        """Wait for room to write, too: what was just read may have to be told to this job's processes and fill a socket's buffer."""
        entry = self._jobs.get(execution.number)
        for each in entry[0].executions if entry is not None else ():
            if each.unsent and each.channel.fileno() in self._watched:
                self._epoll.modify(each.channel.fileno(), _READ | _WRITE)

    def _listen(self, worker: Worker) -> None:
        try:
            ended = worker.receive()
        except EOFError as error:
            self._lose(worker, str(error))
            return
        if worker.ready:
            self._failures = 0
        for execution in ended:
            execution.read()
            self._end(execution)
        if worker.executed >= self.config.recycle or worker.now_mb - worker.first_mb > self.config.grow_mb:
            self._retire(worker)
        if worker.retired and not worker.running:
            self._dismiss(worker, grace=1.0)

    def _look_after(self, now: float) -> None:
        for worker in list(self._workers):
            if worker.silent(now, self.config.silence_s):
                self._listen(worker)  # its answer may be waiting, if it was us who were away
                if worker in self._workers and worker.asked is not None:
                    self._lose(worker, f"did not answer for {self.config.silence_s:g} s")
            elif not worker.ready and now - worker.started > self.config.start_timeout:
                self._lose(worker, f"did not start within {self.config.start_timeout:g} s")

    # Ends of executions and jobs.

    def _end(self, execution: Execution) -> None:
        job, worker = self._jobs.pop(execution.number)
        for descriptor in (execution.channel.fileno(), execution.out.descriptor, execution.err.descriptor):
            self._ignore(descriptor)
        job.ended.append(execution)
        execution.close()
        if len(job.ended) < len(job.executions):
            for other in job.executions:
                if other.report is None:
                    self._kill(other)
            return
        for each in job.executions:
            each.kept_waiting = self._kept_waiting(job, each)
        outcome = job.outcome(**self._about())
        if outcome.status == "internal_error" and not any(each.kept_waiting for each in job.executions):
            self._retire(worker)  # so that it is tried again on a fresh one
        self._finish(job.ticket, outcome)

    def _kept_waiting(self, job: Job, execution: Execution) -> bool:
        """Return True if its time was up while we were away and something in its job had a question to us: then we were slow, not it.

        When it began is not known here, only that it was not before it was submitted."""
        assert execution.report is not None
        back = self._away[1]
        return job.submitted + execution.report.wall_s <= back and any(each.heard >= back for each in job.executions)

    def _kill(self, execution: Execution) -> None:
        entry = self._jobs.get(execution.number)
        if entry is not None:
            entry[1].kill(execution)

    def _finish(self, ticket: int, outcome: Outcome) -> None:
        self._finished.append((ticket, outcome))

    def _about(self) -> dict[str, Any]:
        return {"isolation": self.isolation, "backend": self.name}

    def _internal(self, detail: str) -> Outcome:
        return Outcome(status="internal_error", detail=printable(detail), isolation=self.isolation, backend=self.name)

    def _watch(self, execution: Execution) -> None:
        channel = execution.channel.fileno()
        for descriptor in (channel, execution.out.descriptor, execution.err.descriptor):
            self._watched[descriptor] = execution
            self._epoll.register(descriptor, _READ | _WRITE if descriptor == channel and execution.unsent else _READ)

    def _ignore(self, descriptor: int) -> None:
        if self._watched.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    # Workers come and go.

    def _takes(self, worker: Worker) -> bool:
        return worker.ready and not worker.retired and len(worker.running) < self.config.in_flight

    def _hire(self) -> None:
        try:
            worker = Worker(self.config, self._plan)
        except OSError as error:
            raise SandboxError(f"a worker could not be started: {error}") from None
        self._workers.append(worker)
        self._epoll.register(worker.fileno(), _READ)

    def _await_workers(self) -> None:
        until = time.monotonic() + self.config.start_timeout
        while not all(worker.ready for worker in self._workers):
            if time.monotonic() > until:
                raise SandboxError(f"the workers did not start within {self.config.start_timeout:g} s")
            for descriptor, _ in self._epoll.poll(0.1):
                worker = next(each for each in self._workers if each.fileno() == descriptor)
                try:
                    worker.receive()
                except EOFError as error:
                    raise SandboxError(f"a worker did not start: {error}") from None

    def _retire(self, worker: Worker) -> None:
        if not worker.retired:
            worker.retired = True
            self._hire()

    def _dismiss(self, worker: Worker, *, grace: float) -> None:
        self._workers.remove(worker)
        self._epoll.unregister(worker.fileno())
        worker.close(grace=grace)

    def _lose(self, worker: Worker, why: str) -> None:
        """Replace a worker that is dead or as good as dead; its jobs are internal errors."""
        jobs = {}
        for number, (job, its) in list(self._jobs.items()):
            if its is worker:
                jobs[job.ticket] = job
                del self._jobs[number]
        for job in jobs.values():
            for execution in job.executions:
                for descriptor in (execution.channel.fileno(), execution.out.descriptor, execution.err.descriptor):
                    self._ignore(descriptor)
                execution.close()
            self._finish(job.ticket, self._internal(f"the worker {why}"))
        worker.running.clear()
        replaced = not worker.retired
        self._dismiss(worker, grace=0.0)
        self.restarts += 1
        self._failures += 1
        if self._failures > 3 + 2 * self.config.worker_count and not any(each.ready for each in self._workers):
            raise SandboxError(f"workers keep failing: the last one {why}")
        if replaced:
            self._hire()

    def _check(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox is closed")
        if os.getpid() != self._pid:
            raise SandboxError("this sandbox belongs to another process; make one here")
