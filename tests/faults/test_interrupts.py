"""Ctrl-C, SIGTERM and SIGKILL of the parent, in every phase: it ends at once and takes its workers along."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

import fugu
from fugu.vector.launch import Worker, anonymous_file, end_all
from tests.faults.faulty import Faulty
from tests.timing import gone_in, in_time

PROGRAM = r"""
import functools, os, sys, time
import numpy as np
import fugu
from tests.faults.faulty import Faulty

phase, backend = sys.argv[1], sys.argv[2]

class Slow(Faulty):
    def _do(self, now):
        if now == phase or (phase == "busy" and now == "reset"):
            os.write(1, b"now\n")
        if now == phase:
            time.sleep(60)
        super()._do(now)

def main():
    vec = fugu.vector.make(functools.partial(Slow, fault="x"), 6, backend=backend, num_workers=None if backend == "serial" else 3)
    vec.reset()
    actions = np.zeros(6, np.int64)
    if phase == "idle":
        print("now", flush=True)
        time.sleep(60)
    while True:
        vec.step(actions)
        if phase == "close":
            vec.close()

main()
"""


def start(phase: str, backend: str) -> tuple[subprocess.Popen, list[psutil.Process]]:
    """Run PROGRAM until it is in ``phase``; the processes it has started by then."""
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, phase, backend],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "now\n", child.communicate()[1]
    time.sleep(0.2)
    return child, psutil.Process(child.pid).children(recursive=True)


def end(child: subprocess.Popen, workers: list[psutil.Process], seconds: float) -> tuple[int, str]:
    began = time.monotonic()
    _, errors = child.communicate(timeout=60)
    took = time.monotonic() - began
    gone_in(workers, 1)
    in_time(took, seconds)
    return child.returncode, errors


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("phase", ["make", "reset", "step", "busy", "idle", "close"])
def test_ctrl_c_ends_the_program_and_its_workers(phase, backend):
    child, workers = start(phase, backend)
    assert len(workers) == (0 if backend == "serial" else 2)
    os.killpg(child.pid, signal.SIGINT)  # what a terminal does: the whole foreground group
    code, errors = end(child, workers, seconds=4)
    assert code == -signal.SIGINT
    assert errors.count("Traceback (most recent call last)") == 1, errors  # the program's own, none from workers
    assert "KeyboardInterrupt" in errors


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("phase", ["make", "step", "busy", "idle"])
def test_workers_end_with_a_parent_that_dies(phase, how):
    child, workers = start(phase, "process")
    assert len(workers) == 2
    os.kill(child.pid, how)
    code, _ = end(child, workers, seconds=1)
    assert code == -how


def test_workers_end_with_a_parent_even_if_an_env_holds_the_gil():
    program = """
import numpy as np, fugu
from tests.faults.faulty import one_bad
vec = fugu.vector.make(one_bad(6, 5, "hold_gil", at=1), backend="process", num_workers=3)
vec.reset()
print("now", flush=True)
vec.step(np.zeros(6, np.int64))
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "now\n"
    time.sleep(0.3)
    workers = psutil.Process(child.pid).children(recursive=True)
    child.kill()
    end(child, workers, seconds=1)


def test_a_program_that_forgets_to_close_ends_cleanly():
    program = """
import numpy as np, fugu
from tests.faults.faulty import healthy
vec = fugu.vector.make(healthy(), 6, backend="process", num_workers=3)
vec.reset()
vec.step(np.zeros(6, np.int64))
"""
    began = time.monotonic()
    out = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)
    assert (out.returncode, out.stderr) == (0, "")
    in_time(time.monotonic() - began, 4)


def test_a_script_needs_no_main_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        """
import gymnasium, numpy as np, fugu

class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.ones(2, np.float32), 1.0, False, False, {}

vec = fugu.vector.make(Mine, 4, backend="process", num_workers=2)
vec.reset()
print(vec.step(np.zeros(4, np.int64))[1].sum())
vec.close()
"""
    )
    out = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (out.returncode, out.stdout.strip(), out.stderr) == (0, "4.0", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_leaves_signals_to_the_parent_from_its_first_moment(number):
    worker = Worker(0, range(1), memory := anonymous_file("fugu-rows"))
    try:
        for _ in range(24):  # before, while and after Python starts in it
            os.kill(worker.process.pid, number)
            assert not worker.exited(wait=0.05)
        worker.mailbox.shutdown()
        assert worker.exited(wait=2)
        assert worker.death("make", ()).exitcode == 0
    finally:
        end_all([worker])
        os.close(memory)


class Launcher(Faulty):
    """Starts a program and forks, as simulators do, and asks both to end."""

    def reset(self, *, seed=None, options=None):
        program = subprocess.Popen(["sleep", "60"])
        program.terminate()
        forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        forked.start()
        forked.terminate()
        obs, _ = super().reset(seed=seed)
        forked.join(5)
        return obs, {"ended": (program.wait(5), forked.exitcode)}


def test_processes_that_an_environment_starts_can_be_ended_by_it():
    with fugu.vector.make(Launcher, 1, backend="process", num_workers=1, isolate=True) as vec:
        _, info = vec.reset()
    assert info[0]["ended"] == (-signal.SIGTERM, -signal.SIGTERM)
