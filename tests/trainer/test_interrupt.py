"""Signals while training: what is nearly done is finished, what is not is left."""

from __future__ import annotations

import os
import signal
import time

import pytest

from fugu.rollout.onpolicy import Stopped
from fugu.trainer import interrupt as module
from fugu.trainer.interrupt import Interrupt


def spend(interrupt: Interrupt, phase: str, seconds: float) -> None:
    with interrupt.hurry(phase):
        time.sleep(seconds)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.3)


def test_a_rollout_that_is_nearly_done_is_finished():
    with Interrupt() as interrupt:
        spend(interrupt, "rollout", 0.2)
        with interrupt.hurry("rollout"):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)
        assert interrupt.asked == signal.SIGTERM


def test_a_rollout_that_takes_longer_than_ever_is_left_at_once():
    with Interrupt() as interrupt:
        spend(interrupt, "rollout", 0.05)
        with pytest.raises(Stopped), interrupt.hurry("rollout"):
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)


def test_a_rollout_that_hangs_after_the_signal_is_left_when_patience_is_over():
    with Interrupt() as interrupt:
        spend(interrupt, "rollout", 0.25)
        began = time.monotonic()
        with pytest.raises(Stopped), interrupt.hurry("rollout"):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        assert 0.3 < time.monotonic() - began < 2


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
