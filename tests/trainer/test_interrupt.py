"""Signals while training: what is nearly done is finished, what is not is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fugu.rollout.source import Stopped
from fugu.trainer import interrupt as module
from fugu.trainer.interrupt import Interrupt
from tests.timing import in_time


class Clock:
    """Stands still unless told otherwise, so that a busy machine does not decide what took how long."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "PATIENCE_S", 0.3)
    return clock


def spend(interrupt: Interrupt, phase: str, clock: Clock, seconds: float) -> None:
    with interrupt.hurry(phase):
        clock.now += seconds


def test_a_rollout_that_is_nearly_done_is_finished(clock):
    with Interrupt() as interrupt:
        spend(interrupt, "rollout", clock, 0.2)
        with interrupt.hurry("rollout"):
            os.kill(os.getpid(), signal.SIGTERM)
            clock.now += 0.05
        assert interrupt.asked == signal.SIGTERM


def test_a_phase_that_takes_a_little_longer_than_the_last_is_finished(clock):
    with Interrupt() as interrupt:
        spend(interrupt, "update", clock, 0.05)
        with interrupt.hurry("update") as too_long:
            clock.now += 0.04
            os.kill(os.getpid(), signal.SIGINT)
            assert not too_long()
            clock.now += 0.2  # longer than last time, and yet there is patience left
            assert not too_long()
            clock.now += 0.2
            assert too_long()


def test_an_update_that_would_take_too_long_is_left_at_once(clock):
    with Interrupt() as interrupt, interrupt.hurry("update") as too_long:  # nobody knows how long the first one takes
        os.kill(os.getpid(), signal.SIGINT)
        assert too_long()
    with Interrupt() as interrupt:
        spend(interrupt, "update", clock, 1.0)
        with interrupt.hurry("update") as too_long:
            os.kill(os.getpid(), signal.SIGINT)
            assert too_long()


def test_a_rollout_that_takes_much_longer_than_ever_is_left_at_once(clock):
    with Interrupt() as interrupt:
        spend(interrupt, "rollout", clock, 0.05)
        with pytest.raises(Stopped), interrupt.hurry("rollout"):
            clock.now += 0.4
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("it went on")


def test_a_rollout_that_hangs_after_the_signal_is_left_when_patience_is_over(clock):
    began = time.monotonic()
    with Interrupt() as interrupt:
        spend(interrupt, "rollout", clock, 0.25)
        with pytest.raises(Stopped), interrupt.hurry("rollout"):
            os.kill(os.getpid(), signal.SIGINT)
            clock.now += 0.35  # not left at once
            time.sleep(60)
    took = time.monotonic() - began
    assert took > 0.3
    in_time(took, 30)


def test_a_second_ctrl_c_is_one():
    with pytest.raises(KeyboardInterrupt), Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        assert interrupt.asked
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)


def test_handlers_are_as_before_afterwards():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Interrupt():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_closed_terminal_ends_training_like_any_signal_unless_that_is_ignored(monkeypatch):
    with Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGHUP)
        assert interrupt.asked == signal.SIGHUP
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with Interrupt() as interrupt:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupt.asked is None
    finally:
        signal.signal(signal.SIGHUP, before)


DEAF = """
import ctypes, sys
from fugu.trainer import interrupt
from fugu.trainer.interrupt import Interrupt
interrupt.DEAF_S = 3.0
libc, lock = ctypes.CDLL(None), ctypes.create_string_buffer(256)
with Interrupt():
    libc.pthread_mutex_lock(lock)
    print("now", flush=True)
    libc.pthread_mutex_lock(lock)  # native code that never returns, whatever signals come
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_what_is_stuck_in_native_code(number):
    process = subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "now\n"
    main = Path(f"/proc/{process.pid}/task/{process.pid}/stat")
    while main.read_text().rpartition(")")[2].split()[0] != "S":  # until it sleeps it could still hear
        time.sleep(0.01)
    process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    process.send_signal(number)
    assert process.wait(10) == 128 + number
    process.stdout.close()


SLOW = """
import hashlib, os, signal, threading, time
from fugu.trainer.interrupt import Interrupt
start = time.perf_counter()
hashlib.pbkdf2_hmac("sha256", b"", b"", 100_000)
rounds = int(100_000 * 2.5 / (time.perf_counter() - start))
for after, number in ((0.1, signal.SIGTERM), (0.2, signal.SIGHUP)):
    threading.Timer(after, os.kill, (os.getpid(), number)).start()
with Interrupt() as interrupt:
    hashlib.pbkdf2_hmac("sha256", b"", b"", rounds)  # one native call of some seconds
print("saved", interrupt.asked is not None)
"""


def test_signals_that_come_together_wait_for_an_operation_that_takes_its_time():
    out = subprocess.run([sys.executable, "-c", SLOW], capture_output=True, text=True, timeout=60)
    assert (out.returncode, out.stdout) == (0, "saved True\n"), out


def test_what_is_forked_obeys_signals_and_its_own_are_not_taken_for_ours(monkeypatch):
    """As by an environment that has helpers of its own; they outlive the training."""
    monkeypatch.setattr(module, "DEAF_S", 0.0)
    children = []
    with Interrupt() as interrupt:
        for _ in range(2):
            if (pid := os.fork()) == 0:
                time.sleep(60)
                os._exit(0)
            children.append(pid)
        time.sleep(0.1)
        for pid in children[:1] * 2:
            os.kill(pid, signal.SIGTERM)
        assert os.WTERMSIG(os.waitpid(children[0], 0)[1]) == signal.SIGTERM
        time.sleep(0.2)  # for a listener that is mistaken
        assert interrupt.asked is None
    os.kill(children[1], signal.SIGTERM)
    assert os.WTERMSIG(os.waitpid(children[1], 0)[1]) == signal.SIGTERM


def test_what_is_forked_may_leave_the_context_too():
    child = None
    try:
        with Interrupt():
            child = os.fork()
        status = 0
    except BaseException:
        status = 1
    if child == 0:
        os._exit(status)
    assert child is not None and os.waitpid(child, 0)[1] == status == 0


def test_nothing_is_left_of_listening(no_leaks):
    before = signal.set_wakeup_fd(-1)
    for _ in range(3):
        with Interrupt():
            pass
    assert signal.set_wakeup_fd(before) == -1
