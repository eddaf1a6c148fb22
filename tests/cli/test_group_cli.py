"""Groups, tags and names on the command line: what is listed, drawn and refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fugu
from fugu.cli.main import main
from fugu.run import curves, store
from fugu.run.label import FILE, Label, read_label, write_label


@pytest.fixture
def grouped(runs: Path) -> Path:
    """A folder with two runs of a group of three seeds."""
    for seed, run in enumerate(store.runs(runs)):
        write_label(run.at, Label(tags=("a", f"b{seed}"), group="g", seeds=(0, 1, 2), started=1.7e9 + seed))
        run.path.rename(runs / f"g-s{seed}")
    return runs


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["runs", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_group_has_a_line_of_its_own_and_its_runs_only_when_asked_for(
    grouped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--runs", str(grouped))
    heading, line = lines(capsys, *where)
    last = [[row["score"] for row in run.read_metrics() if "score" in row][-1] for run in store.runs(grouped)]
    spread = np.std(last, ddof=1) / 2**0.5
    assert line.startswith("g ") and f"{np.mean(last):.2f} +- {spread:.2f}" in line and " 2/3 done " in line and " 60k " in line
    assert "tags" in heading and "a b0 b1" in line
    assert [each.split()[0] for each in lines(capsys, *where, "--all")[1:]] == ["g", "g-s0", "g-s1"]
    assert [each.split()[0] for each in lines(capsys, *where, "--tag", "b1", "--all")[1:]] == ["g", "g-s1"]
    (grouped / "g-s1" / "failed.txt").write_text("EnvError: no\x1b[31m luck\n")
    _, line, problem = lines(capsys, *where)
    assert "1/3 done, 1 failed" in line and problem == "g-s1: EnvError: no\\x1b[31m luck"
    rows = json.loads("\n".join(lines(capsys, *where, "--json")))
    assert [(row["name"], row["group"], row["seed"], row["tags"], row["algorithm"]) for row in rows] == [
        ("g-s1", "g", 1, ["a", "b1"], "ppo"),
        ("g-s0", "g", 0, ["a", "b0"], "ppo"),
    ]


def test_runs_without_tags_have_no_column_for_them(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "tags" not in lines(capsys, "--runs", str(runs))[0]
    assert main(["runs", "--runs", str(runs), "--tag", "zz"]) == 2
    assert "has the tag 'zz'. fugu train ENV --tag TAG gives a run one" in capsys.readouterr().err


def test_a_group_is_drawn_as_its_mean_and_other_runs_as_they_are(grouped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out = grouped / "x.svg"
    where = ["--runs", str(grouped), "-o", str(out)]
    for arguments in (["g"], ["--tag", "a"], [str(grouped / "g")]):
        assert main(["plot", *arguments, *where]) == 0
        text = out.read_text()
        assert "<!-- g: mean and standard error of 2 seeds -->" in text and "<!-- g-s0 -->" not in text
    assert main(["plot", "g-s0", "g-s1", *where]) == 0
    assert "<!-- g-s0 -->" in out.read_text() and "mean and" not in out.read_text()
    assert main(["plot", "g", "g-s0", *where]) == 0
    assert "<!-- g-s0 -->" in out.read_text() and "of 2 seeds -->" in out.read_text()
    assert main(["plot", "--tag", "b0", *where]) == 0  # one run of the group
    assert "<!-- g -->" in out.read_text()
    assert fugu.Group("g", grouped).plot(grouped / "y.svg", smooth=3).read_text().count("of 2 seeds -->") == 1
    capsys.readouterr()
    assert main(["plot", "g", "--tag", "a", *where]) == 2
    assert "not both" in capsys.readouterr().err


def test_lines_of_a_plot_are_runs_and_the_runs_of_groups_that_have_the_metric() -> None:
    one, none = (np.ones(3), np.ones(3)), (np.zeros(0), np.zeros(0))
    found = curves._lines({"a": one, "b": one, "c": none, "d": one}, ["a", "b"], {"g": ["b", "c", "d"], "h": ["c"]})
    assert {name: len(line) for name, line in found.items()} == {"a": 1, "b": 1, "g": 2, "h": 0}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cartpole", "--name", "a b"], "try --name a-b"),
        (["cartpole", "--name"], "--name needs a value, for example --name my-run"),
        (["cartpole", "--tags", "a"], "as in --tag a --tag b"),
        (["cartpole", "--tag"], "--tag needs a value"),
        (["cartpole", "--tag", "a", "--tag", "b c"], "try --tag b-c"),
        (["cartpole", "--seeds", "1.5"], "try --seeds 5"),
        (["cartpole", "--seeds", "0"], "at least 1"),
        (["cartpole", "--name", "g"], "a group of runs"),
        (["--resume", "g", "--name", "h"], "leave --name out"),
        (["--resume", "g", "--tag", "h"], "leave --tag out"),
        (["--resume", "g", "--seeds", "2"], "leave --seeds out"),
        (["--resume", "g", "--config", "x.toml"], "or begin a new run: fugu train --config x.toml"),
        (["--resume", "h"], "there is no run 'h'"),
        (["--resume", "g", "--algorithm", "a2c"], "cannot change algorithm"),
    ],
)
def test_wrong_names_tags_and_seeds_are_one_message(
    arguments: list[str], said: str, grouped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *arguments, "--runs", str(grouped)]) == 2
    out, err = capsys.readouterr()
    assert said in err and "Traceback" not in err and out == ""


def test_commands_on_one_run_name_those_of_a_group(grouped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("eval", "ratings"):
        assert main([command, "g", "--runs", str(grouped)]) == 2
        assert "g is a group of 2 runs; name one of them: g-s0, g-s1" in capsys.readouterr().err


def test_a_group_goes_on_with_the_seed_that_is_missing(grouped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = fugu.Run("g-s0", grouped).config
    (grouped / "g-s1").rename(grouped / "another-name")
    assert main(["train", "--resume", "g", "--runs", str(grouped)]) == 0
    third = fugu.Run("g-s2", grouped)
    assert third.config.seed == 2 and third.config.policy == config.policy and third.metrics()[-1]["steps"] >= 20_000
    assert read_label(third.path).group == "g" and (third.path / FILE).is_file()
    assert [run.path.name for run in fugu.Group("g", grouped)] == ["g-s0", "another-name", "g-s2"]
