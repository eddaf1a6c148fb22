"""``fugu.train`` and ``resume``: what they refuse, and what they keep."""

from __future__ import annotations

import os
import pickle
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

import fugu
from fugu.algorithm.find import algorithm_class, names
from fugu.algorithm.settings import KNOWN
from fugu.cli.main import main
from fugu.errors import ConfigError, FuguError
from fugu.run.ending import Interrupted
from fugu.run.overview import overviews
from fugu.run.store import RunError
from fugu.trainer.checkpoint import CheckpointError
from fugu.trainer.config import TrainConfig
from fugu.trainer.config_parts import LogConfig
from fugu.vector.config import VectorConfig

TINY = {"steps": 2000, "num_envs": 8, "horizon": 8, "minibatch": 64, "threads": 1, "log.board": "off"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return fugu.train("cartpole", runs=tmp_path_factory.mktemp("runs"), **TINY)


@pytest.mark.parametrize(
    "changes", [{"hidden": [32]}, {"num_envs": 16}, {"normalize_reward": True}, {"optimizer.name": "muon"}, {"seed": 1}]
)
def test_a_run_cannot_change_what_its_checkpoints_depend_on(run, changes):
    before = run.folder.config.read_text()
    with pytest.raises(ConfigError, match="cannot change"):
        run.resume(steps=4000, **changes)
    assert run.folder.config.read_text() == before


def test_a_run_whose_environments_move_to_another_backend_starts_new_episodes(run):
    again = run.resume(steps=4000, backend="serial")
    assert again.metrics()[-1]["steps"] >= 4000
    assert all(row.get("episode/length", 9) >= 8 for row in again.metrics()[-10:])  # no episode from thin air


def test_a_run_in_other_batches_goes_on(run):
    assert run.resume(steps=6000, **{"vector.backend": "native", "vector.batch_size": 4}).metrics()[-1]["steps"] >= 6000


def test_a_run_that_is_being_trained_is_left_alone(run):
    before = run.folder.config.read_text()
    code = f"import fugu\nfugu.Run({str(run.path)!r}).resume(steps=10**6, learning_rate=1.0)"
    with run.folder.lock():
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode and RunError.__name__ in done.stderr
    assert run.folder.config.read_text() == before


def test_a_target_that_was_reached_is_told_apart_from_steps_that_are_done(tmp_path):
    done = fugu.train("cartpole", runs=tmp_path, **{**TINY, "steps": 50_000, "target": 5.0})
    with pytest.warns(RuntimeWarning, match="--target None"):
        assert done.resume(steps=100_000) is done
    done.resume(steps=done.metrics()[-1]["steps"] + 500, target=None)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"learning_rate": "1e-3"}, "optimizer.learning_rate='1e-3' must be a number"),
        ({"learning_rate": None}, "optimizer.learning_rate=None must be a number"),
        ({"seed": "a"}, "seed='a' must be a whole number"),
        ({"seed": 1.5}, "seed=1.5 must be a whole number"),
        ({"seed": 2**63}, f"seed={2**63} must not be negative, and below 2**63"),
        ({"env_kwargs": None}, "env_kwargs=None must be a mapping of names to values"),
        ({"env_kwargs": 3}, "env_kwargs=3 must be a mapping of names to values"),
        ({"algorithm": ["ppo"]}, "algorithm=['ppo'] must be text or none"),
        ({"schedule": "step"}, "optimizer.schedule='step' must be one of constant, linear, cosine"),
    ],
)
def test_settings_of_another_kind_are_named(tmp_path, setting, said):
    with pytest.raises(ConfigError) as error:
        fugu.train("cartpole", runs=tmp_path, **{**TINY, **setting})
    assert str(error.value) == said and not [*tmp_path.iterdir()]


