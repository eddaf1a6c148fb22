"""``fugu check`` of environments that hang, exit or crash: there is always a report, and no process stays behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from tests.timing import gone_in, in_time

from fugu.check.report import Report
from fugu.cli.apart import _start_method, apart
from fugu.cli.check import show
from fugu.cli.main import main
from fugu.emulation import check_env

FUGU = [sys.executable, "-m", "fugu"]
ENV = """
import ctypes, os, signal, subprocess, sys, time
import gymnasium, numpy as np
from gymnasium import spaces

class Env(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, constructor="pass"):
        exec(constructor)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        RESET
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        STEP
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), 0.5, self.np_random.random() < 0.1, False, {}
"""


def written(folder: Path, reset: str = "pass", step: str = "pass") -> str:
    """The name of an environment that does this in its methods."""
    (folder / "my_env.py").write_text(ENV.replace("RESET", reset).replace("STEP", step))
    return "my_env.py:Env"


def fugu(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FUGU, *arguments], cwd=folder, capture_output=True, text=True, timeout=60)


def test_a_long_fix_is_whole_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("my_env")
    report.add("error", "obs", "too much", "less " * 60 + "at the end")
    show(report)
    assert "\n  fix: less less" in (out := capsys.readouterr().out) and out.endswith(" at the end\n")


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("time.sleep(1e6)", "nothing came back within 2 seconds"),
        ("while True: pass", "nothing came back within 2 seconds"),
        ("os._exit(0)", "the process of the environment ended with exit code 0"),
        ("os._exit(7)", "the process of the environment ended with exit code 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "the process of the environment was killed by signal 9 (SIGKILL)"),
        ("ctypes.string_at(0)", "the process of the environment was killed by signal 11 (SIGSEGV)"),
    ],
)
@pytest.mark.parametrize("method", ["reset", "step"])
def test_an_environment_that_hangs_or_ends_its_process_is_a_finding(method: str, does: str, said: str, tmp_path: Path) -> None:
    name = written(tmp_path, **{method: does})
    done = fugu(tmp_path, "check", name, "--timeout", "2")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stdout.startswith(f"{name}: 1 error\n")
    assert f"error  process: {said} while it was being checked\n" in done.stdout and "\n  fix: look for" in done.stdout
    if "seconds" in said or "SEGV" in said:
        assert re.search(rf"my_env.py:\d+ in {method}: {re.escape(does)}\n", done.stdout)


def test_the_report_of_a_process_that_ended_may_be_json(tmp_path: Path) -> None:
    done = fugu(tmp_path, "check", written(tmp_path, step="print('last words', flush=True); os._exit(0)"), "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 1 and report["env"] == "my_env.py:Env" and report["ok"] is False
    (finding,) = report["findings"]
    assert finding["severity"] == "error" and "exit code 0" in finding["problem"] and "os._exit" in finding["fix"]
    assert done.stderr == "last words\n"


def test_a_constructor_that_exits_is_a_finding(tmp_path: Path) -> None:
    done = fugu(tmp_path, "check", written(tmp_path), "--env.constructor", "sys.exit(0)")
    assert done.returncode == 1 and "1 error" in done.stdout and "raised SystemExit: 0\n  my_env.py:" in done.stdout


def test_a_file_that_exits_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys\nsys.exit()\n")
    done = fugu(tmp_path, "check", "script.py:Env")
    assert done.returncode == 1 and "import: " in done.stdout and "line 2: sys.exit()" in done.stdout


def test_a_sound_environment_has_the_report_that_check_env_gives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / written(tmp_path)
    assert main(["check", str(path), "--json", "--steps", "50"]) == 0
    ours, here = json.loads(capsys.readouterr().out), check_env(str(path), steps=50)
    assert ours["findings"] == [] == here.findings and list(ours["facts"]) == list(here.facts)
    same = ("kind", "steps", "episodes", "mean_episode_length", "reward_min", "obs_bytes")
    assert [ours["facts"][name] for name in same] == [here.facts[name] for name in same]
    done = fugu(tmp_path, "check", "my_env.py:Env", "--steps", "50")
    assert done.returncode == 0 and done.stdout.startswith("my_env.py:Env: no findings\n") and done.stderr == ""


def test_what_an_environment_prints_is_shown(tmp_path: Path) -> None:
    native = "ctypes.CDLL(None).puts(b'from C')"
    done = fugu(tmp_path, "check", written(tmp_path), "--env.constructor", f"print('from Python'); {native}")
    assert done.returncode == 0 and "from Python" in done.stderr and "from C" in done.stdout


def test_a_process_with_threads_checks_in_one_that_is_started_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / written(tmp_path, step="os._exit(0)")
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert _start_method() == "spawn"
        assert main(["check", str(path)]) == 1
        assert "ended with exit code 0" in capsys.readouterr().out
        assert main(["check", f"{path}nt"]) == 2
        assert "Did you mean 'Env'" in capsys.readouterr().err
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("fresh", [False, True])
def test_processes_of_an_environments_own_start_as_they_do_elsewhere(fresh: bool) -> None:
    assert apart(eval, "__import__('multiprocessing').get_start_method()", fresh=fresh) == multiprocessing.get_start_method()


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf"])
def test_a_timeout_that_is_none_is_refused(timeout: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "CartPole-v1", "--timeout", timeout]) == 2
    assert "--timeout" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["check"], ["bench", "vector", "--num-envs", "1"]])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)])
def test_nothing_is_left_of_a_command_that_is_ended(
    command: list[str], number: signal.Signals, code: int, tmp_path: Path
) -> None:
    name = written(tmp_path, step="print('here', file=sys.stderr, flush=True); time.sleep(1e6)")
    process = subprocess.Popen(
        [*FUGU, *command, name], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None and process.stderr.readline() == "here\n"
    started = psutil.Process(process.pid).children(recursive=True)
    assert started
    began = time.monotonic()
    os.killpg(process.pid, number)  # as the terminal does
    out, err = process.communicate(timeout=50)
    assert process.returncode == code and out == "" and err.strip() == ("interrupted" if code == 130 else "")
    in_time(time.monotonic() - began, 5)
    gone_in(started, 5)


def test_what_a_hanging_environment_has_started_is_ended_with_it(tmp_path: Path) -> None:
    start = "print(subprocess.Popen(['sleep', '1000']).pid, flush=True); time.sleep(1e6)"
    done = fugu(tmp_path, "check", written(tmp_path, reset=start), "--timeout", "2")
    assert done.returncode == 1
    assert not psutil.pid_exists(int(done.stderr)) or psutil.Process(int(done.stderr)).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("command", [["autotune"], ["bench", "vector"]])
def test_a_measurement_says_that_the_environment_has_ended_its_process(command: list[str], tmp_path: Path) -> None:
    done = fugu(tmp_path, *command, written(tmp_path, step="os._exit(0)"), "--num-envs", "2", "--seconds", "0.1")
    assert done.returncode == 1 and done.stdout == "" and "Traceback" not in done.stderr
    assert done.stderr.startswith("the process of the environment ended with exit code 0\nlook for os._exit()")


def test_a_terminal_is_told_how_long_the_command_will_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fugu.cli.apart.PATIENCE_S", 0.1)
    apart(time.sleep, 0.5, timeout=60.0)
    assert capsys.readouterr().err == ""  # not a terminal
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    apart(time.sleep, 0.5, timeout=60.0)
    assert capsys.readouterr().err == "no answer yet; waiting for at most 60 seconds in all (--timeout)\n"
