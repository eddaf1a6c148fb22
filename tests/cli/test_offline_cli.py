"""``fugu train FILE --algorithm bc`` and ``fugu eval RUN --target``: recorded episodes on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from gymnasium import spaces as gs
from tests.algorithm.recorded import anything, record

from fugu.cli.main import main

SMALL = ["--policy.width", "16", "--horizon", "4", "--minibatch", "64", "--steps", "8"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    record("cartpole", tmp_path / "data", anything(gs.Discrete(2)), 4, name="cartpole")
    return tmp_path


def test_a_data_set_stands_in_the_place_of_an_environment(capsys):
    assert main(["train", "data", "--algorithm", "bc", "--steps", "32"]) == 0
    out, err = capsys.readouterr()
    assert "the return that this policy gets is not known" in err and "32 gradient steps" in out
    assert Path("runs").iterdir().__next__().name.startswith("cartpole-")
    assert main(["train", "data", "--algorithm", "bc", "--steps", "32", "--eval", "--eval.episodes", "3"]) == 0
    out, err = capsys.readouterr()
    assert "not known" not in err and "mean return of the last evaluation" in out


def test_a_decision_transformer_is_asked_for_several_returns_in_a_row(capsys):
    assert main(["train", "data", "--algorithm", "dt", *SMALL]) == 0
    assert "--target" in capsys.readouterr().out
    assert main(["eval", "latest", "--greedy", "--episodes", "2", "--target", "10", "20.5"]) == 0
    out = capsys.readouterr().out
    assert "asked for" in out and re.search(r"20\.5 +\d", out)
    assert main(["eval", "latest", "--greedy", "--episodes", "2", "--target", "30", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [each["target"] for each in report["targets"]] == [30.0]
    assert report["mean_return"] == report["targets"][0]["mean_return"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["train", "nowhere", "--algorithm", "bc"], "learns from recorded episodes; type fugu train FILE --algorithm bc"),
        (["train", "cartpole", "--eval"], "--eval alone is for learning from recorded episodes"),
        (["train", "data", "--algorithm", "bc", "--env", "pendulum", "--eval"], "was recorded with observation_space"),
        (["train", "data", "--algorithm", "td3bc"], "Boxes with bounds"),
        (["train", "data", "--algorithm", "dt", "--dt.dropout", "2"], "dt.dropout=2.0 must be at least 0 and below 1"),
        (["train", "data", "--algorithm", "bc", "--bc.top", "0"], "bc.top=0.0 must be above 0"),
        (["train", "data", "--algorithm", "iql", "--iql.expectile", "1"], "iql.expectile=1.0 must be at least 0.5"),
    ],
)
def test_what_cannot_be_is_one_line_before_anything_starts(argv, words, capsys):
    assert main(argv) != 0
    err = capsys.readouterr().err
    assert words in err and "Traceback" not in err
    assert not Path("runs").exists()


def test_only_a_policy_that_is_told_a_return_can_be_asked_for_one(capsys):
    assert main(["train", "data", "--algorithm", "bc", "--steps", "16"]) == 0
    assert main(["eval", "latest", "--target", "5", "--episodes", "2"]) != 0
    assert "cannot be asked for a return" in capsys.readouterr().err
