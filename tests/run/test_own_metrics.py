"""Metrics and loggers of the user's own, from the settings of a run to what is written."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import fugu
from fugu.cli.main import main
from fugu.errors import ConfigError
from fugu.trainer.config import LogConfig, TrainConfig
from fugu.vector.config import VectorConfig
from tests.emulation import test_stats

SINK = """

class Sink:
    def __init__(self, folder, config):
        self.file = open(folder / "own.txt", "a")

    def write(self, step, metrics):
        self.file.write(f"{step} {metrics['env/hunger']} {metrics['episode/return/wolf']}\\n")

    def close(self):
        self.file.close()
"""
SETTINGS: dict[str, Any] = {
    "num_envs": 4,
    "horizon": 8,
    "minibatch": 96,
    "threads": 1,
    "hidden": (8,),
    "log.board": "off",
    "backend": "serial",
}


@pytest.mark.filterwarnings("ignore:info")
def test_a_run_logs_infos_agents_and_to_a_logger_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pack.py").write_text(inspect.getsource(test_stats) + SINK)
    monkeypatch.chdir(tmp_path)
    chosen = {"log.infos": ["hunger"], "log.sink": "pack.py:Sink", "steps": 300, **SETTINGS}
    run = fugu.train("pack.py:Pack", runs=tmp_path / "runs", **chosen)
    assert run.config.log.sink == f"{tmp_path / 'pack.py'}:Sink"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run = run.resume(steps=600)
    lines = run.metrics()
    assert lines[-1]["steps"] >= 600 and all(line["env/hunger"] == 4.0 for line in lines)
    for line in lines:  # as many wolves as sheep and as many again end in a line: four environments in step
        assert line["episode/return/wolf"] == pytest.approx((line["episode/return/wolf_0"] + line["episode/return/wolf_1"]) / 2)
        assert line["episode/length/sheep"] == 2.0 and line["episode/length/wolf"] == 4.0
    assert (run.path / "own.txt").read_text().splitlines() == [
        f"{line['steps']} {line['env/hunger']} {line['episode/return/wolf']}" for line in lines
    ]
    assert main(["eval", str(run.path), "--episodes", "12"]) == 0
    shown = capsys.readouterr().out
    assert "  hunger        4\n" in shown and "  wolf_1        return " in shown
    (kept,) = run.path.glob("eval-*.json")
    report = json.loads(kept.read_text())
    assert report["mean_infos"] == {"hunger": 4.0} and report["agents"]["sheep"]["episodes"] == 4


def test_in_a_training_infos_are_named_in_one_place() -> None:
    with pytest.raises(ConfigError, match="in a training these are log.infos; give --log.infos a b"):
        TrainConfig(vector=VectorConfig(episode_infos=("a", "b")))
    with pytest.raises(ConfigError, match="log.infos=.* must be a list of names"):
        LogConfig(infos="a")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="log.sink='mine.py' must be file.py:Class or module:Class"):
        fugu.train("cartpole", **{"log.sink": "mine.py"})
