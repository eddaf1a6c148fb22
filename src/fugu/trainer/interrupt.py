"""Ctrl-C, SIGTERM and SIGHUP in training: finish what is nearly finished, give up what is not, so that saving starts within seconds."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from os import _exit
from types import FrameType
from typing import Any

from fugu.rollout.source import Stopped
from fugu.together import speaking

PATIENCE_S = 2.0
"""longest time a phase may go on after the signal"""
DEAF_S = 10.0
"""longest time a first signal may go unnoticed before a second one ends the process; a single operation of torch can take seconds"""
OVER = b"\0"
"""byte that tells the listener to end: no signal has this number"""

_entered: list[Interrupt] = []
"""interrupts whose handlers are installed, the outermost first"""


class Interrupt:
    """A context that catches SIGINT, SIGTERM and SIGHUP. A second SIGINT is a KeyboardInterrupt as always.

    Python hears of a signal between two of its own instructions. Native code that never returns has none, so a thread listens too:
    at a second signal, if the first was not heard for ``DEAF_S``, the process ends on the spot. Processes that an environment forks
    meanwhile obey signals as usual, and their signals are not taken for this one's.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        """the signal that asked for the end"""
        self._before: dict[int, Any] = {}
        self._took: dict[str, float] = {}
        """phase -> seconds that it took last time"""
        self._asked_at = 0.0
        self._reminder: threading.Timer | None = None
        self._phase: str | None = None
        self._since = 0.0
        self._listener: threading.Thread | None = None
        self._left = threading.Event()
        self._pipe = (-1, -1)
        """pipe that signals are written to, and the previous destination"""

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python delivers no signals
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants it
                    self._before[number] = signal.signal(number, self._handle)
            heard, said = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            os.set_blocking(heard, True)
            self._pipe = said, signal.set_wakeup_fd(said, warn_on_full_buffer=False)
            self._listener = threading.Thread(target=self._listen, args=(heard,), daemon=True)
            self._listener.start()
            _watch_forks()
            _entered.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        if self._reminder is not None:
            self._reminder.cancel()
            self._reminder.join()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._listener is not None:
            _entered.remove(self)
            said, before = self._pipe
            signal.set_wakeup_fd(before)
            self._left.set()
            os.write(said, OVER)  # closing it would not do: a fork may have it open
            self._listener.join()
            os.close(said)

    def _listen(self, heard: int) -> None:
        first: float | None = None
        with open(heard, "rb", buffering=0) as signals:
            while (number := signals.read(1)) != OVER:
                if number[0] not in self._before:
                    continue
                if first is None:
                    first = time.monotonic()
                elif self.asked is None:
                    self._left.wait(first + DEAF_S - time.monotonic())
                    if self.asked is None and not self._left.is_set():
                        _exit(128 + number[0])

    def _forget(self) -> None:
        """Restore the signals' previous handlers in a process that was forked."""
        signal.set_wakeup_fd(-1)
        os.close(self._pipe[0])
        self._listener = None  # it is the parent's
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def hurry(self, phase: str) -> Iterator[Callable[[], bool]]:
        """Time a phase. Yields a function that says whether to cut it short. A rollout is left by ``Stopped`` instead, raised from
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
        """Return whether the end was asked for so long ago that nothing may go on."""
        return self.asked is not None and time.monotonic() - self._asked_at > PATIENCE_S

    def _too_long(self) -> bool:
        """Return whether the phase would probably go on for longer after the signal than there is patience for."""
        if self.asked is None or self._phase is None:
            return False
        spent = time.monotonic() - self._since
        usual = self._took.get(self._phase, float("inf"))
        return self.overdue() or abs(usual - spent) > PATIENCE_S  # so long after its time it hangs

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            if self._phase == "rollout" and self.overdue() and not speaking():
                raise Stopped
            return
        self.asked, self._asked_at = number, time.monotonic()
        if self._phase == "rollout" and self._too_long() and not speaking():
            raise Stopped
        # an environment that hangs now would not return to be asked: remind ourselves
        self._reminder = threading.Timer(PATIENCE_S + 0.1, os.kill, (os.getpid(), signal.SIGTERM))
        self._reminder.daemon = True
        self._reminder.start()


@cache
def _watch_forks() -> None:
    """Register the hook for forks, once: it cannot be removed."""
    os.register_at_fork(after_in_child=_forget_all)


def _forget_all() -> None:
    while _entered:
        _entered.pop()._forget()
