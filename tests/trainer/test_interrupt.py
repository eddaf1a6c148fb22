"""Signals while training: what is nearly done is finished, what is not is left."""

from __future__ import annotations

import os
import signal
import time

import pytest

from fugu.rollout.onpolicy import Stopped
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
