"""What a worker does is asked of the system, not of its socket: nothing waits without a limit, and what arrives is looked at first."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

import fugu
from fugu.errors import EnvError, EnvTimeout, WorkerDied, signal_name
from fugu.vector.launch import Worker
from tests.conftest import descriptors
from tests.faults.faulty import BASE_EXCEPTIONS, Faulty, healthy, one_bad
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


class Starts(Faulty):
    """Says which descriptors a program has that it starts, and what a fork of it has."""

    def __init__(self) -> None:
        super().__init__()
        self.of_programs = self.started()

    def started(self):
        with tempfile.TemporaryDirectory() as folder:
            os.system(f"readlink /proc/self/fd/* > {folder}/descriptors")
            return (Path(folder) / "descriptors").read_text()

    def forked(self):
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.write(writing, "\n".join(descriptors()).encode())
            os._exit(0)
        os.close(writing)
        os.wait()
        with os.fdopen(reading) as file:
            return file.read()


def test_what_an_env_starts_inherits_no_line_to_the_parent():
    with fugu.vector.make(Starts, 2, backend="process", num_workers=2, isolate=True) as vec:
        vec.reset()
        for said in (vec.get_attr("of_programs"), vec.call("started")):
            assert not any("socket:" in each or "fugu-" in each for each in said), said
        assert not any("socket:" in each for each in vec.call("forked"))
        vec.step(ACTIONS[:2])


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


# --- what is no Exception ---


@pytest.mark.parametrize(
    ("fault", "phase"),
    [*((fault, "step") for fault in BASE_EXCEPTIONS), *(("panic", phase) for phase in ("make", "reset", "call"))],
)
@pytest.mark.parametrize(("backend", "bad"), [("serial", 2), ("process", 0), ("process", 3)])
def test_whatever_an_env_raises_is_its_error(fault, backend, bad, phase):
    with pytest.raises(EnvError, match=BASE_EXCEPTIONS[fault].__name__) as caught:
        with fugu.vector.make(one_bad(4, bad, fault, phase=phase), backend=backend, seed=5) as vec:
            vec.reset()
            if phase == "call":
                vec.call("now", fault, envs=[bad])
            for _ in range(4):
                vec.step(ACTIONS)
    assert (caught.value.envs, caught.value.phase) == ((bad,), phase)
    assert phase == "make" or len(caught.value.seeds) == 1
    assert "faulty.py" in caught.value.remote_traceback


@pytest.mark.parametrize(
    ("fault", "backend"), [*itertools.product(BASE_EXCEPTIONS, ["serial", "process"]), ("interrupt", "process")]
)
def test_an_env_is_replaced_whatever_it_raised(fault, backend):
    envs = one_bad(4, 3, fault, at=2)
    with fugu.vector.make(envs, backend=backend, on_error="restart", max_restarts=100) as vec:
        vec.reset()
        for _ in range(8):
            vec.step(ACTIONS)
        assert vec.restarts >= 2


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_an_env_whose_close_raises_anything_is_closed(backend):
    vec = fugu.vector.make(one_bad(4, 0, "panic", phase="close"), backend=backend)
    with pytest.warns(RuntimeWarning, match=r"env 0: Panic in close\(\)"):
        vec.close()


def test_a_fork_that_an_env_does_not_end_does_not_answer_for_it():
    with fugu.vector.make(one_bad(4, 3, "forked_exit"), backend="process", num_workers=2) as vec:
        vec.reset()
        for _ in range(6):
            vec.step(ACTIONS)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_a_training_is_saved_and_its_end_noted_whatever_an_env_raised(backend, tmp_path):
    settings = {"num_envs": 4, "steps": 10_000, "horizon": 8, "minibatch": 32, "backend": backend, "board": "off"}
    with pytest.raises(EnvError, match="Panic") as caught:
        fugu.train(LastsFor, env_kwargs={"after": 60}, runs=tmp_path, **settings)
    (run,) = tmp_path.iterdir()
    assert "saved at step" in str(caught.value)
    assert "Panic" in (run / "failed.txt").read_text()
    assert list((run / "checkpoints").glob("step_*"))
    assert not (run / "running").exists()


class LastsFor(Faulty):
    """Panics after some steps."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def step(self, action):
        self.left -= 1
        if not self.left:
            raise BASE_EXCEPTIONS["panic"]
        return super().step(action)


def test_check_finds_whatever_an_env_raises():
    report = fugu.check_env(partial(Faulty, fault="panic"), steps=20)
    assert any("Panic" in finding.problem for finding in report.findings if finding.where == "step()")
    report = fugu.check_env(partial(Faulty, fault="panic", phase="make"), steps=20)
    assert any("Panic" in finding.problem for finding in report.findings if finding.where == "__init__")


# --- the parent's end ---

ORPHANS = """
import os, signal, sys, fugu
from tests.faults.faulty import one_bad
vec = fugu.vector.make(one_bad(4, 3, {fault!r}, phase="reset"), backend="process", num_workers=2, isolate=True)
vec.reset()
pids = [worker.process.pid for worker in vec._runner._workers]
if {stopped}:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
print(*pids, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("fault", "stopped"), [("", True), ("orphan", False), ("fork", True)])
def test_stopped_workers_and_what_they_started_do_not_outlive_the_parent(fault, stopped):
    script = ORPHANS.format(fault=fault, stopped=stopped)
    program = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    with program:
        groups = {int(pid) for pid in program.stdout.readline().split()}
    assert len(groups) == 2
    began = time.monotonic()
    while left := [p for p in psutil.process_iter() if _group_of(p) in groups and p.status() != psutil.STATUS_ZOMBIE]:
        assert time.monotonic() < began + 10, left
        time.sleep(0.02)
    in_time(time.monotonic() - began, 1.5)


def _group_of(process):
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


# --- signals without names ---


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (34, "SIGRTMIN"), (37, r"SIGRTMIN\+3"), (63, r"SIGRTMIN\+29")])
def test_a_worker_that_any_signal_killed_is_named(number, name):
    with fugu.vector.make(healthy(), 2, backend="process", num_workers=2) as vec:
        vec.reset()
        os.kill(vec._runner._workers[0].process.pid, number)
        with pytest.raises(WorkerDied, match=rf"was killed by {name}(;|\n)") as caught:
            vec.step(ACTIONS[:2])
        assert caught.value.signal == number


def test_reserved_signals_have_numbers():
    assert (signal_name(32), signal_name(signal.SIGRTMIN), signal_name(99)) == ("signal 32", "SIGRTMIN", "signal 99")
