"""Hand-over between the parent and its workers: who has what to do, and who is done.

The readable reference of native/control.h, with the same memory and the same methods, and the fallback where the native core
is missing: it polls and naps instead of sleeping on a futex, so it is slower to answer and not quite idle when idle. It counts
on stores becoming visible in order, as on x86.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fugu.native import native

LINE_WORDS = 32  # 128 bytes
SEQ, COMMAND, SLOT = 0, 1, 2
STATUS, PROGRESS = 1, 2


class PollingControl:
    """``memory`` is one line for the bell (unused here), a line per worker for commands, and one per worker for answers."""

    def __init__(self, buffer: Any, workers: int, max_spin_us: float) -> None:
        words = np.frombuffer(buffer, np.uint32, count=LINE_WORDS * (1 + 2 * workers))
        lines = words.reshape(1 + 2 * workers, LINE_WORDS)
        self._commands, self._dones = lines[1 : 1 + workers], lines[1 + workers :]
        self._spin_s = max_spin_us * 1e-6
        self._taken = np.uint32(0)
        """sequence number of the command being carried out; a later one may be posted meanwhile"""

    @staticmethod
    def bytes(workers: int) -> int:
        return 4 * LINE_WORDS * (1 + 2 * workers)

    # --- parent ---

    def post(self, worker: int, command: int, slot: int) -> None:
        line = self._commands[worker]
        line[COMMAND], line[SLOT] = command, slot
        line[SEQ] = (int(line[SEQ]) + 1) & 0xFFFFFFFF

    def done(self, worker: int) -> bool:
        return bool(self._dones[worker, SEQ] == self._commands[worker, SEQ])

    def status(self, worker: int) -> int:
        return int(self._dones[worker, STATUS])

    def seq(self, worker: int) -> int:
        """Return the sequence number of the command posted last."""
        return int(self._commands[worker, SEQ])

    def progress(self, worker: int) -> int:
        return int(self._dones[worker, PROGRESS])

    def settle(self, worker: int) -> None:
        """Count as delivered what a lost worker still owed."""
        self._dones[worker, STATUS] = 0
        self._dones[worker, SEQ] = self._commands[worker, SEQ]

    def wait_all(self, low: int, high: int, timeout_s: float) -> bool:
        return self._wait(lambda: bool((self._dones[low:high, SEQ] == self._commands[low:high, SEQ]).all()), timeout_s) > 0

    def wait_any(self, ranges: Sequence[tuple[int, int]], timeout_s: float) -> int:
        """Return the index of the first range whose workers are all done, or -1 after the timeout."""

        def ready() -> int:
            for i, (low, high) in enumerate(ranges):
                if (self._dones[low:high, SEQ] == self._commands[low:high, SEQ]).all():
                    return i + 1
            return 0

        return int(self._wait(ready, timeout_s)) - 1

    # --- worker ---

    def wait_command(self, worker: int, timeout_s: float) -> bool:
        seen = self._dones[worker, SEQ]
        if not self._wait(lambda: bool(self._commands[worker, SEQ] != seen), timeout_s):
            return False
        self._taken = self._commands[worker, SEQ]
        return True

    def command(self, worker: int) -> int:
        return int(self._commands[worker, COMMAND])

    def slot(self, worker: int) -> int:
        return int(self._commands[worker, SLOT])

    def taken(self) -> int:
        """Return the sequence number of the command being carried out."""
        return int(self._taken)

    def set_progress(self, worker: int, value: int) -> None:
        self._dones[worker, PROGRESS] = value

    def finish(self, worker: int, status: int) -> None:
        self._dones[worker, STATUS] = status
        self._dones[worker, SEQ] = self._taken

    def _wait(self, ready: Callable[[], int], timeout_s: float) -> int:
        start = time.monotonic()
        nap = 20e-6
        while not (found := ready()):
            waited = time.monotonic() - start
            if waited >= timeout_s:
                return 0
            if waited <= self._spin_s:
                os.sched_yield()
            else:
                time.sleep(nap)
                nap = min(nap * 1.5, 2e-3)
        return found


Control: Any = PollingControl if native is None else native.Control


def progress_word(head: np.ndarray, workers: int, worker: int) -> memoryview:
    """Return the word of ``worker``'s line that says which env it is running; cheap to assign from Python."""
    start = 4 * (LINE_WORDS * (1 + workers + worker) + PROGRESS)
    return memoryview(head.data)[start : start + 4].cast("I")
