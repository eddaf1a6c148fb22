"""Workers that die, hang or misbehave: a typed error in time, a close in time, nothing left behind."""

from __future__ import annotations

import functools
import gc
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest

import fugu
from fugu.errors import CallOrderError, ConfigError, EnvError, EnvTimeout, WorkerDied
from fugu.vector.seeds import env_seeds
from tests.faults.faulty import Faulty, healthy, one_bad
from tests.timing import gone_in, in_time

pytestmark = pytest.mark.usefixtures("no_leaks")

ACTIONS = np.zeros(8, np.int64)


def two(backend):
    """Two shards, where the backend has shards."""
    return {"num_workers": 2} if backend == "process" else {}


def step_until_error(vec, limit=12):
    """The error that stepping ends in, and how long the step that raised it took."""
    for _ in range(limit):
        start = time.monotonic()
        try:
            vec.step(ACTIONS)
        except fugu.FuguError as error:
            return error, time.monotonic() - start
    raise AssertionError("no error came")


def close_quickly(vec):
    start = time.monotonic()
    vec.close()
    in_time(time.monotonic() - start, 5)


@pytest.mark.parametrize("isolate", [False, True])
def test_killed_worker_is_named_within_a_second(isolate):
    vec = fugu.vector.make(healthy(), 8, backend="process", num_workers=2, isolate=isolate, seed=5)
    vec.reset()
    vec.step(ACTIONS)
    worker = vec._runner._workers[-1]
    os.kill(worker.process.pid, signal.SIGKILL)
    error, took = step_until_error(vec)
    assert isinstance(error, WorkerDied)
    in_time(took, 1)
    assert error.signal == signal.SIGKILL
    assert error.worker == 1
    assert error.envs == (4, 5, 6, 7)
    assert len(set(error.seeds)) == 4
    assert "SIGKILL" in str(error) and "worker 1" in str(error) and "envs 4..7" in str(error)
    with pytest.raises(CallOrderError):
        vec.step(ACTIONS)
    close_quickly(vec)


@pytest.mark.parametrize(
    ("fault", "signum", "code"),
    [("kill", signal.SIGKILL, None), ("segfault", signal.SIGSEGV, None), ("os_exit", None, 0)],
)
@pytest.mark.parametrize("phase", ["make", "reset", "step"])
def test_env_that_takes_its_process_down_is_reported(fault, signum, code, phase):
    start = time.monotonic()
    with pytest.raises(WorkerDied) as caught:
        with fugu.vector.make(one_bad(8, 6, fault, phase=phase), backend="process", num_workers=2) as vec:
            vec.reset()
            for _ in range(5):
                vec.step(ACTIONS)
    in_time(time.monotonic() - start, 6)
    assert (caught.value.signal, caught.value.exitcode) == (signum, code)
    assert caught.value.phase == phase
    assert 6 in caught.value.envs
    if fault == "segfault":
        assert "faulty.py" in caught.value.remote_traceback  # faulthandler saw where


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("bad", [1, 6])  # in the caller's own shard, and in a worker
@pytest.mark.parametrize("phase", ["make", "reset", "step"])
def test_exception_in_env_keeps_type_text_place_and_traceback(backend, bad, phase):
    with pytest.raises(EnvError) as caught:
        with fugu.vector.make(one_bad(8, bad, "raise", phase=phase), backend=backend, seed=7, **two(backend)) as vec:
            vec.reset()
            for _ in range(5):
                vec.step(ACTIONS)
    error = caught.value
    assert error.envs == (bad,)
    assert error.phase == phase
    assert f"ValueError: the env broke in {phase}" in str(error)
    assert "faulty.py" in error.remote_traceback
    if phase != "make":
        assert error.seeds == (env_seeds(7, 8)[bad],)
    assert error.worker == (1 if backend == "process" and bad == 6 else None)


