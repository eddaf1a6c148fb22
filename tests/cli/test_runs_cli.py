"""``fugu runs``: the table, the JSON, and every state a run can be in."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fugu
from fugu.cli.main import main
from fugu.cli.runs import _count, _number, _span
from fugu.config import to_toml
from fugu.run import store


def listed(capsys: pytest.CaptureFixture[str], runs: Path) -> list[dict]:
    assert main(["runs", "--runs", str(runs), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_runs_are_listed_newest_first_with_what_they_came_to(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = listed(capsys, runs)
    assert [row["name"] for row in rows] == [folder.name for folder in reversed(store.runs(runs))]
    metrics = fugu.Run("latest", runs).metrics()
    scores = [line["score"] for line in metrics if "score" in line]
    newest = rows[0]
    assert newest["env"] == "cartpole" and newest["state"] == "done" and newest["problem"] is None
    assert newest["steps"] == metrics[-1]["steps"] and newest["steps_asked"] == 20_000
    assert newest["score"] == scores[-1] and newest["best_score"] == max(scores) and newest["measure"] == "score"
    assert newest["steps_per_second"] > 0 and 0 <= newest["age"] < 600
    assert main(["runs", "--runs", str(runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[1].startswith(newest["name"]) and "done" in lines[1] and "20k" in lines[1]


def test_speed_is_over_the_whole_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = store.find("latest", runs)
    lines = [
        {"updates": 1, "steps": 100, "time/steps_per_second": 100},
        {"updates": 2, "steps": 400, "time/steps_per_second": 50},
    ]
    folder.timing.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert listed(capsys, runs)[0]["steps_per_second"] == pytest.approx(400 / 7)  # 1 s, then 6 s


def test_a_run_with_steps_left_is_interrupted_and_one_at_its_target_is_done(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fugu.Run("latest", runs)
    run.folder.config.write_text(to_toml(run.with_config({"steps": 1_000_000})))
    assert listed(capsys, runs)[0]["state"] == "interrupted"
    run.folder.config.write_text(to_toml(run.with_config({"steps": 1_000_000, "target": 1.0})))
    assert listed(capsys, runs)[0]["state"] == "done"
    run.folder.config.write_text(to_toml(run.with_config({"steps": 1_000_000, "target": 499.0})))
    assert listed(capsys, runs)[0]["state"] == "interrupted"


def test_a_run_that_came_to_nan_is_diverged_until_it_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"steps": 3_000, "num_envs": 16, "horizon": 8, "minibatch": 128, "threads": 1, "board": "off"}
    run = fugu.train("cartpole", runs=tmp_path, **settings, **{"checkpoint.every": 1})
    with pytest.raises(fugu.FuguError, match="training diverged"):
        run.resume(steps=1_000_000, learning_rate=1e30)
    (row,) = listed(capsys, tmp_path)
    assert row["state"] == "diverged" and "lower --optimizer.learning-rate" in row["problem"]
    assert main(["runs", "--runs", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "diverged" in text.splitlines()[1] and row["problem"] in text
    fugu.Run("latest", tmp_path).resume(steps=run.metrics()[-1]["steps"] + 2_000, learning_rate=1e-3)
    assert [row["state"] for row in listed(capsys, tmp_path)] == ["done"]
    assert (run.path / "diverged-earlier.safetensors").exists()


ENDING = """
import os
import gymnasium
class Env(gymnasium.Wrapper):
    steps = 0
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
    def step(self, action):
        Env.steps += 1
        if Env.steps == {last}:
            {end}
        return super().step(action)
