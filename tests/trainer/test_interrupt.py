"""What is cut short after Ctrl-C, and what is not."""

from __future__ import annotations

import signal

import pytest

from fugu.trainer import interrupt
from fugu.trainer.interrupt import PATIENCE_S, Interrupt


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only when told to."""
    now = [100.0]
    monkeypatch.setattr(interrupt.time, "monotonic", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def usual(asked: Interrupt, clock, seconds: float) -> None:
    with asked.hurry("update"):
        clock(seconds)


def test_a_phase_that_takes_a_little_longer_than_the_last_is_finished(clock):
    with Interrupt() as asked:
        usual(asked, clock, 0.1)
        with asked.hurry("update") as too_long:
            clock(0.05)
            signal.raise_signal(signal.SIGINT)
            assert not too_long()
            clock(0.2)  # longer than last time, and yet there is patience left
            assert not too_long()
            clock(PATIENCE_S)
            assert too_long()


def test_a_phase_that_would_take_too_long_is_cut_at_once(clock):
    with Interrupt() as asked:
        with asked.hurry("update") as too_long:  # nobody knows how long the first one takes
            signal.raise_signal(signal.SIGINT)
            assert too_long()
    with Interrupt() as asked:
        usual(asked, clock, 10.0)
        with asked.hurry("update") as too_long:
            signal.raise_signal(signal.SIGINT)
            assert too_long()
            clock(9.0)
            assert too_long()  # patience is over