@pytest.mark.parametrize("fault", ["unreadable", "exit", "interrupt"])
def test_odd_exceptions_in_a_worker_are_reported_too(fault):
    with fugu.vector.make(one_bad(8, 6, fault), backend="process") as vec:
        vec.reset()
        error, _ = step_until_error(vec)
    assert isinstance(error, EnvError)
    assert error.envs == (6,)
    assert {"unreadable": "Unreadable", "exit": "SystemExit", "interrupt": "KeyboardInterrupt"}[fault] in str(error)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("shape", "position: the space says shape [3], got [4]"),
        ("dtype", "position: the space says float32, got float64"),
        ("nan", "position: nan at index [1]"),
        ("key", "missing 'count'"),
        ("range", "count: 1000 is outside Discrete(1000)"),
        ("none", "expected a dict"),
        ("reward_nan", "reward: nan is not finite"),
        ("reward_array", "reward: expected a number, got an array float64[1]"),
        ("flag", "terminated: expected a bool, got NoneType"),
        ("tuple", "step() must return"),
    ],
)
@pytest.mark.parametrize(("backend", "bad"), [("serial", 2), ("process", 2), ("process", 6)])
def test_values_that_do_not_fit_the_spaces_are_refused_by_name(backend, bad, fault, text):
    with fugu.vector.make(one_bad(8, bad, fault), backend=backend, **two(backend)) as vec:
        vec.reset()
        error, took = step_until_error(vec)
    assert isinstance(error, EnvError)
    assert text in str(error)
    assert error.envs == (bad,)
    in_time(took, 1)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["sleep", "spin", "hold_gil", "stop"])
def test_hanging_worker_raises_at_the_timeout_and_closes(fault):
    vec = fugu.vector.make(one_bad(8, 6, fault), backend="process", num_workers=2, step_timeout=0.5)
    vec.reset()
    error, took = step_until_error(vec)
    assert isinstance(error, EnvTimeout)
    assert error.envs == (6,)
    assert took > 0.4
    in_time(took, 1.5)
    assert ("stopped by a signal" in str(error)) == (fault == "stop")
    close_quickly(vec)


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("fault", ["sleep", "spin"])
def test_env_that_hangs_in_the_calling_process_raises_at_the_timeout(backend, fault):
    vec = fugu.vector.make(one_bad(8, 1, fault), backend=backend, step_timeout=0.5, **two(backend))
    vec.reset()
    error, took = step_until_error(vec)
    assert isinstance(error, EnvTimeout)
    assert error.envs == (1,) and error.worker is None
    assert took > 0.4
    in_time(took, 1.5)
    close_quickly(vec)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_native_code_that_comes_back_too_late_raises_when_it_is_back():
    vec = fugu.vector.make(one_bad(8, 1, "deaf_for_a_second"), backend="serial", step_timeout=0.5)
    vec.reset()
    error, took = step_until_error(vec)
    assert isinstance(error, EnvTimeout)
    assert took > 0.9
    in_time(took, 2)
    close_quickly(vec)


STOPPED = """
import numpy as np, signal, fugu
from tests.faults.faulty import one_bad
with fugu.vector.make(one_bad(8, 1, "stop"), backend={backend!r}, step_timeout=0.5, **{two!r}) as vec:
    vec.reset()
    for _ in range(6):
        vec.step(np.zeros(8, np.int64))
print("done", signal.getsignal(signal.SIGCONT) is signal.SIG_DFL)
"""


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_a_run_that_was_stopped_goes_on_where_it_was(backend):
    """As by Ctrl-Z and ``fg``: what it did not run is not time that an environment took."""
    script = STOPPED.format(backend=backend, two=two(backend))
    program = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert os.WIFSTOPPED(os.waitpid(program.pid, os.WUNTRACED)[1])
    time.sleep(1.2)
    os.kill(program.pid, signal.SIGCONT)
    out, problems = program.communicate(timeout=30)
    assert out == "done True\n", problems


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["sleep", "hold_gil"])
def test_hang_in_construction_and_in_reset_raises_at_their_timeouts(fault):
    start = time.monotonic()
    with pytest.raises(EnvTimeout, match="start_timeout"):
        fugu.vector.make(one_bad(8, 6, fault, phase="make"), backend="process", start_timeout=1)
    in_time(time.monotonic() - start, 6)
    with fugu.vector.make(one_bad(8, 6, fault, phase="reset"), backend="process", reset_timeout=0.5) as vec:
        with pytest.raises(EnvTimeout, match="reset_timeout"):
            vec.reset()


def test_factory_that_cannot_be_pickled_is_refused_with_advice():
    lock = threading.Lock()
    with pytest.raises(ConfigError, match="cannot be sent to a worker"):
        fugu.vector.make(lambda: (lock, Faulty())[1], 4, backend="process")


