"""Ctrl-C and SIGTERM during training: finish what is nearly finished, give up what is not, so that saving starts within seconds."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fugu.rollout.onpolicy import Stopped

PATIENCE_S = 2.0
"""how long a phase may go on after the signal"""


class Interrupt:
    """A context that catches SIGINT and SIGTERM. A second SIGINT is a KeyboardInterrupt as ever."""

    def __init__(self) -> None:
        self.asked: int | None = None
        """the signal that asked for the end"""
        self._before: dict[int, Any] = {}
        self._took: dict[str, float] = {}
        """phase -> seconds it took last time"""
        self._asked_at = 0.0
        self._reminder: threading.Timer | None = None
        self._phase: str | None = None
        self._since = 0.0

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python delivers no signals
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        if self._reminder is not None:
            self._reminder.cancel()
            self._reminder.join()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def hurry(self, phase: str) -> Iterator[Callable[[], bool]]:
        """Time a phase. Yields a function that says whether to cut it short; a rollout is left by ``Stopped`` instead, raised from
        the signal handler, because it may be waiting for an environment."""
        if self.asked and phase == "rollout":
            raise Stopped
        self._phase, self._since = phase, time.monotonic()
        try:
            yield self._too_long
            self._took[phase] = time.monotonic() - self._since
        finally:
            self._phase = None

    def overdue(self) -> bool:
        """Whether the end was asked for so long ago that nothing must go on."""
        return self.asked is not None and time.monotonic() - self._asked_at > PATIENCE_S

    def _too_long(self) -> bool:
        """Whether the phase, after the signal, would last longer than there is patience for, as far as one can tell."""
        if self.asked is None or self._phase is None:
            return False
        spent = time.monotonic() - self._since
        usual = self._took.get(self._phase, float("inf"))
        return self.overdue() or abs(usual - spent) > PATIENCE_S  # so long after its time it hangs

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            if self._phase == "rollout" and self.overdue():
                raise Stopped
            return
        self.asked, self._asked_at = number, time.monotonic()
        if self._phase == "rollout" and self._too_long():
            raise Stopped
        # an environment that hangs now would not return to be asked: remind ourselves
        self._reminder = threading.Timer(PATIENCE_S + 0.1, os.kill, (os.getpid(), signal.SIGTERM))
        self._reminder.daemon = True
        self._reminder.start()
