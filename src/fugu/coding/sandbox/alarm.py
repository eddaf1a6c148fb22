"""A deadline as a descriptor."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time


class Alarm:
    """A descriptor that becomes readable after some seconds, so that a caller that waits on ``fileno`` also wakes up for deadlines.
    Where the system has none (not Linux) it is never readable, and deadlines are kept by those who call ``collect`` with a timeout."""

    def __init__(self) -> None:
        self.fd = -1
        if sys.platform == "linux":
            self.libc = ctypes.CDLL(None, use_errno=True)
            self.fd = self.libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)

    def set(self, seconds: float) -> None:
        if self.fd >= 0:
            whole = int(seconds)
            spec = (ctypes.c_long * 4)(0, 0, whole, max(1, int((seconds - whole) * 1e9)))
            self.libc.timerfd_settime(self.fd, 0, ctypes.byref(spec), None)

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 8)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
