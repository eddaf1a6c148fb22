"""autotune: which settings it tries, which it prefers, and what it says of those that fail."""

from __future__ import annotations

import threading
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gs

from fugu.errors import ConfigError
from fugu.vector import VectorConfig
from fugu.vector.autotune import Trial, Tuning, autotune, best_of, measure, settings, waiting


class Quick(gymnasium.Env):
    observation_space = gs.Box(0, 1, (2,), np.float32)
    action_space = gs.Discrete(2)

    def __init__(self, step_seconds: float = 0.0) -> None:
        self.step_seconds = step_seconds

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        time.sleep(self.step_seconds)
        return np.zeros(2, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("num_envs", [1, 2, 3, 7, 12, 64, 97, 1000])
@pytest.mark.parametrize("cores", [1, 2, 3, 8, 96])
def test_every_setting_tried_is_valid_and_serial_comes_first(num_envs: int, cores: int) -> None:
    trials = settings(num_envs, cores)  # VectorConfig refuses impossible ones
    assert trials[0].name == "serial" and trials[0].config.resolved_backend == "serial"
    assert all(trial.config.num_envs == num_envs for trial in trials)
    assert len({trial.name for trial in trials}) == len(trials)
    assert (len(trials) == 1) == (num_envs == 1)


def test_a_tie_goes_to_the_simpler_setting() -> None:
    config = VectorConfig()
    rates = {"serial": 96.0, "process": 100.0}
    trials = [Trial(name, config, steps_per_second=rate) for name, rate in rates.items()]
    assert best_of(trials).name == "serial"
    trials[0].steps_per_second = 94.0
    assert best_of(trials).name == "process"
    trials[0].steps_per_second, trials[0].error = 100.0, "broken"
    assert best_of(trials).name == "process"


@pytest.mark.slow
def test_sleeping_environments_are_better_stepped_by_processes() -> None:
    tuning = autotune(Quick, 4, seconds=0.08, env_kwargs={"step_seconds": 0.002})
    assert tuning.best.resolved_backend == "process", str(tuning)
    assert all(trial.error == "" and trial.steps_per_second > 0 for trial in tuning.trials), str(tuning)
    assert all(trial.startup_seconds > 0 for trial in tuning.trials)
    assert "env_kwargs={'step_seconds': 0.002}" in tuning.python and "backend='process'" in tuning.python


def test_one_environment_is_stepped_serially() -> None:
    tuning = autotune("CartPole-v1", 1, seconds=0.02)
    assert tuning.best.resolved_backend == "serial"
    assert tuning.python == "fugu.vector.make('CartPole-v1', 1, backend='serial')"
    assert tuning.flags == "--num-envs 1 --backend serial"


def test_flags_and_python_name_the_same_settings() -> None:
    config = VectorConfig(num_envs=8, backend="process", num_workers=4, batch_size=2, order="first_finished", isolate=True)
    tuning = Tuning("'Pong'", (), config)
    assert tuning.flags == ("--num-envs 8 --backend process --num-workers 4 --batch-size 2 --order first_finished --isolate")
    assert eval(tuning.python.replace("fugu.vector.make('Pong', 8", "VectorConfig(num_envs=8")) == config


def test_a_setting_that_fails_is_shown_with_its_error_and_the_others_count() -> None:
    lock = threading.Lock()  # cannot be sent to a worker
    trials = measure(lambda: (lock, Quick())[1], settings(2, 2)[:2], seconds=0.02)
    assert trials[0].error == "" and trials[0].steps_per_second > 0
    assert trials[1].error and trials[1].steps_per_second == 0
    assert best_of(trials).name == "serial"
    assert trials[1].error.splitlines()[0] in str(Tuning("x", tuple(trials), trials[0].config))


def test_an_environment_that_never_runs_is_an_error() -> None:
    def broken() -> Any:
        raise RuntimeError("no display")

    with pytest.raises(ConfigError, match="no display"):
        autotune(broken, 1, seconds=0.02)
    with pytest.raises(ConfigError, match="seconds"):
        autotune(Quick, 1, seconds=0)


def test_forbidden_actions_are_never_taken() -> None:
    class Strict(Quick):
        action_space = gs.Discrete(3, start=5)

        def reset(self, **kwargs: Any) -> Any:
            self.only = 0
            return np.zeros(2, np.float32), {"action_mask": np.eye(3, dtype=np.int8)[self.only]}

        def step(self, action: int) -> Any:
            if action != 5 + self.only:
                raise ValueError(f"{action} is forbidden")
            self.only = (self.only + 1) % 3
            return np.zeros(2, np.float32), 0.0, False, False, {"action_mask": np.eye(3, dtype=np.int8)[self.only]}

    (trial,) = measure(Strict, settings(1, 1), seconds=0.02)
    assert trial.error == ""


class Computes(Quick):
    def step(self, action: int) -> Any:
        until = time.thread_time() + self.step_seconds
        while time.thread_time() < until:
            pass
        return np.zeros(2, np.float32), 0.0, False, False, {}


def test_environments_that_wait_get_more_workers_than_there_are_cores():
    assert waiting(Quick, 0.2, {"step_seconds": 0.02}) > 0.5
    assert waiting(Computes, 0.2, {"step_seconds": 0.002}) < 0.2, "a busy machine is no reason"
    names = [trial.name for trial in settings(64, cores=2, waits=0.9)]
    assert "process, 20 workers (the environment waits)" in names
    assert not any("waits" in trial.name for trial in settings(64, cores=2, waits=0.1))
    assert max(trial.config.num_workers or 1 for trial in settings(8, cores=2, waits=0.99)) == 8
