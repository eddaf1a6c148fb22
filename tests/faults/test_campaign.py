"""Many faults at random: kills, stops, crashes and children that hold sockets, under the process backend. Each ends in a typed error
within a second, or in a restart; closing takes at most five; nothing is left.

``FUGU_FAULTS=1000 FUGU_FAULTS_SEED=1 pytest -s -m slow tests/faults/test_campaign.py`` tries more of them, or others, and says how
long they took. A limit that is missed is tried again, twice, as everywhere in these tests: other programs can add to any time.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import psutil
import pytest

import fugu
from fugu.errors import EnvError, EnvTimeout, WorkerDied
from tests.conftest import children, descriptors, mappings
from tests.faults.faulty import Faulty, fork, healthy

FAULTS = int(os.environ.get("FUGU_FAULTS", "80"))
SEED = int(os.environ.get("FUGU_FAULTS_SEED", "0"))

STOPPED_S = 0.5
"""how long a step may take where a worker is stopped, which is noticed only by that"""
KINDS = {
    "kill": (WorkerDied, signal.SIGKILL),
    "segfault": (WorkerDied, signal.SIGSEGV),
    "abort": (WorkerDied, signal.SIGABRT),
    "real-time": (WorkerDied, signal.SIGRTMIN + 3),
    "os_exit": (WorkerDied, None),
    "stop": (EnvTimeout, None),
    "panic": (EnvError, None),
    "end_of_file": (EnvError, None),
}
FROM_OUTSIDE = ("kill", "segfault", "abort", "real-time", "stop")
SIGNALS = {name: number or signal.SIGSTOP for name, (_, number) in KINDS.items() if name in FROM_OUTSIDE}


@dataclass(frozen=True)
class Case:
    kind: str
    phase: str
    outside: bool
    restart: bool
    batched: bool
    holds: bool
    """a child that the environment has forked holds all that the worker has open"""
    at: int

    @classmethod
    def drawn(cls, rng: random.Random) -> Case:
        outside = rng.random() < 0.4
        kind = rng.choice(FROM_OUTSIDE if outside else list(KINDS))
        phase = rng.choice(["reset", "step", "step", "step", "call"]) if kind != "stop" or outside else "step"
        restart = phase == "step" and rng.random() < 0.4
        return cls(kind, phase, outside, restart, phase == "step" and rng.random() < 0.3, rng.random() < 0.5, rng.randint(1, 4))


class Victim(Faulty):
    def __init__(self, case: Case) -> None:
        super().__init__(case.kind, case.phase if not case.outside else "never", case.at)
        self.holds, self.resets = case.holds, 0

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        if self.holds and self.resets == 1:
            fork()
        return super().reset(seed=seed, options=options)

    def _do(self, phase):
        if phase == "reset" and self.resets < 2:
            return  # the first goes well
        if phase == self.phase and self.fault == "abort":
            os.abort()
        if phase == self.phase and self.fault == "real-time":
            os.kill(os.getpid(), signal.SIGRTMIN + 3)
        if phase == self.phase and self.fault == "end_of_file":
            raise EOFError
        super()._do(phase)


def suffer(case: Case, sessions: set[int]) -> tuple[float, float]:
    """Seconds until the error, 0 for a restart, and seconds to close. ``sessions`` gets those of the workers."""
    limit = STOPPED_S if case.kind == "stop" else 60.0
    settings = {"on_error": "restart" if case.restart else "raise", "step_timeout": limit, "reset_timeout": limit}
    settings |= {"batch_size": 2} if case.batched else {}
    envs = [healthy(), healthy(), healthy(), partial(Victim, case)]
    vec = fugu.vector.make(envs, backend="process", num_workers=2, seed=1, **settings)
    took = 0.0
    sessions |= {worker.process.pid for worker in vec._runner._workers}
    try:
        vec.async_reset()
        rows = vec.recv()
        kind, number = KINDS[case.kind]
        if case.restart:
            for step in range(30):
                if case.outside and step == case.at:
                    os.kill(vec._runner._workers[-1].process.pid, SIGNALS[case.kind])
                vec.send(np.zeros(len(rows.obs), np.int64))
                rows = vec.recv()
                if vec.restarts:
                    break
            assert vec.restarts >= 1, "nothing was restarted"
        else:
            with pytest.raises(kind) as caught:
                _until_error(vec, case)
            error = caught.value
            assert number is None or (error.signal == number and "killed by" in str(error))
            assert type(error) is kind and error.phase == case.phase and set(error.envs) <= {2, 3} and len(error.seeds) >= 1
            took = time.monotonic() - _Began.at
    finally:
        sessions |= {worker.process.pid for worker in vec._runner._workers}
        began = time.monotonic()
        vec.close()
        closing = time.monotonic() - began
    return took, closing


class _Began:
    at = 0.0
    """when the call began that the fault struck in, or when the signal was sent"""


def _until_error(vec, case: Case) -> None:
    for step in range(12):
        _Began.at = time.monotonic()
        if case.outside and step == case.at:
            os.kill(vec._runner._workers[-1].process.pid, SIGNALS[case.kind])
        if case.phase == "step":
            if vec._received is not None:
                vec.send(np.zeros(len(vec.rows.obs), np.int64))
            vec.recv()
        elif case.phase == "reset":
            vec.reset(options={"large": b"x" * 500_000} if case.at % 2 else None)
        else:
            vec.call("now", "" if case.outside else case.kind, b"x" * 500_000 if case.at % 2 else None, envs=[3])
    raise AssertionError(f"no error came: {case}")


def left(found: Callable[[], Any]) -> Any:
    """What is still found two seconds later: a process that is killed takes a moment to go."""
    until = time.monotonic() + 2
    while (there := found()) and time.monotonic() < until:
        time.sleep(0.01)
    return there


@pytest.mark.slow
@pytest.mark.timeout(60 + 20 * FAULTS)
def test_every_fault_ends_in_time_and_leaves_nothing():
    rng = random.Random(SEED)
    suffer(Case("kill", "step", True, False, False, False, 1), set())  # what is made once
    gc.collect()
    before = children(), descriptors(), len(mappings()), set(os.listdir("/dev/shm"))
    sessions: set[int] = set()
    errors, closings, kinds, late = [], [], collections.Counter(), 0
    for number in range(FAULTS):
        case = Case.drawn(rng)
        for again in range(3):
            took, closing = suffer(case, sessions)
            assert not left(lambda: children() - before[0]), case
            if took <= 1 and closing <= 5:
                break
            late += 1
            assert again < 2, f"fault {number}: {took:.2f} s to the error, {closing:.2f} s to close: {case}"
        kinds[f"{case.kind}{' restarted' if case.restart else ''}"] += 1
        errors += [took] if not case.restart else []
        closings.append(closing)
        if number % 20 == 19 or number == FAULTS - 1:
            gc.collect()
            assert descriptors() <= before[1] and len(mappings()) <= before[2] and set(os.listdir("/dev/shm")) <= before[3]
            assert not left(lambda: _in_sessions(sessions))
            sessions.clear()
    print(f"\n{FAULTS} faults, seed {SEED}: {dict(kinds)}; {late} tried again")
    for what, seconds in (("error", errors), ("close", closings)):
        median, most = np.median(seconds), max(seconds)
        print(f"seconds to {what}: median {median:.3f}, 99% {np.quantile(seconds, 0.99):.3f}, most {most:.3f}")


def _in_sessions(sessions: set[int]) -> list[int]:
    """Processes in one of these sessions: those of workers."""
    found = []
    for process in psutil.pids():
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(process) in sessions:
                found.append(process)
    return found
