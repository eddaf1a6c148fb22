"""``fugu new policy``: what it writes trains, as it is and with a memory; what has a wrong shape is named before training."""

from __future__ import annotations

from pathlib import Path

import pytest

import fugu
from fugu.cli.main import main

SMALL = ["--steps", "4000", "--num-envs", "16", "--minibatch", "256", "--threads", "1", "--board", "off"]


@pytest.fixture
def net(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "my_policy.py"
    assert main(["new", "policy", str(path)]) == 0
    assert f"fugu train cartpole --policy {path}:Net" in capsys.readouterr().out
    return path


@pytest.mark.parametrize("arguments", [["cartpole"], ["cartpole", "--policy.core", "lstm"], ["spaces"], ["continuous"]])
def test_a_new_policy_trains(arguments: list[str], net: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    small = SMALL if arguments[0] == "cartpole" else ["--steps", "4000", "--threads", "1", "--board", "off"]
    assert main(["train", *arguments, f"--policy={net}:Net", *small, "--runs", str(runs)]) == 0
    run = fugu.Run("latest", runs)
    assert run.config.policy.net == f"{net}:Net" and run.metrics()
    assert run.evaluate(4).episodes == 4


def test_a_wrong_shape_is_named_before_anything_is_made(net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(net.read_text().replace("Distribution(action_space).size)", "3)"))
    assert main(["train", "cartpole", "--policy", f"{wrong}:Net", "--runs", str(tmp_path / "runs")]) == 2
    err = capsys.readouterr().err
    assert "must be a float tensor [2, 2]" in err and "got float32[2, 3]" in err and "Traceback" not in err
    assert not (tmp_path / "runs").exists()


def test_a_new_policy_takes_a_name_and_never_overwrites(net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = net.read_text()
    assert main(["new", "policy", str(net)]) == 1
    assert "left alone" in capsys.readouterr().err and net.read_text() == text
    assert main(["new", "policy", str(tmp_path / "b.py"), "--name", "Mine"]) == 0
    assert "class Mine(nn.Module)" in (tmp_path / "b.py").read_text()
    assert main(["new", "policy", str(tmp_path / "c")]) == 2
    assert main(["new", "policy", str(tmp_path / "c.py"), "--name", "a b"]) == 2
    assert main(["new", "polcy", "x.py"]) == 2
    assert "policy" in capsys.readouterr().err and not (tmp_path / "c.py").exists()
