"""Checkpoints whose hashes are right and whose content no training can have left, and numbers that are absurd: one line, at once."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

import fugu
from fugu.cli.main import main
from fugu.errors import ConfigError
from fugu.rollout.recalled import COUNTS
from fugu.trainer.checkpoint import CheckpointError
from tests.security.fuzz import change_rows, seal_again
from tests.timing import in_time

TINY = {"steps": 256, "num_envs": 4, "horizon": 8, "minibatch": 32, "threads": 1, "log.board": "off"}
REPLAYED = {"steps": 256, "num_envs": 4, "threads": 1, "log.board": "off", "minibatch": 32}
REPLAYED |= {"replay.start": 64, "replay.size": 4000, "replay.ratio": 16, "replay.priority": 0.6}
NAN = float("nan")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("made")
    plain = {"policy.normalize_observation": True, **TINY}
    return {
        "cartpole": fugu.train("cartpole", runs=root, name="cartpole", **plain).folder.at,
        "connect4": fugu.train("connect4", algorithm="self_play", runs=root, name="connect4", **TINY).folder.at,
        "sac": fugu.train("cartpole", algorithm="sac", runs=root, name="sac", **REPLAYED).folder.at,
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


def counted(**counts: int) -> Callable[[Tensor], Tensor]:
    def change(column: Tensor) -> Tensor:
        return torch.tensor([counts.get(name, int(old)) for name, old in zip(COUNTS, column.tolist(), strict=True)])

    return change


REPLAYS = {
    "rows to learn from without end": ("counts", counted(credit=2**62), "are no counts of rows"),
    "a debt of rows": ("counts", counted(credit=-(2**62)), "are no counts of rows"),
    "fewer rows than none": ("counts", counted(rows=-(2**62)), "are no counts of rows"),
    "more rows than can be counted": ("counts", counted(rows=2**63 - 1, untold=2**63 - 1), "are no counts of rows"),
    "rows that nobody was told of": ("counts", counted(untold=10**9), "are no counts of rows"),
    "an end before the beginning": ("counts", counted(begin=500), "are no counts of rows"),
    "rows of no page": ("counts", counted(begin=5), "has rows up to"),
    "counts with a fraction": ("counts", lambda x: x.double() + 0.5, r"is float64\[6\] instead of int64\[6\]"),
    "no priority": ("highest", lambda x: x * NAN, "is nan, which is no priority"),
    "infinite priorities": ("weights", lambda x: torch.full_like(x, float("inf")), "holds what is no priority"),
    "priorities below zero": ("weights", lambda x: -x - 1, "holds what is no priority"),
    "priorities of one agent": ("weights", lambda x: x[:1], "instead of float64"),
    "actions that do not exist": ("page action", lambda x: x + 1000, r"outside Discrete\(2\)"),
    "actions below zero": ("page action", lambda x: x - 5, r"outside Discrete\(2\)"),
    "one action for all": ("page action", lambda x: x[:1, :1], "instead of int64"),
    "observations of another shape": ("page obs", lambda x: torch.cat([x, x], -1), "instead of float32"),
    "observations that are none": ("page obs", lambda x: x * NAN, "'obs' of the saved state holds NaN"),
    "rewards that are none": ("page reward", lambda x: x * NAN, "holds NaN"),
    "flags that are none": ("page mask", lambda x: torch.full_like(x, 7, dtype=torch.uint8).view(torch.bool), "neither true"),
    "flags as numbers": ("page first", lambda x: x.float(), "instead of bool"),
    "no rows": ("page mask", lambda x: x[:, :0], "has no rows"),
    "masks of a thousand choices": ("page action_mask", lambda x: torch.ones(1, 1, 1000, dtype=torch.bool), "instead of bool"),
}


@pytest.mark.parametrize("change", REPLAYS)
def test_a_replay_that_no_training_can_have_left_is_refused(made, tmp_path, change):
    name, value, why = REPLAYS[change]
    run = Path(shutil.copytree(made["sac"], tmp_path / "run"))
    if name.startswith("page "):
        change_page(run, name.removeprefix("page "), value)
    else:
        changed(run, "replay", name, value)
    with pytest.raises(ConfigError, match=why):
        fugu.Run(run).resume(steps=512)
    assert fugu.Run(run).evaluate(1).episodes == 1


def change_page(run: Path, name: str, value: Callable[[Tensor], Tensor]) -> None:
    """Change a column of the first page that the newest checkpoint names; its hashes are right again."""
    folder = sorted((run / "checkpoints").glob("step_*"))[-1]
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    change_rows(run, manifest, 0, lambda columns: columns.update({name: value(columns.get(name, columns["mask"]))}))
    seal_again(folder, manifest)


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
        ("--algorithm", "self_play", "--self-play.pool", "9e18"),
        ("--algorithm", "safe_ppo", "--safe.delay", str(2**31)),
        ("--eval.every", "1", "--eval.episodes", "9e18"),
        ("--algorithm", "sac", "--replay.ratio", "9e18"),
        ("--algorithm", "sac", "--replay.every", str(2**31)),
        ("--algorithm", "sac", "--replay.size", "9e18"),
        ("--algorithm", "sac", "--minibatch", "9e18"),
        ("--algorithm", "dreamer", "--dreamer.ahead", "9e18"),
        ("--algorithm", "dreamer", "--replay.every", "9e18"),
    ],
)
def test_absurd_sizes_are_one_line_at_once(tmp_path, monkeypatch, capsys, flags):
    monkeypatch.chdir(tmp_path)
    began = time.monotonic()
    sizes = ("--num-envs", "4", *(() if "--algorithm" in flags else ("--horizon", "8", "--minibatch", "32")))
    assert main(["train", "cartpole", "--steps", "64", "--board", "off", *sizes, *flags]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1 and not list(tmp_path.iterdir())
    in_time(time.monotonic() - began, 2)


def test_more_episodes_than_anybody_waits_for_are_one_line(made, capsys):
    assert main(["eval", str(made["cartpole"]), "--episodes", str(2**31)]) == 2
    assert capsys.readouterr().err == "episodes=2147483648 must be at most 1000000\n"


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
