"""Checkpoints whose hashes are right and whose content no training can have left, and numbers that are absurd: one line, at once."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

import fugu
from fugu.cli.main import main
from fugu.trainer.checkpoint import CheckpointError
from tests.security.fuzz import seal_again
from tests.timing import in_time

TINY = {"steps": 256, "num_envs": 4, "horizon": 8, "minibatch": 32, "threads": 1, "log.board": "off"}
NAN = float("nan")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("made")
    plain = {"policy.normalize_observation": True, **TINY}
    return {
        "cartpole": fugu.train("cartpole", runs=root, name="cartpole", **plain).folder.at,
        "connect4": fugu.train("connect4", algorithm="self_play", runs=root, name="connect4", **TINY).folder.at,
    }


def changed(run: Path, group: str, name: str, value: Any) -> None:
    """Change a part of the newest checkpoint; its hashes are right again."""
    folder = sorted((run / "checkpoints").glob("step_*"))[-1]
    if group == "state":
        state = json.loads((folder / "state.json").read_text())
        (folder / "state.json").write_text(json.dumps({**state, name: value}))
    else:
        tensors = load((folder / f"{group}.safetensors").read_bytes())
        key = next(key for key in tensors if name in key)
        tensors[key] = value(tensors[key]).contiguous()
        (folder / f"{group}.safetensors").write_bytes(save(tensors))
    seal_again(folder, json.loads((folder / "MANIFEST.json").read_text()))


CHANGES = {
    "steps of another checkpoint": ("state", "steps", 7, "and its state of step 7"),
    "steps as text": ("state", "steps", "256", "its steps is '256'"),
    "negative updates": ("state", "updates", -1, "its updates is -1"),
    "episodes that are true": ("state", "episodes", True, "its episodes is True"),
    "best as a list": ("state", "best", [1], "its best is"),
    "absurd merit": ("state", "merit", 1e308, "its merit is"),
    "a seed with a fraction": ("state", "restart_seed", 0.5, "its restart_seed is"),
    "a rate below zero": ("state", "learning_rate", -1.0, "learning_rate is negative"),
    "no rounds": ("state", "score", {"rounds": 3}, "its score is"),
    "rounds of nothing": ("state", "score", {"rounds": [[0, 1.0]], "round": [0, 0.0], "settled": True}, "its score is"),
    "weights that are none": ("policy", "weight", lambda x: torch.full_like(x, NAN), "numbers that are not finite"),
    "infinite weights": ("policy", "weight", lambda x: x * float("inf"), "numbers that are not finite"),
    "weights of another shape": ("policy", "weight", lambda x: x[:1], "does not fit the network"),
    "a negative variance": ("policy", "var", lambda x: -x - 1, "no mean and variance"),
    "a negative mean square": ("optimizer", "square", lambda x: x - 1, "nothing that an optimizer can have"),
    "steps of the optimizer": ("optimizer", "steps", lambda x: x * 0 - 5, "nothing that an optimizer can have"),
    "marks that are one": ("score", "acted", lambda x: x[:1].reshape(()), "its score.acted is bool"),
    "a generator": ("algorithm", "minibatch_generator", lambda x: x[:10], "does not fit"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_no_training_can_have_left_is_refused_by_those_who_need_it(made, tmp_path, change):
    group, name, value, why = CHANGES[change]
    run = Path(shutil.copytree(made["cartpole"], tmp_path / "run"))
    changed(run, group, name, value)
    with pytest.raises(CheckpointError, match=why):
        fugu.Run(run).resume(steps=512)
    if group == "policy":
        with pytest.raises(CheckpointError, match=why):
            fugu.Run(run).evaluate(1)
        with pytest.raises(CheckpointError, match=why):
            fugu.load(run)
    else:
        assert fugu.Run(run).evaluate(1).episodes == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ratings", lambda x: x * NAN),
        ("ratings", lambda x: -x),
        ("ratings", lambda x: x[:, :2]),
        ("who", lambda x: x + 1000),
        ("who", lambda x: x.float() + 0.5),
    ],
)
def test_a_rating_table_that_cannot_be_is_refused(made, tmp_path, capsys, name, value):
    run = Path(shutil.copytree(made["connect4"], tmp_path / "run"))
    changed(run, "algorithm", name, value)
    assert main(["train", "--resume", str(run), "--steps", "512", "--board", "off"]) == 1
    if name == "ratings":
        assert main(["ratings", str(run)]) == 1
    assert all(len(line) < 600 for line in capsys.readouterr().err.splitlines())


@pytest.mark.parametrize(
    "flags",
    [
        ("--passes", "9e18"),
        ("--passes", "1e308"),
        ("--epochs", str(2**31)),
        ("--threads", "9e18"),
        ("--minibatch", "9e18"),
        ("--num-envs", "9e18"),
        ("--horizon", "9e18"),
        ("--policy.core", "lstm", "--policy.core-size", "1000000"),
        ("--policy.core", "mingru", "--policy.core-layers", "1000000000"),
        ("--policy.hidden", "100000000", "100000000"),
        ("--ppo.value-huber", "1e308"),
        ("--learning-rate", "1e308"),
        ("--steps", "9" * 6000),
        ("--env.max_steps", "9e30"),
    ],
)
def test_absurd_sizes_are_one_line_at_once(tmp_path, monkeypatch, capsys, flags):
    monkeypatch.chdir(tmp_path)
    began = time.monotonic()
    sizes = ("--num-envs", "4", "--horizon", "8", "--minibatch", "32")
    assert main(["train", "cartpole", "--steps", "64", "--board", "off", *sizes, *flags]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1 and not list(tmp_path.iterdir())
    in_time(time.monotonic() - began, 2)


@pytest.mark.parametrize(
    "text", ["x = " + "[" * 5000, "x = " + "9" * 6000, "steps = 1e400", "policy = 5", "x.y.z = {a = {}}", '"\\u0000" = 1']
)
def test_a_config_of_any_content_is_a_line(made, tmp_path, capsys, text):
    run = Path(shutil.copytree(made["cartpole"], tmp_path / "run"))
    config = run / "config.toml"
    config.write_text(f"{text}\n{config.read_text()}")
    for command in (
        ["eval", str(run)],
        ["train", "--resume", str(run)],
        ["train", "--config", str(config)],
        ["plot", str(run)],
    ):
        code = main(command)
        assert code in ((0, 2) if command[0] == "plot" else (2,)) and len(capsys.readouterr().err.splitlines()) <= 1, command


@pytest.mark.parametrize("line", ['"x": 3', '"time/wall": null', '"time/wall": -5', '"time/steps_per_second": 1e308'])
def test_a_run_goes_on_whatever_its_last_line_of_timing_holds(made, tmp_path, line):
    run = Path(shutil.copytree(made["cartpole"], tmp_path / "run"))
    with (run / "timing.jsonl").open("a") as file:
        file.write(f'{{"updates": 1, "steps": 1, {line}}}\n')
    gone_on = fugu.Run(run).resume(steps=512)
    assert gone_on.metrics()[-1]["steps"] >= 512 and gone_on.folder.read_timing()[-1]["time/wall"] >= 0
