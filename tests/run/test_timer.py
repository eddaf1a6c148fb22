"""Every second is in exactly one phase."""

from __future__ import annotations

import time

import pytest

from fugu.run.timer import Timer, shares
from tests.timing import in_time


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("fugu.run.timer.perf_counter", clock)
    return clock


def test_time_goes_to_the_innermost_phase_and_the_rest_to_other(clock: Clock) -> None:
    timer = Timer()
    clock.now += 1
    with timer("env"):
        clock.now += 2
        with timer("copy"):
            clock.now += 4
            with timer("copy"):
                clock.now += 8
        clock.now += 16
    clock.now += 32
    assert timer.take() == {"other": 33, "env": 18, "copy": 12}


def test_switching_needs_no_blocks(clock: Clock) -> None:
    timer = Timer()
    for phase, seconds in (("env", 1), ("inference", 2), ("env", 4), ("other", 8)):
        timer.start(phase)
        clock.now += seconds
    assert timer.take() == {"other": 8, "env": 5, "inference": 2}


def test_a_phase_that_is_still_going_on_is_split_by_take(clock: Clock) -> None:
    timer = Timer()
    with timer("update"):
        clock.now += 3
        assert timer.take() == {"other": 0, "update": 3}
        clock.now += 4
    clock.now += 1
    assert timer.take() == {"other": 1, "update": 4}
    assert timer.take() == {"other": 0, "update": 0}


def test_an_exception_leaves_the_phase(clock: Clock) -> None:
    timer = Timer()
    with pytest.raises(ZeroDivisionError), timer("env"):
        clock.now += 1
        raise ZeroDivisionError
    clock.now += 2
    assert timer.take() == {"other": 2, "env": 1}


def test_shares_add_up_to_one() -> None:
    assert shares({"env": 3.0, "other": 1.0}) == {"time/env": 0.75, "time/other": 0.25}
    assert shares({"other": 0.0}) == {"time/other": 0.0}


def test_a_switch_costs_about_a_microsecond_at_most() -> None:
    timer = Timer()
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(1000):
            with timer("env"):
                pass
        best = min(best, time.perf_counter() - start)
    in_time(best / 1000, 3e-6)  # measured 0.6; loose for slow machines
