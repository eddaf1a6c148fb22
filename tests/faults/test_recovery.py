"""After an error or an interrupt a vector env can be reset and goes on as if nothing had been; nothing stale comes through."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time

import gymnasium
import numpy as np
import pytest

import fugu
from fugu.errors import CallOrderError, ConfigError, EnvError, EnvTimeout
from fugu.vector.seeds import env_seeds
from tests.faults.faulty import Faulty, healthy, one_bad
from tests.timing import in_time

pytestmark = pytest.mark.usefixtures("no_leaks")

ACTIONS = np.zeros(6, np.int64)


class Slow(Faulty):
    """Steps slowly and says a lot."""

    def step(self, action):
        time.sleep(0.02)
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"blob": b"x" * 240_000}

    def name_of(self, what, seconds=0.0):
        time.sleep(seconds)
        return what


def rollout(vec, steps=8):
    obs = [vec.reset(seed=4)[0].copy()]
    for _ in range(steps):
        obs.append(vec.step(ACTIONS)[0].copy())
    return np.array(obs)


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("bad", [0, 5])
def test_reset_after_an_exception_gives_what_a_fresh_one_gives(backend, bad):
    with fugu.vector.make(healthy(), 6, backend=backend) as vec:
        expected = rollout(vec)
    with fugu.vector.make(one_bad(6, bad, "raise", at=2), backend=backend) as vec:
        vec.reset()
        with pytest.raises(EnvError):
            vec.step(ACTIONS)
            vec.step(ACTIONS)
        vec.set_attr("fault", "", envs=[bad])
        np.testing.assert_array_equal(rollout(vec), expected)


def test_reset_after_one_worker_raised_while_another_sent_infos():
    envs = [functools.partial(Slow)] * 4 + [functools.partial(Faulty, fault="raise", at=2)] * 2
    with fugu.vector.make(envs, backend="process", num_workers=3, isolate=True, step_timeout=20) as vec:
        vec.reset()
        with pytest.raises(EnvError):
            for _ in range(3):
                vec.step(ACTIONS)
        start = time.monotonic()
        vec.reset(seed=1)
        in_time(time.monotonic() - start, 2)


@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True])
def test_ctrl_c_then_reset_goes_on(isolate):
    with fugu.vector.make(Slow, 6, backend="process", num_workers=2, isolate=isolate, step_timeout=20) as vec:
        expected = rollout(vec)
        for i in range(6):
            vec.reset(seed=9)
            timer = threading.Timer(0.03 + 0.011 * i, os.kill, (os.getpid(), signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                timer.start()
                while True:
                    vec.step(ACTIONS)
            timer.join()
        np.testing.assert_array_equal(rollout(vec), expected)


def test_an_interrupted_call_does_not_answer_the_next_one():
    with fugu.vector.make(Slow, 2, backend="process", num_workers=2, isolate=True) as vec:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            vec.call("name_of", "old", 1.0)
            time.sleep(10)  # should it come that late
        timer.join()
        assert vec.call("name_of", "new") == ["new", "new"]


def test_two_resets_do_not_share_memory():
    with fugu.vector.make("CartPole-v1", 4, backend="serial") as vec:
        one = vec.reset(seed=1)[0]
        two = vec.reset(seed=2)[0]
        assert not np.shares_memory(one, two)
        assert not np.array_equal(one, two)


def test_what_cannot_be_pickled_is_refused_before_anything_is_asked():
    with fugu.vector.make(healthy(), 6, backend="process") as vec:
        with pytest.raises(ConfigError, match="cannot be sent"):
            vec.set_attr("x", threading.Lock())
        with pytest.raises(ConfigError, match="the reset options cannot be sent"):
            vec.reset(options={"lock": threading.Lock()})
        vec.reset()
        vec.step(ACTIONS)


def test_values_of_classes_of_the_script_come_back_whole(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        """
import dataclasses, gymnasium, numpy as np, fugu

@dataclasses.dataclass
class State:
    x: int

class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    st = State(1)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {"st": State(2)}

