"""A run's config is one of a union: which sections it has, how it changes its algorithm, and how older files are read."""

from __future__ import annotations

import dataclasses
import pickle
import shutil
from pathlib import Path

import pytest

import fugu
from fugu.algorithm.config import MAPPOConfig, PPOConfig
from fugu.algorithm.find import names
from fugu.cli.main import main
from fugu.config import fixed_paths, to_toml
from fugu.errors import ConfigError
from fugu.policy.config import PolicyConfig
from fugu.trainer import checkpoint
from fugu.trainer.build import make_trainer
from fugu.trainer.config import EvalConfig, TrainConfig, read_config, with_algorithm
from fugu.trainer.interrupt import Interrupt
from fugu.vector.config import VectorConfig

OLD = Path(__file__).parent / "old_run"


@pytest.mark.parametrize("algorithm", names())
def test_a_config_is_read_back_as_it_was_written(algorithm, tmp_path):
    config = TrainConfig(algorithm=algorithm, steps=7)
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert read_config(tmp_path / "config.toml") == config == pickle.loads(pickle.dumps(config))
    assert type(config) is type(TrainConfig(algorithm=algorithm)) and isinstance(config, TrainConfig)


@pytest.mark.parametrize("before", names())
@pytest.mark.parametrize("after", names())
def test_what_two_algorithms_share_stays_when_one_takes_the_place_of_the_other(before, after):
    config = dataclasses.replace(TrainConfig(algorithm=before), steps=9)
    if hasattr(config, "ppo"):
        config = dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, clip=0.15))
    changed = with_algorithm(config, after)
    assert changed.algorithm == after and changed.steps == 9
    if hasattr(config, "ppo") and hasattr(changed, "ppo"):
        assert changed.ppo.clip == 0.15
    assert type(changed.settings) is type(TrainConfig(algorithm=after).settings)


def test_sections_of_other_algorithms_do_not_exist():
    with pytest.raises(TypeError, match="grpo"):
        TrainConfig(grpo=None)
    with pytest.raises(ConfigError, match="it has mappo.value_norm instead"):
        TrainConfig(algorithm="mappo", ppo=PPOConfig(normalize_value=True))
    with pytest.raises(ConfigError, match="with_algorithm"):
        dataclasses.replace(TrainConfig(), algorithm="mappo")


def test_fields_say_themselves_that_a_run_keeps_them():
    paths = {".".join(path) for path in fixed_paths(TrainConfig(algorithm="mappo", mappo=MAPPOConfig()))}
    assert {"env", "algorithm", "seed", "policy", "vector.num_envs", "optimizer.name", "mappo", "ppo.normalize_reward"} <= paths
    assert not paths & {"steps", "ppo.gamma", "optimizer.learning_rate"}


def test_a_run_of_an_earlier_version_is_gone_on_with(tmp_path):
    shutil.copytree(OLD, tmp_path / "run")
    config = read_config(tmp_path / "run" / "config.toml")  # it has the sections of all algorithms
    assert config.policy.core == "lstm" and not hasattr(config, "grpo")
    run = fugu.Run(tmp_path / "run")
    before = run.metrics()
    run.resume(steps=2 * before[-1]["steps"], **{"log.board": "off"})
    rows = run.metrics()
    assert rows[: len(before)] == before
    assert rows[len(before)]["updates"] == before[-1]["updates"] + 1
    assert rows[len(before)]["learned"] > before[-1]["steps"]
    assert run.evaluate(4).episodes == 4


def test_a_run_that_goes_on_keeps_its_algorithm(tmp_path, capsys):
    shutil.copytree(OLD, tmp_path / "run")
    assert main(["train", "--resume", str(tmp_path / "run"), "--algorithm", "grpo", "--steps", "2000"]) == 2
    assert "a run that goes on cannot change algorithm; start a new one for that" in capsys.readouterr().err


def test_the_best_is_found_anew_when_another_measure_says_which_one_it_is(tmp_path):
    config = TrainConfig(
        steps=20 * 16 * 8,
        horizon=8,
        vector=VectorConfig(num_envs=16, num_workers=1),
        policy=PolicyConfig(hidden=(8,)),
        eval=EvalConfig(every=5, episodes=4),
    )
    trainer = make_trainer(config, tmp_path)
    trainer.start()
    trainer.run(lambda metrics: None, Interrupt())
    trainer.close()
    assert checkpoint.find(tmp_path, "best").parent.name == checkpoint.BEST
    plain = dataclasses.replace(config, eval=EvalConfig(), steps=200 * 16 * 8)
    again = make_trainer(plain, tmp_path)
    again.load(checkpoint.find(tmp_path, "latest"))
    assert again.best is None
    again.run(lambda metrics: None, Interrupt())
    again.close()
    assert checkpoint.find(tmp_path, "best").parent == tmp_path  # by the returns of training, later than any evaluation
