"""fugu ratings."""

from __future__ import annotations

import json

import fugu
from fugu.cli.main import main


def test_the_table_names_every_version_and_the_policy_as_it_is(tmp_path, capsys):
    settings = {"log.board": "off", "num_envs": 16, "horizon": 16, "minibatch": 512, "snapshot_every": 2, "hidden": (16,)}
    run = fugu.train("connect4", algorithm="self_play", runs=tmp_path, steps=2000, **settings)
    assert main(["ratings", str(run.path), "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert len(table) >= 4 and table[0]["steps"] == 0 and table[-1]["steps"] >= 2000
    assert table[-1]["games"] == sum(player["games"] for player in table[:-1]) > 0
    assert main(["ratings", str(run.path)]) == 0
    shown = capsys.readouterr().out
    assert "version of step" in shown and "(now)" in shown


def test_a_run_without_a_table_is_told_so(tmp_path, capsys):
    run = fugu.train("bandit", runs=tmp_path, steps=1000, **{"log.board": "off"})
    assert main(["ratings", str(run.path)]) == 2
    assert "was not trained with --algorithm self_play" in capsys.readouterr().err
