"""What other libraries call their settings: each name is answered with ours, and what is said of ours is true."""

from __future__ import annotations

import pytest

import fugu
from fugu.cli.main import main
from fugu.config import field_paths, override
from fugu.errors import ConfigError
from fugu.foreign import NAMES
from fugu.trainer.config import TrainConfig, member

PATHS = {*field_paths(member("ppo")), *field_paths(member("sac"))}


def test_every_name_leads_to_a_setting_that_exists_and_is_none_itself():
    for name, (_, here, _) in NAMES.items():
        assert not here or tuple(here.split(".")) in PATHS, name
        assert (name,) not in PATHS and not any(path[-1] == name for path in PATHS), name


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--lr", "--lr: fugu calls it --optimizer.learning-rate (or --learning-rate)"),
        ("--total-timesteps", "fugu calls it --steps; counted over all environments"),
        ("--n-envs=4", "--n-envs (SB3): fugu calls it --vector.num-envs (or --num-envs)"),
        ("--n_steps", "fugu calls it --horizon"),
        ("--num-minibatches", "fugu calls it --minibatch; in rows instead of a count"),
        ("--train.learning-rate", "fugu calls it --optimizer.learning-rate (or --learning-rate)"),
        ("--train.update-epochs", "fugu calls it --epochs"),
        ("--vec.num-envs", "fugu calls it --vector.num-envs (or --num-envs)"),
        ("--anneal-lr", "fugu calls it --optimizer.schedule (or --schedule)"),
        ("--use-sde", "fugu has no such setting; there is no such exploration; --policy.std state"),
        ("--train.nonsense", "there is no option --train.nonsense"),
    ],
)
def test_a_flag_of_another_library_is_answered_with_ours(flag, said, capfd):
    assert main(["train", "cartpole", flag, "1"]) == 2
    shown = capfd.readouterr().err
    assert said in shown and shown.count("\n") == 1


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("lr", r"^lr: fugu calls it optimizer\.learning_rate \(or learning_rate\)$"),
        ("total_timesteps", "fugu calls it steps"),
        ("n_epochs", "fugu calls it epochs"),
        ("clip_range", r"fugu calls it ppo\.clip \(or clip\)"),
        ("callback", r"fugu has no such setting; fugu\.train\(\.\.\., callbacks=\[\.\.\.\]\) takes"),
        ("train.gamma", r"fugu calls it ppo\.gamma"),
        ("nonsense", "there is no setting 'nonsense'"),
    ],
)
def test_a_setting_of_another_library_is_answered_with_ours(setting, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        fugu.train("cartpole", runs=tmp_path, **{setting: 3})
    assert not list(tmp_path.iterdir())


def test_a_batch_size_in_rows_is_told_from_one_in_environments(tmp_path):
    with pytest.raises(ConfigError, match="rows of a gradient step are minibatch"):
        fugu.train("cartpole", runs=tmp_path, num_envs=8, **{"vector.batch_size": 64})


def test_a_name_that_means_one_thing_here_and_another_there_is_no_setting_without_its_section(tmp_path, capfd):
    with pytest.raises(ConfigError, match=r"could be minibatch, rows of a gradient step, as in SB3, or vector.batch_size, env"):
        fugu.train("cartpole", runs=tmp_path, num_envs=64, batch_size=64)
    assert main(["train", "cartpole", "--num-envs", "64", "--batch-size", "64"]) == 2
    assert (
        "--batch-size could be --minibatch, rows of a gradient step, as in SB3, or --vector.batch-size"
        in capfd.readouterr().err
    )
    assert override(TrainConfig(), {"vector.batch_size": 4}).vector.batch_size == 4


def test_an_algorithm_without_the_setting_does_not_send_there():
    with pytest.raises(ConfigError) as raised:
        fugu.train("cartpole", algorithm="grpo", clip_range_vf=0.2)
    assert "ppo.value_clip" not in str(raised.value)
