"""One thread that does one job at a time, for a caller that goes on meanwhile.

In: a function. Out: what it returned, or what it raised, once it is done. ``Here`` does the same in the calling thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

Outcome = tuple[Any, BaseException | None]

CLOSE_S = 5.0
"""seconds for the last job when the thread is to end"""


class Pilot:
    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._job: Callable[[], Any] | None = None
        self._wanted, self._done = threading.Semaphore(0), threading.Event()
        self._outcome: Outcome = None, None
        self._idle = 0.0
        self._idle_since: float | None = None

    def start(self, job: Callable[[], Any]) -> None:
        """Let the thread do ``job``. The one before must be done."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        if self._idle_since is not None:
            self._idle += time.perf_counter() - self._idle_since
        self._job = job
        self._done.clear()
        self._wanted.release()

    def wait(self, seconds: float) -> bool:
        """Wait for the job, this long at most. Returns whether it is done."""
        return self._done.wait(seconds)

    def take(self) -> Outcome:
        """Return what the job returned, and what it raised; one of them is None."""
        outcome, self._outcome = self._outcome, (None, None)
        return outcome

    def idle(self) -> float:
        """Return for how many seconds there was no job since the last call."""
        taken, self._idle = self._idle, 0.0
        return taken

    def close(self) -> None:
        """End the thread after its job, if that comes to an end: a job that hangs is left alone."""
        if self._thread is not None:
            self._job = None
            self._wanted.release()
            self._thread.join(CLOSE_S)
            self._thread = None

    def _work(self) -> None:
        while True:
            self._wanted.acquire()
            job, self._job = self._job, None
            if job is None:
                return
            try:
                self._outcome = job(), None
            except BaseException as error:
                self._outcome = None, error
            del job
            self._idle_since = time.perf_counter()
            self._done.set()


class Here:
    """Does each job when it is started, in the calling thread."""

    def __init__(self) -> None:
        self._outcome: Outcome = None, None

    def start(self, job: Callable[[], Any]) -> None:
        try:
            self._outcome = job(), None
        except BaseException as error:
            self._outcome = None, error

    def wait(self, seconds: float) -> bool:
        return True

    def take(self) -> Outcome:
        return self._outcome

    def idle(self) -> float:
        return 0.0

    def close(self) -> None:
        """Do nothing: there is no thread."""