def test_so_are_those_of_a_run_that_is_there(run):
    with pytest.raises(ConfigError, match="optimizer.learning_rate='0.1' must be a number"):
        run.resume(steps=10**6, learning_rate="0.1")
    for wrong in ({"episodes": "a"}, {"episodes": 0}, {"num_envs": 0}, {"seed": "a"}, {"seed": 2**63}):
        (name,) = wrong
        with pytest.raises(ConfigError, match=f"{name}=.* must "):
            run.evaluate(**{"episodes": 2, **wrong})


def test_the_largest_seed_works(tmp_path):
    run = fugu.train("CartPole-v1", runs=tmp_path, **TINY, seed=2**63 - 1, backend="serial")
    assert run.evaluate(1, seed=2**63 - 1).episodes == 1


def test_steps_that_are_suggested_are_taken(run):
    done = run.metrics()[-1]["steps"]
    with pytest.warns(RuntimeWarning, match=f"has done its {done:,} steps; .* --steps {2 * done}$"):
        run.resume(steps=100)
    assert run.metrics()[-1]["steps"] == done and run.config.steps != 100


def test_commands_to_type_survive_a_space(tmp_path, capsys):
    with pytest.warns(RuntimeWarning) as said:
        fugu.train("cartpole", runs=tmp_path / "my runs", **TINY).resume()
    command = shlex.split(str(said[0].message).partition("do: ")[2])
    assert command[:3] == ["fugu", "train", "--resume"] and fugu.Run(command[3]).path.parent.name == "my runs"
    assert main(["train", "--resume", command[3]]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "has done its" in line and shlex.split(line)[-4:] == command[2:]
    assert shlex.split(str(Interrupted(2, fugu.Run(command[3]), 1)).partition("with: ")[2])[-1] == command[3]


def test_an_interrupted_training_is_no_exception_and_keeps_its_fields(run):
    error = fugu.Interrupted(signal.SIGTERM, run, 7)
    assert isinstance(error, KeyboardInterrupt) and not isinstance(error, Exception)
    back = pickle.loads(pickle.dumps(error))
    assert (back.signal, back.run.path, back.steps, str(back)) == (signal.SIGTERM, run.path, 7, str(error))
    (shown,) = error._render_traceback_()
    assert shown.startswith("Interrupted: SIGTERM: saved at step 7; go on with: fugu train --resume ")


def test_a_run_whose_checkpoints_are_no_folder_is_one_message(tmp_path):
    run = fugu.train("cartpole", runs=tmp_path, **TINY)
    shutil.rmtree(run.folder.checkpoints)
    run.folder.checkpoints.touch()
    with pytest.raises(CheckpointError, match="checkpoints cannot be read: Not a directory"):
        run.resume(steps=10**6)


def test_half_a_config_is_neither_used_nor_replaced(tmp_path):
    run = fugu.train("cartpole", runs=tmp_path, **TINY)
    text = run.folder.config.read_text()
    run.folder.config.write_text(half := text[: text.index("[optimizer]")])
    with pytest.raises(ConfigError, match="config.toml does not end with '# end'"):
        fugu.Run(run.path).resume(steps=10**6)
    assert run.folder.config.read_text() == half


def test_settings_that_cannot_be_kept_leave_no_run_behind(tmp_path):
    with pytest.raises(ConfigError, match="env_kwargs"):
        fugu.train("CartPole-v1", runs=tmp_path / "runs", env_kwargs={"render_mode": object()}, **TINY)
    assert not (tmp_path / "runs").exists()


PICKY = """
import gymnasium, numpy as np, pathlib
class Picky(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self, **settings):
        with (pathlib.Path(__file__).parent / "seen").open("a") as file:
            file.write(repr(settings) + "\\n")
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, True, {}
"""


def test_a_run_that_goes_on_gives_its_environments_what_it_began_with(tmp_path):
    (tmp_path / "picky.py").write_text(PICKY)
    config = TrainConfig(
        env=f"{tmp_path}/picky.py:Picky",
        env_kwargs={"size": (5, 5), "names": ["a", ("b",)], "inner": {"at": (1, [2])}},
        steps=32,
        horizon=8,
        vector=VectorConfig(num_envs=2, backend="serial"),
        log=LogConfig(board="off"),
    )
    run = fugu.train(config=config, runs=tmp_path / "runs")
    fugu.Run(run.path).resume(steps=64)
    fugu.Run(run.path).evaluate(2)
    seen = (tmp_path / "seen").read_text().splitlines()
    assert len(seen) == 6 and len(set(seen)) == 1, seen
    assert "(5, 5)" in seen[0]


NET = """
from torch import nn
class Net(nn.Module):
    hidden_size = 4
    def __init__(self, observation_space, action_space):
        super().__init__()
        self.encoder, self.policy, self.value = nn.Linear(2, 4), nn.Linear(4, 2), nn.Linear(4, 1)
    def encode(self, obs):
        return self.encoder(obs)
    def decode(self, hidden):
        return self.policy(hidden), self.value(hidden)
"""


def test_a_run_with_files_of_the_users_own_works_from_any_folder(tmp_path, monkeypatch, capsys):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here / "sub", elsewhere):
        folder.mkdir(parents=True)
    (here / "sub" / "picky.py").write_text(PICKY)
    (here / "net.py").write_text(NET)
    settings = {"steps": 32, "horizon": 8, "minibatch": 16, "num_envs": 2, "backend": "serial", "board": "off"}
    monkeypatch.chdir(here)
    run = fugu.train("sub/picky.py:Picky", policy="net.py:Net", runs="runs", **settings)
    assert [one.env for one in overviews("runs")] == ["sub/picky.py:Picky"]
    monkeypatch.chdir(elsewhere)
    again = fugu.Run(here / run.path)
    assert again.evaluate(2).lengths == (1, 1)
    assert again.resume(steps=64).metrics()[-1]["steps"] >= 64
    assert main(["eval", str(here / run.path), "--episodes", "2"]) == 0
    assert "../here/sub/picky.py:Picky, checkpoint" in capsys.readouterr().out


