"""What ``fugu.vector.make`` takes, ``fugu.train`` takes; what exists only in a session is given again in the next."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import fugu
from fugu.algorithm.a2c import A2C
from fugu.cli.main import main
from fugu.errors import ConfigError
from fugu.run.ending import Interrupted
from fugu.trainer.callbacks import CallbackError

TINY = {"steps": 128, "horizon": 8, "minibatch": 32, "threads": 1, "log.board": "off"}
SCRIPT = """
import sys
import gymnasium as gym
import numpy as np
import fugu

print("executed", file=sys.stderr)

class Walk(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t >= 5, False, {}

if __name__ != "__main__":
    pass
elif sys.argv[1:] == ["train"]:
    settings = dict(horizon=8, minibatch=32, num_envs=4, threads=1, board="off", backend="process", num_workers=2)
    run = fugu.train(Walk, steps=128, **settings)
    print(run.config.env, run.evaluate(2).mean)
else:
    print(fugu.Run("latest").resume(env=Walk, steps=256).evaluate(2).mean)
"""


class Walk(gym.Env):
    def __init__(self, length: int = 5) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t >= self.length, False, {}


class Net(nn.Module):
    def __init__(self, observation_space: gym.Space, action_space: gym.Space) -> None:
        super().__init__()
        self.hidden_size = 8
        self.first = nn.Linear(2, 8)
        self.last = nn.Linear(8, 3)

    def encode(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.first(obs))

    def decode(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.last(hidden)
        return out[:, :2], out[:, 2]


def test_a_class_a_network_and_an_algorithm_are_named_and_work_again(tmp_path):
    class Mine(A2C):
        pass

    run = fugu.train(Walk, policy=Net, algorithm=Mine, num_envs=4, backend="serial", runs=tmp_path, **TINY)
    assert run.config.env.endswith("test_given:Walk") and run.config.policy.net.endswith("test_given:Net")
    assert run.config.algorithm == "session:Mine"
    assert run.evaluate(2).mean == 5
    assert run.resume(steps=256).metrics()[-1]["steps"] >= 256
    again = fugu.Run(run.path)
    assert again.metrics() == run.metrics()
    with pytest.raises(ConfigError, match=r"its algorithm Mine existed only in the session .* algorithm=Mine"):
        again.evaluate(1)
    assert fugu.Run(run.path, algorithm=Mine).evaluate(2).mean == 5


def test_an_algorithm_that_was_defined_anew_has_its_own_settings(tmp_path):
    def defined(default: int) -> type:
        fields = [("extra", int, default)]
        made = dataclasses.make_dataclass("Config", fields, bases=(A2C.Config,), frozen=True, kw_only=True)
        return type("Anew", (A2C,), {"Config": made})

    first, second = defined(1), defined(2)
    run = fugu.train(Walk, algorithm=first, num_envs=4, backend="serial", runs=tmp_path, **TINY)
    assert run.config.anew.extra == 1 and run.config.algorithm == "session:Anew"
    config = fugu.Run(run.path, algorithm=second).config
    assert type(config.anew) is second.Config
    assert type(run.config.anew) is first.Config


def test_a_list_has_an_environment_each_also_in_evaluations(tmp_path):
    envs = [Walk, functools.partial(Walk, 10), lambda: Walk(3)]
    settings = {**TINY, "minibatch": 24, "eval.every": 1, "eval.episodes": 6}
    run = fugu.train(envs, backend="serial", runs=tmp_path, **settings)
    assert run.config.vector.num_envs == 3 and run.config.env == "session:Walk-and-2-more"
    assert run.metrics()[-1]["eval/return"] == 6
    assert run.evaluate(6, num_envs=6).mean == 6
    with pytest.raises(ConfigError, match="a list of 3 environments needs num_envs=3, got num_envs=4"):
        fugu.train(envs, num_envs=4, runs=tmp_path, **settings)


@pytest.mark.parametrize(
    ("env", "settings", "said"),
    [
        (Walk(), {}, "got an instance of Walk; .* Pass the class, or a function that makes one: lambda: Walk"),
        ([Walk, Walk()], {}, "got an instance of Walk"),
        (3, {}, "expected an environment id, class or callable, got int 3"),
        ([], {}, "must have at least one"),
        (Walk, {"policy": nn.Linear(2, 2)}, r"policy=Linear\(...\): got an instance, .* pass the class: policy=Linear"),
        (Walk, {"algorithm": object()}, r"algorithm=object\(...\): got an instance"),
        (Walk, {"algorithm": Net}, "must be a class with fugu.Algorithm as its base"),
    ],
)
def test_instances_are_refused_with_what_to_pass(tmp_path, env, settings, said):
    with pytest.raises(ConfigError, match=said):
        fugu.train(env, runs=tmp_path, num_envs=4, **TINY, **settings)
    assert not [*tmp_path.iterdir()]


def test_a_run_does_not_change_what_has_not_moved(tmp_path):
    run = fugu.train("cartpole", num_envs=4, runs=tmp_path, **TINY)
    for change in ({"env": "CartPole-v1"}, {"policy": Net}, {"algorithm": A2C}, {"algorithm": "a2c"}):
        with pytest.raises(ConfigError, match="a run that goes on cannot change"):
            run.resume(steps=256, **change)
    assert run.evaluate(2, env="CartPole-v1").episodes == 2  # looking at it elsewhere is another matter


def test_commands_say_what_to_type_for_what_existed_only_in_a_session(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Walk, "__module__", "__main__")
    run = fugu.train(Walk, num_envs=4, backend="serial", runs=tmp_path, **TINY)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note:")]
    assert len(said) == 1 and "Walk exists only in this session" in said[0] and ".resume(env=Walk)" in said[0]
    assert run.resume(steps=256).evaluate(2).mean == 5
    path = str(run.path)
    with pytest.warns(RuntimeWarning, match=rf"--resume {path} --env my_file.py:Walk --steps "):
        run.resume()
    with pytest.raises(CallbackError) as failed:
        run.resume(steps=400, callbacks=[lambda run, metrics: metrics["nothing"]])
    *_, again, without = str(failed.value).splitlines()
    assert again.endswith(f"fugu.Run({path!r}).resume(env=Walk, callbacks=[...])")
    assert without.endswith(f"fugu train --resume {path} --env my_file.py:Walk")
    assert str(Interrupted(2, run, 1)).endswith(f"fugu train --resume {path} --env my_file.py:Walk")
    for command in (["eval", path], ["video", path], ["train", "--resume", path, "--steps", "512"]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert len(error.splitlines()) == 1 and "--env my_file.py:Walk" in error
    with pytest.raises(ConfigError, match="env=Walk"):
        fugu.Run(run.path).evaluate(1)
    assert fugu.Run(run.path).evaluate(2, env=functools.partial(Walk, 7)).mean == 7
    assert fugu.Run(run.path, env=Walk).resume(steps=512).evaluate(2).mean == 5


@pytest.mark.slow
def test_a_class_of_a_script_is_given_again_and_no_command_executes_the_script(tmp_path, monkeypatch, capsys):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script, "train"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "session:Walk 5.0\n" and done.stderr.count("executed") == 1
    monkeypatch.chdir(tmp_path)
    for command in (["eval", "latest"], ["train", "--resume", "latest", "--steps", "256"]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert "--env my_file.py:Walk" in error and "executed" not in error
    done = subprocess.run([sys.executable, script, "resume"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "5.0\n"
    assert main(["eval", "latest", "--env", "script.py:Walk", "--episodes", "2"]) == 0
    assert "mean return   5.00" in capsys.readouterr().out
