"""``apart``: whatever an environment leaves behind or leaves half done in its process, the command goes on, and nothing is left."""

from __future__ import annotations

import gc
import multiprocessing.connection
import os
import signal
import struct
import time
from multiprocessing import resource_tracker

import psutil
import pytest

from fugu.cli.apart import Ended, apart
from tests.faults.faulty import fork
from tests.timing import gone_in, in_time

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture(autouse=True)
def tracker():
    """Python's own helper for processes that are spawned, which stays."""
    resource_tracker.ensure_running()


def leave_child() -> int:
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
        os._exit(0)
    return pid


def answer_half() -> None:
    """Begin an answer and die, while another process has the pipe open."""
    for end in gc.get_objects():
        if isinstance(end, multiprocessing.connection.Connection) and not end.closed and end.writable:
            os.write(end.fileno(), struct.pack("=Q", 1000) + struct.pack("!i", 1000))
    fork()
    os.kill(os.getpid(), signal.SIGKILL)


def large() -> bytes:
    return b"x" * 5_000_000


def test_what_an_environment_started_ends_with_its_process():
    pid = apart(leave_child, timeout=20)
    if psutil.pid_exists(pid):
        gone_in([psutil.Process(pid)], 1)


def test_half_an_answer_is_none():
    start = time.monotonic()
    with pytest.raises(Ended, match=r"signal 9 \(SIGKILL\)"):
        apart(answer_half, timeout=20)
    in_time(time.monotonic() - start, 8)


def test_a_large_answer_arrives():
    assert apart(large, timeout=20) == large()


def test_a_signal_without_a_name_is_told():
    with pytest.raises(Ended, match=r"signal 37 \(SIGRTMIN\+3\)"):
        apart(die_by, 37, timeout=20)


def die_by(number: int) -> None:
    os.kill(os.getpid(), number)
