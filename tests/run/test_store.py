"""Run folders: each its own, found by path, name or age."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fugu.errors import ConfigError
from fugu.run import store
from fugu.run.store import RunError, RunFolder


def test_runs_started_in_the_same_second_have_their_own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda *a: "20260102-030405")
    made = [store.create(tmp_path / "runs", "cartpole") for _ in range(12)]
    names = ["cartpole-20260102-030405"] + [f"cartpole-20260102-030405-{n}" for n in range(2, 13)]
    assert [run.name for run in made] == names
    assert [run.name for run in store.runs(tmp_path / "runs")] == names, "12 comes after 2"


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("CartPole-v1", "CartPole-v1"),
        ("ALE/Pong-v5", "ALE-Pong-v5"),
        ("some/where/my_env.py:MyEnv", "MyEnv"),
        ("package.module:Class", "Class"),
        ("pettingzoo.classic.rps_v2:parallel_env", "rps_v2"),
        ("games/my_game.py:env", "my_game"),
        ("../up/my_env.h", "my_env"),
        ("größe und so", "größe-und-so"),
        ("../..", "run"),
        ("x" * 300, "x" * 80),
    ],
)
def test_any_env_gives_a_plain_folder_name(tmp_path: Path, env: str, name: str) -> None:
    run = store.create(tmp_path, env)
    assert run.path.parent == tmp_path and run.path.is_dir()
    assert run.name[:-16] == name


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).mkdir(parents=True)


def test_latest_goes_by_the_time_in_the_name_over_all_envs(tmp_path: Path) -> None:
    make(tmp_path, "z-20250101-000000", "a-20260101-000000", "a-20260101-000000-2", "m-20251231-235959")
    assert store.find("latest", tmp_path).name == "a-20260101-000000-2"
    assert store.find("latest~0", tmp_path).name == "a-20260101-000000-2"
    assert store.find("latest~3", tmp_path).name == "z-20250101-000000"


def test_a_renamed_run_and_its_paths_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path, "runs/my best one", "runs/z-20250101-000000", "runs/notes", "runs/.cache-20990101-000000")
    (tmp_path / "runs/my best one/config.toml").write_text("")
    assert [run.name for run in store.runs()] == ["z-20250101-000000", "my best one"]
    for text in ("my best one", "runs/my best one", str(tmp_path / "runs" / "my best one")):
        assert store.find(text).name == "my best one"
    monkeypatch.chdir(tmp_path / "runs" / "my best one")
    assert store.find(".").name == "my best one"


def test_what_is_not_found_is_answered_with_what_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="latest: there is no run in .* yet: fugu train"):
        store.find("latest", tmp_path / "runs")
    with pytest.raises(ConfigError, match="no run 'x'; there is no run in .* yet"):
        store.find("x", tmp_path / "runs")
    make(tmp_path, "cartpole-20260101-000000", "notes")
    with pytest.raises(ConfigError, match="Did you mean 'cartpole-20260101-000000'"):
        store.find("cartpole-20260101-000001", tmp_path)
    with pytest.raises(ConfigError, match="latest~1: there are only 1 runs"):
        store.find("latest~1", tmp_path)
    with pytest.raises(ConfigError, match="is not a run: it has no config.toml"):
        store.find("notes", tmp_path)
    with pytest.raises(ConfigError, match="no run ''"):
        store.find("", tmp_path)


def test_a_root_that_cannot_hold_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(ConfigError, match=f"no run can be kept in {root}: "):
            store.create(root, "cartpole")


def test_metrics_are_read_without_the_half_line_of_a_kill(tmp_path: Path) -> None:
    run = store.create(tmp_path, "cartpole")
    assert run.read_metrics() == []
    run.metrics.write_text('{"updates": 1, "steps": 8, "loss/kl": null}\n{"updates": 2, "steps": 16}\n{"upda')
    first, second = run.read_metrics()
    assert math.isnan(first["loss/kl"]) and second == {"updates": 2, "steps": 16}
    for bad in (
        "nonsense",
        "{}",
        '{"updates": "2", "steps": 16}',
        '{"updates": 2, "steps": null}',
        '{"updates": 2, "steps": 1' + 400 * "0" + "}",
        '{"updates": 2, "steps": 16, "loss/kl": "high"}',
        5000 * "[",
    ):
        run.metrics.write_text(f'{{"updates": 1, "steps": 8}}\n{bad}\n')
        with pytest.raises(RunError) as error:
            run.read_metrics()
        assert f"metrics.jsonl:2 is not a line of metrics: {bad[:80]}" in str(error.value)


HOLDER = """
import sys, os, time, pathlib
from fugu.run.store import RunFolder
with RunFolder(pathlib.Path(sys.argv[1])).lock():
    if os.fork() == 0:  # a worker that outlives its trainer
        time.sleep(30)
        os._exit(0)
    print("held", flush=True)
    time.sleep(30)
"""


def test_one_process_trains_a_run_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, start_new_session=True)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(RunError, match="is being trained by another process"), run.lock():
            raise AssertionError("two at once")
        holder.kill()
        holder.wait()
        with run.lock():
            pass
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
