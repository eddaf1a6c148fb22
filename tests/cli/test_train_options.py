"""How flags of ``fugu train`` may be written, and what is said of those that are not known."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields

import pytest

import fugu
from fugu.algorithm.config import PPOConfig
from fugu.algorithm.settings import KNOWN
from fugu.cli.main import main
from fugu.cli.options import full_names, take_word
from fugu.config import field_help, override
from fugu.errors import ConfigError
from fugu.presets import preset
from fugu.run.run import Run
from fugu.trainer.config import TrainConfig, member, refuse_unread

PPO = member("ppo")


@pytest.mark.parametrize(
    ("typed", "whole"),
    [
        ("--learning-rate 1e-3", "--optimizer.learning-rate 1e-3"),
        ("--learning_rate=0.001", "--optimizer.learning-rate=0.001"),
        ("--steps 1e6", "--steps 1000000"),
        ("--hidden 64 64 --seed 3", "--policy.hidden 64 64 --seed 3"),
        ("--no-share", "--policy.no-share"),
        ("--share false --seed 1", "--policy.no-share --seed 1"),
        ("--policy.share=true", "--policy.share"),
        ("--share=0 --no-share=0", "--policy.no-share --policy.share"),
        ("--share 1 --share 0", "--policy.share --policy.no-share"),
        ("--entropy-coef=0 --seed=0 --steps=1e6", "--ppo.entropy-coef=0 --seed=0 --steps=1000000"),
        ("--no-share false", "--policy.share"),
        ("--normalize-reward", "--ppo.normalize-reward"),
        ("--vector.seed 1", "--vector.seed 1"),
        ("--help", "--help"),
    ],
)
def test_flags_are_known_by_their_last_name_and_switches_by_yes_and_no(typed: str, whole: str) -> None:
    assert full_names(typed.split(), PPO) == whole.split()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--learning-rte 1", "Did you mean --optimizer.learning-rate?"),
        ("--polcy.core lstm", "Did you mean --policy.core"),
        ("--no-seed", "there is no option --no-seed. Did you mean --seed?"),
        ("--scale 1", "there is no option --scale. Did you mean --optimizer.schedule or "),
        ("--name x --zzzzzz", "there is no option --zzzzzz. --help lists them all"),
    ],
)
def test_a_flag_nobody_knows_gets_the_nearest_ones(typed: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        full_names(typed.split(), PPO)
    assert said in str(error.value)


@pytest.mark.parametrize("typed", ["--share=", "--share=perhaps", "--no-share=2"])
def test_a_switch_takes_yes_and_no_only(typed: str) -> None:
    with pytest.raises(ConfigError, match="must be true or false"):
        full_names([typed], PPO)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--gamma 1.5", "ppo.gamma=1.5 must be between 0 and 1"),
        ("--horizon 0", "horizon=0 must be at least 1"),
        ("--num-envs 0", "num_envs=0 must be at least 1"),
        ("--learning-rate=-1", "optimizer.learning_rate=-1.0 must be above 0"),
    ],
)
def test_an_impossible_value_is_one_line(typed: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "cartpole", *typed.split()]) == 2
    assert capsys.readouterr() == ("", said + "\n")


@pytest.mark.parametrize(
    ("typed", "said", "use"),
    [
        ("knapsack_cmdp --limit 10", "safe.limit means nothing to algorithm=ppo", "safe_ppo"),
        ("cartpole --algorithm grpo --clip 0.1", "ppo.clip means nothing to algorithm=grpo", "ppo"),
        ("hidden_bonus --algorithm mappo --past 0.2", "self_play.past means nothing to algorithm=mappo", "self_play"),
        ("pendulum --tau 0.01", "sac.tau means nothing to algorithm=ppo", "sac"),
        ("pendulum --replay.size 1000", "replay.size means nothing to algorithm=ppo", "dreamer or sac"),
        ("hidden_bonus --critic own", "mappo.critic means nothing to algorithm=ppo", "mappo"),
        ("connect4 --algorithm self_play --group-size 4", "grpo.group_size means nothing to algorithm=self_play", "grpo"),
    ],
)
def test_a_setting_of_another_algorithm_is_not_ignored(typed: str, said: str, use: str, capsys) -> None:
    assert main(["train", *typed.split()]) == 2
    err = capsys.readouterr().err
    assert said in err and err.endswith(f"use --algorithm {use}\n")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            "hidden_bonus --algorithm mappo --normalize-value",
            "normalize_value means nothing to algorithm=mappo; it has mappo.value_norm",
        ),
        (
            "reverse --algorithm token_ppo --gamma 0.9",
            "gamma means nothing to algorithm=token_ppo; it has token_ppo.token_gamma",
        ),
        ("reverse --algorithm token_ppo --vtrace", "vtrace means nothing to algorithm=token_ppo; leave it out"),
    ],
)
def test_nor_is_one_of_a_section_that_the_algorithm_reads_in_part(typed: str, said: str, capsys) -> None:
    assert main(["train", *typed.split()]) == 2
    assert f"ppo.{said}" in capsys.readouterr().err


def test_what_token_ppo_has_of_ppo_is_the_loss_and_no_more() -> None:
    has = {f.name for f in fields(TrainConfig(algorithm="token_ppo").part("ppo"))}
    assert has == {"clip", "value_clip", "value_huber", "value_coef", "normalize_advantage", "target_kl"}
    for name in {f.name for f in fields(PPOConfig)} - has:
        with pytest.raises(ConfigError, match=f"ppo.{name} means nothing to algorithm=token_ppo"):
            refuse_unread(TrainConfig(algorithm="token_ppo"), {f"ppo.{name}": 1})


def test_what_is_no_value_at_all_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "cartpole", "--horizon", "x"]) == 2
    out, err = capsys.readouterr()
    assert "--horizon INT" in err and "that form a segment" in err and out == ""
    assert main(["train", "cartpole", "--help"]) == 0
    out, err = capsys.readouterr()
    assert "--horizon INT" in out and err == ""


def test_a_preset_that_switches_something_on_lets_it_be_asked_for_again(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--normalize-observation", "--steps", "100", "--board", "off", "--runs", str(tmp_path)]
    assert main(["train", "acrobot", *flags]) == 0


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("cartpole --resume", "--resume needs a value, for example --resume latest"),
        ("cartpole --resume latest", "leave cartpole out"),
        ("cartpole --trust-code", "--trust-code is for the code that a run names"),
        ("--resume latest --env.gravity 3", "--env.gravity: a run keeps the environment it began with"),
        ("cartpole --env pong", "fugu train cartpole --env pong: which of the two?"),
        ("", "fugu train cartpole"),
        ("''", "fugu train ENV: which environment?"),
        ("--env ''", "fugu train ENV: which environment?"),
        (f"cartpole --seed {10**23}", "must not be negative, and below 2**63"),
        ("cartpole --target nan", "target=nan must be a number"),
        ("cartpole --learning-rate inf", "optimizer.learning_rate=inf must be finite"),
        ("cartpole --weight-decay inf", "optimizer.weight_decay=inf must be finite"),
        (f"cartpole --num-envs {10**9}", "of memory are free; try --num-envs"),
        (f"cartpole --num-envs {10**15}", "of memory are free; try --num-envs"),
        (f"cartpole --horizon {10**11} --minibatch {10**11}", "of memory are free; try --horizon"),
    ],
)
def test_what_cannot_be_meant_is_said_before_anything_starts(typed: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *shlex.split(typed)]) == 2
    assert said in capsys.readouterr().err


def test_what_to_do_next_can_be_typed_where_a_path_has_a_space(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "my runs"
    assert main(["train", "cartpole", "--steps", "1", "--board", "off", "--runs", str(runs)]) == 0
    (folder,) = runs.iterdir()
    commands = [shlex.split(line, comments=True) for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert len(commands) == 4 and all(str(folder) in command for command in commands)
    assert int(commands[-1][-1]) > Run(folder).metrics()[-1]["steps"] > 2


@pytest.mark.parametrize(("target", "drops"), [("1000", False), ("1", True)])
def test_a_run_that_goes_on_drops_its_target_only_if_that_was_reached(tmp_path, capsys, target: str, drops: bool) -> None:
    assert main(["train", "cartpole", "--steps", "20000", "--target", target, "--board", "off", "--runs", str(tmp_path)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "--resume" in line]
    assert ("--target None" in line) is drops
    assert main([*shlex.split(line, comments=True)[1:], "--steps", "24000"]) == 0
    assert Run("latest", tmp_path).metrics()[-1]["steps"] >= 24_000 and capsys.readouterr().out.count("done: ") == 1


@pytest.mark.parametrize(
    ("typed", "word", "rest"),
    [
        ("cartpole --steps 3", "cartpole", "--steps 3"),
        ("--steps 3 cartpole", "cartpole", "--steps 3"),
        ("--steps=3 cartpole --seed 1", "cartpole", "--steps=3 --seed 1"),
        ("--learning-rate -1 --no-share cartpole", "cartpole", "--learning-rate -1 --no-share"),
        ("--share no cartpole", "cartpole", "--share no"),
        ("--policy my.py:Net cartpole pong", "cartpole", "--policy my.py:Net pong"),
        ("--hidden 64 64 --opponents random solver", None, "--hidden 64 64 --opponents random solver"),
        ("--help", None, "--help"),
    ],
)
def test_the_environment_is_the_word_that_is_no_value(typed: str, word: str | None, rest: str) -> None:
    assert take_word(typed.split(), PPO, *map(member, KNOWN)) == (rest.split(), word)


def test_two_environments_are_one_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "cartpole", "--steps", "100", "pendulum"]) == 2
    assert "fugu train cartpole pendulum: a run has one environment" in capsys.readouterr().err


def test_an_environment_may_come_after_options(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--steps", "100", "bandit", "--board", "off", "--runs", str(tmp_path)]) == 0
    assert Run("latest", tmp_path).config.env == "bandit"
    assert main(["train", "--steps", "100", "bandt"]) == 2
    assert "bandit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("algorithm", "typed", "whole"),
    [
        ("ppo", "--minibatch none --seed 1", "--minibatch None --seed 1"),
        ("ppo", "--minibatch=NONE --target none", "--minibatch=None --target None"),
        ("grpo", "--core none --scale none --start none", "--policy.core none --grpo.scale none --policy.start none"),
    ],
)
def test_none_is_no_number_in_any_case(algorithm: str, typed: str, whole: str) -> None:
    assert full_names(typed.split(), member(algorithm)) == whole.split()


@pytest.mark.parametrize("num_envs", [1, 3, 24, 30])
def test_all_that_is_suggested_for_a_small_batch_fits(num_envs: int) -> None:
    config = override(preset("cartpole"), {"num_envs": num_envs, "minibatch": 1024, "horizon": 32})
    with pytest.raises(ConfigError, match="is more than the batch") as refused:
        config.minibatches(num_envs)
    for name, value in re.findall(r"--(\w+) (\d+)", str(refused.value)):
        override(config, {name: int(value)}).minibatches(num_envs)


def test_a_run_ends_after_the_batch_that_reaches_its_steps_and_the_help_says_so(tmp_path):
    assert field_help(TrainConfig)["steps"].endswith("the run ends after the batch that reaches them")
    run = fugu.train("cartpole", runs=tmp_path, steps=1000, num_envs=16, horizon=16, minibatch=256, **{"log.board": "off"})
    *_, before, last = [row["steps"] for row in run.metrics()]
    assert before < 1000 < last