gymnasium.register("Mine-v0", Mine)
with fugu.vector.make(lambda: gymnasium.make("Mine-v0"), 2, backend="process", num_workers=2) as vec:
    infos = vec.reset()[1]
    print([s.x for s in vec.get_attr("st")], [infos[i]["st"].x for i in range(2)])
"""
    )
    out = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (out.stdout.strip(), out.returncode) == ("[1, 1] [2, 2]", 0), out.stderr


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_envs_of_the_calling_process_have_their_time_limits_too(backend):
    start = time.monotonic()
    with pytest.raises(EnvTimeout, match="start_timeout"):
        fugu.vector.make(one_bad(6, 0, "sleep", phase="make"), backend=backend, start_timeout=1)
    in_time(time.monotonic() - start, 4)
    vec = fugu.vector.make(one_bad(6, 0, "sleep", phase="close"), backend=backend)
    vec.reset()
    start = time.monotonic()
    with pytest.warns(RuntimeWarning, match="no answer within 3 s"):
        vec.close()
    in_time(time.monotonic() - start, 5)


class Stubborn(Faulty):
    def step(self, action):
        for _ in range(100):
            with contextlib.suppress(Exception):
                time.sleep(0.1)
        return super().step(action)


def test_an_env_that_swallows_exceptions_is_interrupted_all_the_same():
    with fugu.vector.make(Stubborn, 1, backend="serial", step_timeout=0.3) as vec:
        vec.reset()
        start = time.monotonic()
        with pytest.raises(EnvTimeout):
            vec.step(ACTIONS[:1])
        in_time(time.monotonic() - start, 2)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_an_env_that_exits_does_not_end_the_program(backend):
    with fugu.vector.make(one_bad(6, 0, "exit"), backend=backend) as vec:
        vec.reset()
        with pytest.raises(EnvError, match="SystemExit"):
            for _ in range(4):
                vec.step(ACTIONS)


def test_closing_while_another_thread_waits_is_said():
    with fugu.vector.make(Slow, 2, backend="process", num_workers=2, isolate=True) as vec:
        vec.reset()
        vec.send(ACTIONS[:2])
        raised = []

        def wait():
            try:
                vec.recv()
            except CallOrderError as error:
                raised.append(str(error))

        thread = threading.Thread(target=wait)
        vec._runner._workers[0].process.send_signal(signal.SIGSTOP)
        thread.start()
        time.sleep(0.1)
        vec.close()
        thread.join(5)
        assert raised == ["this vector env was closed while it waited"]


def test_seeds_and_settings_that_make_no_sense_are_refused():
    assert not np.array_equal(env_seeds(-1, 4), env_seeds(1, 4))
    with fugu.vector.make("CartPole-v1", np.int64(2), backend="serial") as vec:
        for seed in (1.5, "x", [1, -1]):
            with pytest.raises(ConfigError):
                vec.reset(seed=seed)
    for settings in (
        {"seed": "x"},
        {"step_timeout": "5"},
        {"backend": "serial", "isolate": True},
        {"backend": "serial", "num_workers": 2},
        {"batch_size": 2, "isolate": False},
    ):
        with pytest.raises(ConfigError):
            fugu.vector.make("CartPole-v1", 4, **settings)


def test_parts_of_structured_actions_are_checked():
    class Narrow(gymnasium.Env):
        observation_space = gymnasium.spaces.Discrete(2)
        action_space = gymnasium.spaces.Dict(a=gymnasium.spaces.Box(-100, 100, (1,), np.int8), b=gymnasium.spaces.Discrete(2))

        def reset(self, *, seed=None, options=None):
            return 0, {}

    with fugu.vector.make(Narrow, 2, backend="serial") as vec:
        vec.reset()
        with pytest.raises(fugu.errors.SpaceError, match="does not fit int8"):
            vec.step({"a": np.full((2, 1), 300), "b": np.zeros(2, np.int64)})
        with pytest.raises(fugu.errors.SpaceError, match="missing 'b'"):
            vec.step({"a": np.zeros((2, 1), np.int8), "c": np.zeros(2, np.int64)})