def test_a_section_takes_settings_and_a_policy_its_file(tmp_path):
    with pytest.raises(ConfigError, match="ppo is a section"):
        fugu.train("cartpole", runs=tmp_path, ppo="fast")
    with pytest.raises(ConfigError, match="nowhere.py"):
        fugu.train("cartpole", runs=tmp_path, policy="nowhere.py:Net", **TINY)


def test_settings_of_another_algorithm_are_refused_at_the_start_and_later(tmp_path, run):
    with pytest.raises(ConfigError, match="safe.limit means nothing to algorithm=ppo, .* use --algorithm safe_ppo"):
        fugu.train("knapsack_cmdp", runs=tmp_path, limit=(10.0,))
    with pytest.raises(ConfigError, match="grpo.group_size means nothing to algorithm=ppo"):
        run.resume(steps=10**6, group_size=4)


@pytest.mark.parametrize(
    ("name", "said"), [("safe_pp", "Did you mean 'safe_ppo'"), ("self-play", "Did you mean 'self_play'"), ("losses", "Known: ")]
)
def test_an_algorithm_that_there_is_not_is_refused(name, said, tmp_path):
    with pytest.raises(ConfigError, match=f"there is no algorithm '{name}'. {said}"):
        fugu.train("cartpole", algorithm=name, runs=tmp_path)
    assert not [*tmp_path.iterdir()]


def test_every_algorithm_says_what_it_reads():
    assert {*KNOWN} <= {*names()}
    for name in names():
        assert type(TrainConfig(algorithm=name).settings) is algorithm_class(name).Config
    for name, kind in KNOWN.items():  # known without torch, and the same as what the algorithm itself says
        assert algorithm_class(name).Config is kind
        assert type(TrainConfig(algorithm=name).settings) is kind