class Unloadable:
    def __call__(self):
        return Faulty()

    def __reduce__(self):
        return (_explode, ())


def _explode():
    raise ImportError("this machine lacks it")


def test_factory_that_cannot_be_rebuilt_in_the_worker_says_so():
    with pytest.raises(EnvError, match="could not be rebuilt in a worker.*this machine lacks it"):
        fugu.vector.make(Unloadable(), 4, backend="process", isolate=True)


def test_shared_memory_that_cannot_be_had_is_a_typed_error():
    code = """
import resource, fugu
from tests.faults.faulty import healthy
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    fugu.vector.make(healthy(), 64, backend="process", num_workers=2)
except MemoryError as error:
    print(type(error).__name__, error)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert out.returncode == 0, out.stderr
    assert "OutOfSharedMemory the rows of this vector env need" in out.stdout
    assert out.stderr == ""


def test_more_shared_memory_than_the_machine_has_is_refused_before_it_is_touched(monkeypatch):
    monkeypatch.setattr("fugu.vector.buffers._available_memory", lambda: 1000)
    with pytest.raises(MemoryError, match="are free"):
        fugu.vector.make(healthy(), 64, backend="process", num_workers=2)


@pytest.mark.parametrize("fault", ["big_info", "odd_info"])
def test_large_and_unpicklable_infos_arrive_or_are_named(fault):
    with fugu.vector.make(one_bad(8, 6, fault), backend="process") as vec:
        vec.reset()
        for _ in range(2):
            assert not vec.step(ACTIONS)[4]
        infos = vec.step(ACTIONS)[4]
        vec.step(ACTIONS)
    if fault == "big_info":
        assert len(infos[6]["blob"]) == 5_000_000
    else:
        assert infos[6] == {"fine": 7, "unpicklable": ["lock"]}


def test_close_from_any_state_and_twice():
    fugu.vector.make(healthy(), 4, backend="process").close()  # before reset
    vec = fugu.vector.make(healthy(), 4, backend="process", batch_size=2)
    vec.async_reset()
    close_quickly(vec)  # while running
    vec.close()
    with pytest.raises(CallOrderError, match="closed"):
        vec.recv()
    vec = fugu.vector.make(healthy(), 4, backend="process", batch_size=2)
    vec.async_reset()
    vec.recv()
    vec.send(ACTIONS[:2])
    close_quickly(vec)


def test_env_whose_close_raises_does_not_leave_processes():
    vec = fugu.vector.make(one_bad(8, 6, "raise", phase="close"), backend="process")
    vec.reset()
    close_quickly(vec)


def test_env_whose_close_hangs_is_ended():
    vec = fugu.vector.make(one_bad(8, 6, "sleep", phase="close"), backend="process")
    vec.reset()
    close_quickly(vec)


def test_dropping_the_vector_env_ends_its_workers():
    vec = fugu.vector.make(healthy(), 4, backend="process")
    pids = [worker.process.pid for worker in vec._runner._workers]
    vec.reset()
    del vec
    gc.collect()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_children_of_an_env_end_with_it():
    vec = fugu.vector.make(one_bad(4, 3, "orphan", phase="make"), backend="process", num_workers=2)
    started = psutil.Process(vec._runner._workers[-1].process.pid).children()
    assert [p.name() for p in started] == ["sleep"]
    vec.close()
    gone_in(started, 1)


def test_vector_envs_side_by_side_and_made_in_a_thread():
    made = []
    thread = threading.Thread(target=lambda: made.append(fugu.vector.make(healthy(), 4, backend="process")))
    thread.start()
    thread.join()
    with made[0] as one, fugu.vector.make(healthy(), 4, backend="process") as two:
        obs_one, obs_two = one.reset(seed=1)[0], two.reset(seed=1)[0]
        for _ in range(15):
            assert np.array_equal(obs_one, obs_two)
            obs_one, obs_two = one.step(ACTIONS[:4])[0], two.step(ACTIONS[:4])[0]


def test_reset_recovers_after_an_exception():
    with fugu.vector.make(one_bad(8, 6, "raise", at=2), backend="process") as vec:
        vec.reset()
        step_until_error(vec)
        vec.set_attr("fault", "", envs=[6])
        vec.reset(seed=3)
        for _ in range(4):
            vec.step(ACTIONS)


def test_idle_workers_use_no_cpu():
    with fugu.vector.make(healthy(), 8, backend="process", num_workers=3, isolate=True) as vec:
        vec.reset()
        for _ in range(20):
            vec.step(ACTIONS)
        workers = [psutil.Process(worker.process.pid) for worker in vec._runner._workers]
        time.sleep(0.3)
        before = sum(sum(w.cpu_times()[:2]) for w in workers)
        time.sleep(1.0)
        assert sum(sum(w.cpu_times()[:2]) for w in workers) - before <= 0.01


def test_a_dead_group_is_noticed_while_others_keep_finishing():
    vec = fugu.vector.make(healthy(), 8, backend="process", num_workers=4, batch_size=2, order="first_finished", max_lag=10**6)
    vec.async_reset()
    os.kill(vec._runner._workers[2].process.pid, signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(WorkerDied) as caught:
        while time.monotonic() - start < 5:
            vec.recv()
            vec.send(ACTIONS[:2])
    in_time(time.monotonic() - start, 1.5)
    assert caught.value.envs == (4, 5)
    vec.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["raise", "kill", "segfault"])
def test_restart_replaces_what_crashed_and_truncates_its_episode(fault):
    factories = one_bad(8, 6, fault, at=4)
    with fugu.vector.make(factories, backend="process", num_workers=2, on_error="restart", max_restarts=100) as vec:
        rows_of = functools.partial(_rows, vec)
        vec.async_reset()
        vec.recv()
        lost = 0
        for step in range(1, 30):
            before = rows_of().obs.copy()
            vec.send(ACTIONS)
            rows = vec.recv()
            if rows.truncated.any():
                lost += 1
                gone = [6] if fault == "raise" else [4, 5, 6, 7]
                assert np.flatnonzero(rows.truncated).tolist() == gone
                assert not rows.mask[gone].any() and not rows.terminated[gone].any() and not rows.reward[gone].any()
                assert rows.obs[gone].tobytes() == before[gone].tobytes()  # the last observation known
                assert all("restarted" in rows.infos[agent] and "episode" not in rows.infos[agent] for agent in gone)
                vec.send(ACTIONS)
                rows = vec.recv()
                assert rows.first[gone].all() and rows.mask[gone].all()
                assert not rows.reward[gone].any()
            assert step < 28 or lost >= 3
        assert vec.restarts == lost


def test_a_reset_that_fails_between_episodes_is_no_episode_of_its_own():
    class Later(Faulty):
        resets = 0

        def reset(self, *, seed=None, options=None):
            Later.resets += 1
            if Later.resets % 3 == 0:
                raise RuntimeError("not now")
            return super().reset(seed=seed, options=options)

    with fugu.vector.make(functools.partial(Later, length=5), 1, backend="serial", on_error="restart", max_restarts=100) as vec:
        vec.reset()
        lengths, restarts = [], 0
        for _ in range(60):
            vec.send(ACTIONS[:1])
            info = vec.recv().infos.get(0, {})
            restarts += "restarted" in info
            lengths += [info["episode"]["l"]] if "episode" in info else []
    assert restarts >= 3 and len(lengths) >= 6 and set(lengths) == {5}


def _rows(vec):
    return vec._rows[0][vec._slot[0]]


def test_restart_gives_up_after_its_budget():
    with fugu.vector.make(one_bad(4, 3, "raise", at=1), backend="process", on_error="restart", max_restarts=2) as vec:
        vec.reset()
        with pytest.raises(EnvError, match="gave up after 3 restarts"):
            for _ in range(20):
                vec.step(ACTIONS[:4])
    with fugu.vector.make(one_bad(4, 3, "kill", at=1), backend="process", on_error="restart", max_restarts=2) as vec:
        vec.reset()
        with pytest.raises(WorkerDied):
            for _ in range(20):
                vec.step(ACTIONS[:4])
        assert vec.restarts == 3


def test_close_while_workers_step_takes_no_longer_than_the_step():
    vec = fugu.vector.make(healthy(), 8, backend="process", num_workers=4, batch_size=2, order="first_finished")
    vec.async_reset()
    for _ in range(20):
        vec.recv()
        vec.send(ACTIONS[:2])
    start = time.monotonic()
    vec.close()
    in_time(time.monotonic() - start, 0.5)
