"""Names, errors and files of others steer no terminal, wherever they are shown."""

from __future__ import annotations

import json
import os
import shutil
import time
import unicodedata
from pathlib import Path

import pytest

import fugu
from fugu.cli.main import main
from fugu.errors import shown, shown_line
from fugu.run import store

HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31m\u202egpj.exe\u2066\x08\x7f"
TINY = {"steps": 128, "num_envs": 4, "horizon": 8, "minibatch": 32, "threads": 1, "log.board": "off"}


def steers(text: str) -> list[str]:
    return [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") and c not in "\n\t"]


def test_nothing_that_is_shown_steers_the_terminal():
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x3000), *range(0xFE00, 0x10000), *range(0xE0000, 0xE0200)]))
    assert not steers(shown(every)) and not steers(shown_line(every)) and "\n" not in shown_line(every)
    assert shown("a\nb\tc \u00e4\u4e2d\u2588") == "a\nb\tc \u00e4\u4e2d\u2588" and shown_line("a\nb") == r"a\nb"
    assert shown(HOSTILE).startswith(r"\x1b]0;title\x07") and shown("x" * 50, most=10) == "xxxxxxxxxx ... (40 characters more)"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fugu.train("cartpole", runs=tmp_path_factory.mktemp("made"), name="made", **TINY).folder.at


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "runs" / f"run{HOSTILE.replace('/', '')}"))


@pytest.mark.parametrize("where", ["name", "failed", "config", "metrics", "group", "env"])
def test_runs_of_others_are_listed_in_plain_letters(run, where, capsys):
    if where == "failed":
        (run / "failed.txt").write_text(f"Error: {HOSTILE}\n")
    elif where == "config":
        (run / "config.toml").write_text(f'x = "{json.dumps(HOSTILE)[1:-1]}"\n# end\n')
    elif where == "metrics":
        (run / "metrics.jsonl").write_text(f"{HOSTILE}\n{{}}\n")
    elif where == "group":
        (run / "run.json").write_text(json.dumps({"group": HOSTILE, "seeds": [1], "tags": [HOSTILE], "started": 1}))
    elif where == "env":
        text = (run / "config.toml").read_text()
        (run / "config.toml").write_text(
            text.replace('env = "cartpole"', f"env = {json.dumps(HOSTILE)}".replace("\\ud", "\\ud"), 1)
        )
    for command in (
        ["runs"],
        ["runs", "--all"],
        ["eval", str(run), "--episodes", "1"],
        ["eval", HOSTILE],
        [HOSTILE],
        ["plot", str(run)],
    ):
        main([*command, *(["--runs", str(run.parent)] if command[0] in ("runs", "eval") else [])])
        said = capsys.readouterr()
        assert not steers(said.out) and not steers(said.err), command


@pytest.mark.parametrize("name", ["env/$\\frac{", "env/$x$ ^_", f"env/{HOSTILE}", "loss/" + "x" * 3000, "env/_hidden"])
def test_a_metric_of_any_name_is_drawn(run, name, capsys):
    (run / "metrics.jsonl").write_text(json.dumps({"updates": 1, "steps": 32, name: 1.0}) + "\n")
    assert main(["plot", str(run), "--metric", name]) == 0


def test_a_run_that_claims_to_be_of_the_future_is_not_the_latest(made, tmp_path):
    for name, started in (("one-99991231-235959", None), ("two", time.time() + 1e9), ("mine", time.time())):
        path = Path(shutil.copytree(made, tmp_path / name))
        (path / "run.json").write_text(json.dumps({"started": started, "tags": []}))
        os.utime(path / "config.toml", (1e9, 1e9))
    assert store.find("latest", tmp_path).name == "mine"
