"""What a worker does is asked of the system, not of its socket: nothing waits without a limit, and what arrives is looked at first."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

import fugu
from fugu.errors import EnvTimeout, WorkerDied
from fugu.vector.launch import Worker
from tests.faults.faulty import Faulty, healthy, one_bad
from tests.timing import in_time

pytestmark = pytest.mark.usefixtures("no_leaks")

ACTIONS = np.zeros(4, np.int64)
LARGE = b"x" * 2_000_000
"""more than a socket holds"""


def stop(vec, worker=-1):
    os.kill(vec._runner._workers[worker].process.pid, signal.SIGSTOP)


def close_quickly(vec):
    start = time.monotonic()
    vec.close()
    in_time(time.monotonic() - start, 5)


# --- death, while a process that the worker started holds its socket ---


@pytest.mark.parametrize("phase", ["make", "reset", "step", "call"])
def test_death_is_seen_while_a_child_holds_the_socket(phase):
    start = time.monotonic()
    with pytest.raises(WorkerDied) as caught:
        with fugu.vector.make(one_bad(4, 3, "die_forked", phase=phase), backend="process", num_workers=2) as vec:
            vec.reset()
            start = time.monotonic()
            if phase == "call":
                vec.call("now", "die_forked", envs=[3])
            for _ in range(4):
                vec.step(ACTIONS)
    in_time(time.monotonic() - start, 6 if phase == "make" else 2)  # the close is part of it
    assert (caught.value.signal, caught.value.phase) == (signal.SIGKILL, phase)


# --- sends to a worker that does not read ---


@pytest.mark.parametrize("how", ["reset", "call", "set_attr"])
def test_a_send_to_a_stopped_worker_ends_at_the_timeout(how):
    vec = fugu.vector.make(healthy(), 4, backend="process", num_workers=2, step_timeout=0.4, reset_timeout=0.4)
    vec.reset()
    stop(vec)
    start = time.monotonic()
    with pytest.raises(EnvTimeout, match="stopped by a signal") as caught:
        if how == "reset":
            vec.reset(options={"large": LARGE})
        elif how == "call":
            vec.call("now", "nothing", LARGE)
        else:
            vec.set_attr("large", LARGE)
    in_time(time.monotonic() - start, 1.4)
    assert caught.value.worker == 1 and set(caught.value.envs) <= {2, 3}
    close_quickly(vec)


def test_a_factory_for_a_stopped_worker_ends_at_the_timeout(monkeypatch):
    started = Worker.__init__

    def stopped(self, *arguments):
        started(self, *arguments)
        os.kill(self.process.pid, signal.SIGSTOP)

    monkeypatch.setattr(Worker, "__init__", stopped)
    start = time.monotonic()
    with pytest.raises(EnvTimeout, match="start_timeout"):
        fugu.vector.make(lambda: (LARGE, Faulty())[1], 4, backend="process", num_workers=2, start_timeout=0.4)
    in_time(time.monotonic() - start, 4)


def test_others_get_what_is_sent_while_one_is_stopped():
    settings = {"num_workers": 2, "isolate": True, "reset_timeout": 1.0, "on_error": "restart", "max_restarts": 1}
    with fugu.vector.make(healthy(), 4, backend="process", **settings) as vec:
        vec.reset()
        stop(vec, 0)
        infos = vec.reset(options={"large": LARGE})[1]
        assert sorted(infos) == [0, 1] and vec.restarts == 1  # the one that was not stopped is there still
        vec.step(ACTIONS)


def test_a_large_send_passes_a_large_answer_that_nobody_read():
    with fugu.vector.make(one_bad(4, 3, "big_info", at=1), backend="process", num_workers=2, reset_timeout=10) as vec:
        vec.reset()
        vec.send(ACTIONS)
        start = time.monotonic()
        vec.reset(options={"large": LARGE})
        in_time(time.monotonic() - start, 3)