"""


@pytest.mark.parametrize(
    "end, code, why",
    [
        ("raise ValueError('enough')", 1, "EnvError: ValueError: enough"),
        ("os._exit(0)", 0, "ended without a word: its process was killed or left by os._exit"),
        ("os.kill(os.getpid(), 9)", -9, "ended without a word"),
    ],
    ids=["raise", "exit", "kill"],
)
def test_a_run_that_ended_by_an_error_says_so_until_it_goes_on(end: str, code: int, why: str, tmp_path: Path, capsys) -> None:
    file = tmp_path / "ending.py"
    file.write_text(ENDING.format(last=3_000, end=end))
    sizes = ("--num-envs", "4", "--horizon", "16", "--minibatch", "64", "--backend", "serial", "--checkpoint.every", "5")
    command = [
        sys.executable,
        "-m",
        "fugu",
        "train",
        f"{file}:Env",
        "--steps",
        "6000",
        *sizes,
        "--runs",
        str(tmp_path / "runs"),
    ]
    out = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert out.returncode == code and (code != 1 or why.removeprefix("EnvError: ") in out.stderr)
    (row,) = listed(capsys, tmp_path / "runs")
    assert row["state"] == "failed" and row["problem"].startswith(why)
    file.write_text(ENDING.format(last=0, end="pass"))
    fugu.Run("latest", tmp_path / "runs").resume(**{"log.board": "off"})
    assert [row["state"] for row in listed(capsys, tmp_path / "runs")] == ["done"]
    assert not store.find("latest", tmp_path / "runs").running.exists()


def test_the_marker_of_a_run_is_there_while_it_is_trained_and_not_after(tmp_path: Path) -> None:
    file = tmp_path / "looking.py"
    file.write_text(
        ENDING.format(last=300, end="open('seen', 'w').write(open(next(__import__('glob').iglob('runs/*/running'))).read())")
    )
    sizes = ("--num-envs", "4", "--horizon", "16", "--minibatch", "64", "--backend", "serial", "--steps", "400")
    command = [sys.executable, "-m", "fugu", "train", f"{file}:Env", *sizes]
    with subprocess.Popen(command, cwd=tmp_path) as process:
        assert process.wait(120) == 0
    assert (tmp_path / "seen").read_text() == f"{process.pid}\n"
    assert not list(tmp_path.glob("runs/*/running"))


def test_a_run_that_another_process_trains_is_running(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = store.find("latest", runs)
    code = (
        "import sys; from pathlib import Path; from fugu.run.store import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).lock():\n    print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(folder.path)], stdin=-1, stdout=-1, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        assert [row["state"] for row in listed(capsys, runs)] == ["running", "done"]
        with pytest.raises(store.RunError), folder.lock():  # asking has not taken it away
            pass
        holder.communicate("")
    assert [row["state"] for row in listed(capsys, runs)] == ["done", "done"]


@pytest.mark.parametrize("damage", ["weights", "manifest", "config", "metrics", "no config", "state", "empty line", "steps"])
def test_a_damaged_run_is_listed_with_what_is_wrong(damage: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = store.find("latest", runs)
    newest = max(folder.checkpoints.glob("step_*"))
    file = {
        "weights": newest / "policy.safetensors",
        "manifest": newest / "MANIFEST.json",
        "config": folder.config,
        "metrics": folder.metrics,
        "no config": folder.config,
        "state": newest / "state.json",
        "empty line": folder.metrics,
        "steps": folder.metrics,
    }[damage]
    if damage == "no config":
        file.unlink()
    elif damage == "state":
        folder.config.write_text(to_toml(fugu.Run(folder).with_config({"steps": 1_000_000, "target": 499.0})))
        file.write_bytes(b"[" * file.stat().st_size)
    elif file == folder.metrics and damage != "metrics":
        file.write_bytes(file.read_bytes() + {"empty line": b"{}\n", "steps": b'{"updates": 1, "steps": "a"}\n'}[damage])
    else:
        file.write_bytes(b"[[[\n")
    rows = listed(capsys, runs)
    assert [row["state"] for row in rows] == ["damaged", "done"] and file.name in rows[0]["problem"]
    assert main(["runs", "--runs", str(runs)]) == 0
    assert file.name in capsys.readouterr().out


def test_a_folder_whose_name_only_looks_like_a_time_is_listed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "foo-99999999-999999").mkdir()
    rows = {row["name"]: row for row in listed(capsys, runs)}
    assert len(rows) == 3 and rows["foo-99999999-999999"]["state"] == "damaged"


def test_the_newest_checkpoint_is_that_of_the_highest_step(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = store.find("latest", runs)
    for step in ("step_999999999", "step_1000000000", "step_x"):
        (folder.checkpoints / step).mkdir()
    assert "step_1000000000/MANIFEST.json" in listed(capsys, runs)[0]["problem"]


def test_an_empty_folder_says_how_to_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--runs", str(tmp_path)]) == 0
    assert "fugu train" in capsys.readouterr().out
    assert listed(capsys, tmp_path) == []


def test_numbers_are_short() -> None:
    assert [_number(n) for n in (None, 1.5, -12_345.6, 2e39)] == ["-", "1.50", "-12346", "2e+39"]
    assert [_count(n) for n in (None, 0, 999, 1234, 20_000, 999_999, 3_210_000_000)] == [
        "-",
        "0",
        "999",
        "1.23k",
        "20k",
        "1000k",
        "3.21G",
    ]
    assert [_span(s) for s in (-1, 90, 150, 7200, 200_000)] == ["0 s", "90 s", "2 min", "2 h", "2 d"]


def in_terminal(columns: int, arguments: list[str]) -> str:
    """What ``fugu`` writes to a terminal that is this wide."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "NO_COLOR": "1"}
    with subprocess.Popen([sys.executable, "-m", "fugu", *arguments], stdout=slave, stderr=slave, env=environment) as process:
        os.close(slave)
        written = b""
        with contextlib.suppress(OSError):  # how the end of it shows
            while data := os.read(master, 1 << 16):
                written += data
    os.close(master)
    assert process.returncode == 0, written
    return re.sub(r"\x1b\[[0-9;]*m", "", written.decode())


@pytest.mark.parametrize(("columns", "there"), [(200, {"best", "steps/s", "of", "age"}), (80, {"steps", "age"}), (20, set())])
def test_a_narrow_terminal_has_fewer_columns_but_whole_names_and_states(columns: int, there: set[str], runs: Path) -> None:
    run = fugu.Run("latest", runs)
    run.folder.config.write_text(to_toml(run.with_config({"steps": 1_000_000})))
    heading, *lines = in_terminal(columns, ["runs", "--runs", str(runs)]).splitlines()
    assert [line.split()[0] for line in lines] == [folder.name for folder in reversed(store.runs(runs))]
    assert "interrupted" in lines[0].split() and "done" in lines[1].split()
    assert there <= set(heading.split()) and ("best" in heading) == (columns == 200)
    assert columns == 20 or all(len(line) <= columns for line in (heading, *lines))


def test_a_name_is_no_markup_and_may_have_letters_that_the_output_has_not(runs: Path) -> None:
    store.find("latest", runs).path.rename(runs / "caf\u00e9-[red]x")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "fugu", "runs", "--runs", str(runs)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "caf\\xe9-[red]x " in done.stdout and done.stderr == ""
