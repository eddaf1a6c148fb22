"""A process per program: the part that ``subprocess``, ``bubblewrap``, ``docker`` and ``podman`` share. They differ in the command that
makes a box (their ``Launcher``); starting, feeding, reading, deadlines and clearing up are here.

Slower than ``fork`` by the start of an interpreter per program. The runner in the box keeps the limits; this side watches the
runner and ends it a little later if it does not.
"""

from __future__ import annotations

import selectors
import time

from fugu.coding.sandbox.alarm import Alarm
from fugu.coding.sandbox.box import Box
from fugu.coding.sandbox.contract import Outcome, Program
from fugu.coding.sandbox.launch import Job, Launcher
from fugu.errors import SandboxError


class SpawnBackend:
    """Runs programs in boxes that ``launcher`` makes, ``places`` at a time."""

    def __init__(self, launcher: Launcher, places: int) -> None:
        self.name, self.isolation, self.gaps = launcher.name, launcher.isolation, launcher.gaps
        self.launcher, self.places = launcher, places
        self.running: dict[int, Job] = {}
        self.failed: list[tuple[int, Outcome]] = []
        self.selector = selectors.DefaultSelector()
        self.alarm = Alarm()
        if self.alarm.fd >= 0:
            self.selector.register(self.alarm.fd, selectors.EVENT_READ)
        self.closed = False

    @property
    def room(self) -> int:
        return self.places - len(self.running) - len(self.failed)

    def submit(self, ticket: int, program: Program) -> None:
        problem = program.too_large()
        if problem is not None:
            self._fail(ticket, "runtime_error", problem)
            return
        try:
            job = Job(ticket, program, self.launcher)
        except OSError as error:
            self._fail(ticket, "internal_error", f"cannot start a box: {error}")
            return
        self.running[ticket] = job
        for box in job.boxes:
            box.write()
            self.selector.register(box.output, selectors.EVENT_READ, (job, box))
            self._want_write(job, box)
        self._set_alarm()

    def trial(self, seconds: float) -> None:
        """Try one box, so that where none can be made this fails at once, rather than with every program."""
        self.submit(-1, Program(source=b"print(6 * 7)"))
        until = time.monotonic() + seconds
        while not (done := self.collect(0.5)) and time.monotonic() < until:
            pass
        if not done or (done[0][1].status, done[0][1].stdout) != ("ok", b"42\n"):
            self.close()
            why = f"{done[0][1].status}, {done[0][1].detail}" if done else f"no answer within {seconds} s"
            raise SandboxError(f"backend={self.name!r} cannot run programs here: {why}{self.launcher.why_not()}")

    def _fail(self, ticket: int, status: str, detail: str) -> None:
        outcome = Outcome(status=status, detail=detail, isolation=self.isolation, backend=self.name)  # type: ignore[arg-type]
        self.failed.append((ticket, outcome))
        self.alarm.set(1e-6)

    def collect(self, timeout: float | None) -> list[tuple[int, Outcome]]:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            done, self.failed = self.failed, []
            wait = 0.0 if done or not self.running else self._patience(end)
            for key, events in self.selector.select(wait):
                if key.data is None:
                    self.alarm.clear()
                else:
                    job, box = key.data
                    self._serve(job, box, events)
            now = time.monotonic()
            for job in list(self.running.values()):
                job.expire(now)
                if all(box.over for box in job.boxes):
                    done.append((job.ticket, self._finish(job)))
            if done or not self.running or (end is not None and now >= end):
                self._set_alarm()
                return done

    def _patience(self, end: float | None) -> float:
        """Return the seconds until the next deadline, at most until ``end``."""
        until = min(job.deadline for job in self.running.values())
        return max(0.0, (until if end is None else min(until, end)) - time.monotonic())

    def _serve(self, job: Job, box: Box, events: int) -> None:
        if box.over:
            return
        if events & selectors.EVENT_WRITE:
            box.write()
        if events & selectors.EVENT_READ and not box.read():
            self._leave(box)
        job.advance()
        for each in job.boxes:
            self._want_write(job, each)

    def _want_write(self, job: Job, box: Box) -> None:
        wanted = bool(box.outgoing) and not box.over
        if wanted != box.writing:
            if wanted:
                self.selector.register(box.input, selectors.EVENT_WRITE, (job, box))
            else:
                self.selector.unregister(box.input)
            box.writing = wanted

    def _leave(self, box: Box) -> None:
        """Leave a box from which nothing more comes: it has ended, or it speaks nonsense and is ended."""
        self.selector.unregister(box.output)
        if box.writing:
            self.selector.unregister(box.input)
            box.writing = False
        box.over = True
        box.kill()

    def _finish(self, job: Job) -> Outcome:
        job.close()
        del self.running[job.ticket]
        return job.outcome()

    def _set_alarm(self) -> None:
        if self.running:
            self.alarm.set(self._patience(None) + 1e-6)

    def fileno(self) -> int:
        return self.selector.fileno()

    def alive(self) -> bool:
        return not self.closed

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for job in self.running.values():
            for box, start in zip(job.boxes, job.starts, strict=True):
                if not box.over:
                    self.launcher.kill(start)
            job.close()
        self.running.clear()
        self.launcher.close()
        self.selector.close()
        self.alarm.close()
