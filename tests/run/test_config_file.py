"""``--config file.toml``: whole configs and parts of one, what wins over what, and what is said of a file that is wrong."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import get_args

import pytest

import fugu
from fugu.algorithm.find import names
from fugu.cli.main import main
from fugu.config import field_paths, field_type, override, to_toml
from fugu.errors import ConfigError
from fugu.presets import BY_ALGORITHM, PRESETS, preset
from fugu.run.config_file import from_file
from fugu.trainer.config import TrainConfig, member

OLD_RUN = Path(__file__).parent.parent / "trainer" / "old_run"
TINY = 'steps = 600\nboard = "off"\nthreads = 1\nhorizon = 8\nminibatch = 64\nnum_envs = 8\nbackend = "serial"\n'

EVERY = [(None, env) for env in PRESETS] + [(name, env) for name, envs in BY_ALGORITHM.items() for env in envs]


def written(tmp_path: Path, text: str, name: str = "some.toml") -> Path:
    file = tmp_path / name
    file.write_text(text)
    return file


@pytest.mark.parametrize(("algorithm", "env"), EVERY)
def test_a_whole_config_gives_exactly_that_config(algorithm: str | None, env: str, tmp_path: Path) -> None:
    config = override(preset(env, algorithm=algorithm), {"seed": 7, "minibatch": None, "eval.every": 3})
    file = written(tmp_path, to_toml(config))
    assert from_file(file) == config
    assert from_file(file, config.env) == config


def test_a_field_that_may_be_none_is_none_where_it_is_not_named() -> None:
    """None has no TOML form, so a whole config can only be read back if that is the default."""
    for algorithm in names():
        kind = member(algorithm)
        for path in field_paths(kind):
            if type(None) in get_args(field_type(kind, path)):
                value = kind()
                for name in path:
                    value = getattr(value, name)
                assert value is None, path


def test_a_part_of_a_config_changes_the_preset_and_nothing_else(tmp_path: Path) -> None:
    text = 'env = "cartpole"\nlearning_rate = 1\nminibatch = "none"\n[ppo]\ngamma = 0.5\n[env_kwargs]\ngravity = 12.0\n'
    file = written(tmp_path, text)
    changes = {"learning_rate": 1.0, "minibatch": None, "ppo.gamma": 0.5, "env_kwargs": {"gravity": 12.0}}
    assert from_file(file) == override(preset("cartpole"), changes)
    assert from_file(file, env_kwargs={"gravity": 1.0}).env_kwargs == {"gravity": 1.0}
    other = from_file(file, "snake")
    assert other.env == "snake" and other.env_kwargs == preset("snake").env_kwargs and other.ppo.gamma == 0.5


def test_a_whole_config_may_be_taken_to_another_environment_or_algorithm(tmp_path: Path) -> None:
    config = override(preset("cartpole"), {"env_kwargs": {"gravity": 12.0}, "ppo.gamma": 0.5})
    file = written(tmp_path, to_toml(config))
    assert from_file(file, "snake") == override(config, {"env": "snake", "env_kwargs": preset("snake").env_kwargs})
    other = from_file(file, algorithm="safe_ppo")
    assert other.algorithm == "safe_ppo" and other.ppo.gamma == 0.5 and other.env_kwargs == {"gravity": 12.0}


def test_options_win_over_the_file_and_the_file_over_the_preset(tmp_path: Path) -> None:
    file = written(
        tmp_path, 'env = "cartpole"\nalgorithm = "safe_ppo"\n' + TINY + "[safe]\nlimit = [3.0]\n[ppo]\ngamma = 0.5\n"
    )
    runs = tmp_path / "runs"
    env = tmp_path / "costly.py"
    env.write_text(COSTLY)
    where = ["--runs", str(runs), "--config", str(file)]
    assert main(["train", f"{env}:Env", *where, "--gamma", "0.75", "--name", "a"]) == 0
    config = fugu.Run("a", runs).config
    assert config.algorithm == "safe_ppo" and config.safe.limit == (3.0,) and config.ppo.gamma == 0.75
    again = fugu.train(f"{env}:Env", config=file, runs=runs, name="b", gamma=0.75)
    assert again.config == config and again.metrics() == fugu.Run("a", runs).metrics()
    copied = ["--config", str(runs / "a" / "config.toml"), "--runs", str(runs)]
    assert main(["train", *copied, "--name", "c", "--seed", "3"]) == 0
    assert fugu.Run("c", runs).config == override(config, {"seed": 3})


COSTLY = """
import gymnasium, numpy as np
class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    costs = ("cost",)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.zeros(2, np.float32), float(action), False, True, {"cost": 1.0}
"""


def test_sizes_are_checked_once_options_have_changed_them(tmp_path: Path) -> None:
    file = written(tmp_path, 'horizon = 7\nsteps = 100\nboard = "off"\n')
    with pytest.raises(ConfigError, match="must be a multiple of horizon=7.*; try --minibatch 448"):
        fugu.train("cartpole", config=file, runs=tmp_path)
    assert main(["train", "cartpole", "--config", str(file), "--runs", str(tmp_path / "runs"), "--minibatch", "448"]) == 0


def test_files_that_a_config_names_are_looked_for_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "costly.py").write_text(COSTLY)
    (folder / "runs" / "older").mkdir(parents=True)
    file = written(folder, 'env = "costly.py:Env"\n[policy]\nnet = "net.py:Net"\nstart = "weights.safetensors"\n')
    monkeypatch.chdir(tmp_path)
    config = from_file("mine/some.toml")
    assert config.env == f"{folder}/costly.py:Env"
    assert config.policy.net == f"{folder}/net.py:Net" and config.policy.start == f"{folder}/weights.safetensors"
    (folder / "mine.py").write_text("from fugu.algorithm.ppo import PPO as Parent\nclass Mine(Parent):\n    pass\n")
    file.write_text('env = "cartpole"\nalgorithm = "mine.py:Mine"\n')
    assert from_file("mine/some.toml").algorithm == f"{folder}/mine.py:Mine"
    file.write_text('env = "connect4"\nalgorithm = "self_play"\n[self_play]\nopponents = ["runs/older", "elsewhere"]\n')
    assert from_file("mine/some.toml").self_play.opponents == ("mine/runs/older", "elsewhere")


def test_the_config_of_a_run_of_an_earlier_version_is_taken_as_a_resumed_run_takes_it(tmp_path: Path) -> None:
    shutil.copytree(OLD_RUN, tmp_path / "old-20250101-000000")
    assert from_file(tmp_path / "old-20250101-000000" / "config.toml") == fugu.Run("latest", tmp_path).config


WHOLE = to_toml(TrainConfig())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "steps = 9\n[optimizer]\nlearning_rat = 1\n",
            "line 3: there is no setting 'optimizer.learning_rat'. Did you mean 'opt",
        ),
        ("\n[optimiser]\nname = 'adam'", "line 3: there is no setting 'optimiser.name'. Did you mean 'optimizer.name'"),
        ("stepps = 9", "line 1: there is no setting 'stepps'. Did you mean 'steps'"),
        ("steps = 'many'", "line 1: steps='many' must be a whole number"),
        ("steps = 1\nlearning_rate = true", "line 2: optimizer.learning_rate=True must be a number"),
        ("steps = 9\nname = 'x'", "line 2: name is no setting but about one run; leave it out, and give --name my-run"),
        ("ppo = 3", "line 1: ppo is a section: write [ppo]"),
        ("env = 3", "line 1: env=3 must be text"),
        ("env_kwargs = 3", "line 1: env_kwargs=3 must be a mapping"),
        ("vector = 3", "line 1: vector=3 must be a mapping"),
        ("[vector]\nstart_timeout = 'x'", "line 2: vector.start_timeout='x' must be a number"),
        ("algorithm = 'safe_pp'", "line 1: there is no algorithm 'safe_pp'. Did you mean 'safe_ppo'"),
        ("[sac]\ntau = 0.1", "line 2: sac.tau means nothing to algorithm=ppo"),
        ("[grpo]\ngroup_size = 4", "line 2: grpo.group_size means nothing to algorithm=ppo"),
        ("[optimizer]\nschedule = 'step'", ": optimizer.schedule='step' must be one of constant, linear, cosine"),
        ("steps = = 3", " is not TOML: Invalid value (at line 1, column 9)"),
        ("\x00", " is not TOML: "),
        ("a = " + "[" * 100_000, " is not TOML: "),
        ("", " is empty; it may be a run's config.toml or some lines of one"),
        (WHOLE[: WHOLE.index("[optimizer]")], " begins like the config of a run but does not end with '# end'"),
        (WHOLE.replace("learning_rate", "learning_rat"), ": there is no setting 'optimizer.learning_rat'. Did you mean"),
        (WHOLE.replace("steps = 1000000", "steps = 'x'"), "line 4: steps='x' must be a whole number"),
        (WHOLE.replace("\n# end", "[grpo]\ngroup_size = 33\n# end"), ": grpo.group_size means nothing to algorithm=ppo"),
        (WHOLE.replace("\n# end", "[grop]\nsize = 33\n# end"), ": there is no setting 'grop.size'"),
    ],
)
def test_a_file_that_is_wrong_is_one_message(text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        fugu.train("cartpole", config=file, runs=tmp_path / "runs")
    assert str(error.value).startswith(str(file)) and said in str(error.value)
    assert main(["train", "cartpole", "--config", str(file), "--runs", str(tmp_path / "runs")]) == 2
    out, err = capsys.readouterr()
    assert said in err.replace("\n", " ") and "Traceback" not in err and out == "" and not (tmp_path / "runs").exists()


def test_a_file_that_is_not_there_or_names_no_environment_says_what_to_type(tmp_path: Path) -> None:
    file = written(tmp_path, "steps = 3\n")
    with pytest.raises(ConfigError, match=f"names no environment: give one, as in fugu train cartpole --config {file}"):
        from_file(file)
    with pytest.raises(ConfigError, match="there is no file .*sme.toml. Did you mean 'some.toml'"):
        from_file(tmp_path / "sme.toml")
    with pytest.raises(ConfigError, match=f"is a folder; try --config {tmp_path}/config.toml"):
        from_file(tmp_path)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        from_file(file)