def test_settings_of_an_environment_add_to_those_of_its_preset(monkeypatch):
    from fugu.cli import train as command

    seen = {}
    monkeypatch.setattr("fugu.run.train.train", lambda env, config, runs: seen.update(config=config))
    monkeypatch.setattr(command, "_next_commands", lambda run: 0)
    assert command.main(["ALE/Pong-v5", "--env.stack", "2"]) == 0
    assert seen["config"].env_kwargs == {"game": "ALE/Pong-v5", "stack": 2}


WANDERER = """
import os
import gymnasium, numpy as np
class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self, fails=False):
        self.fails = fails
    def reset(self, *, seed=None, options=None):
        if self.fails:
            raise ValueError("no world today")
        return np.zeros(2, np.float32), {}
    def step(self, action):
        os.chdir("/")
        return np.zeros(2, np.float32), 1.0, True, False, {}
"""


def test_an_environment_that_goes_to_another_folder_does_not_take_the_run_along(tmp_path, monkeypatch):
    (tmp_path / "wanderer.py").write_text(WANDERER)
    monkeypatch.chdir(tmp_path)
    run = fugu.train("wanderer.py:Env", backend="serial", **TINY)
    assert os.getcwd() == "/"
    assert str(run.path).startswith("runs/") and run.metrics()[-1]["steps"] >= 2000
    assert run.evaluate(4).mean == 1.0
    monkeypatch.chdir(tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    assert {"metrics.jsonl", "checkpoints", "config.toml"} <= {path.name for path in folder.iterdir()}


def test_a_run_that_could_not_start_leaves_no_folder(tmp_path, monkeypatch):
    (tmp_path / "wanderer.py").write_text(WANDERER)
    with pytest.raises(FuguError, match="no world today"):
        fugu.train(f"{tmp_path}/wanderer.py:Env", env_kwargs={"fails": True}, runs=tmp_path / "runs", backend="serial", **TINY)
    assert not list((tmp_path / "runs").iterdir())


def test_nor_does_one_that_was_interrupted_before_it_began(tmp_path, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fugu.run.train.note_origin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fugu.train("cartpole", runs=tmp_path, **TINY)
    assert not list(tmp_path.iterdir())


CHANGING = """
import torch
from torch import nn
class Net(nn.Module):
    hidden_size = {width}
    calls = 0
    def __init__(self, observation_space, action_space):
        super().__init__()
        self.encoder, self.policy, self.value = nn.Linear(4, {width}), nn.Linear({width}, 2), nn.Linear({width}, 1)
    def encode(self, obs):
        Net.calls += 1
        if Net.calls > {last}:
            raise ValueError("enough")
        return self.encoder(obs).tanh()
    def decode(self, hidden):
        return self.policy(hidden), self.value(hidden).squeeze(-1)
"""


def test_weights_that_do_not_fit_a_changed_network_are_one_error(tmp_path):
    net = tmp_path / "changing_net.py"
    net.write_text(CHANGING.format(width=8, last=10**9))
    run = fugu.train("cartpole", policy=f"{net}:Net", runs=tmp_path / "runs", **TINY)
    other = tmp_path / "other_net.py"
    other.write_text(CHANGING.format(width=9, last=10**9))
    text = run.folder.config.read_text()
    run.folder.config.write_text(text.replace("changing_net.py", "other_net.py"))
    changed = fugu.Run(run.path, trust_code=True)
    for attempt in (changed.evaluate, lambda: changed.resume(steps=4000)):
        with pytest.raises(CheckpointError, match=r"does not fit .*: size mismatch for .*Put the policy's file"):
            attempt()


def test_a_network_that_raises_says_where_and_how_to_go_on(tmp_path):
    net = tmp_path / "raising_net.py"
    net.write_text(CHANGING.format(width=8, last=100))
    with pytest.raises(FuguError) as caught:
        fugu.train("cartpole", policy=f"{net}:Net", runs=tmp_path / "runs", **TINY)
    text = str(caught.value)
    assert "ValueError: enough" in text and 'raising_net.py, line 13: raise ValueError("enough")' in text
    assert "go on with: fugu train --resume" in text and "site-packages" not in text
