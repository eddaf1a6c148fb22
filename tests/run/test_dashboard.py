"""The dashboard in a real terminal, in a pipe, and on a clock of ours: rare, cheap, and gone without a trace."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from fugu.run import dashboard
from fugu.run.dashboard import Dashboard, Header
from fugu.trainer.config_parts import LogConfig
from tests.timing import in_time

HEADER = Header(run="cartpole-20260102-030405", env="cartpole", total_steps=1000)
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"

PROGRAM = r"""
import os, signal, sys, time
from fugu.run.dashboard import Dashboard, Header

how = sys.argv[1]
dash = Dashboard(Header(run="cartpole-20260102-030405", env="cartpole", total_steps=1000))
for update in range(1, 11):
    dash.update({"steps": 100 * update, "updates": update, "episode/return": 50.0 + update})
    if update == 5:
        print("printed meanwhile")
    time.sleep(0.02)
if how == "error":
    raise ValueError("the env broke")
if how == "interrupt":
    os.kill(os.getpid(), signal.SIGINT)
if how == "close":
    dash.close()
    dash.close()
    print("after the board")
"""


def in_terminal(how: str, **environment: str) -> tuple[str, str]:
    """All that PROGRAM writes to a terminal of 80 by 24, and to its standard error, which is a pipe."""
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    variables = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")}
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how],
        stdin=terminal,
        stdout=terminal,
        stderr=subprocess.PIPE,
        env={**variables, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **environment},
    )
    os.close(terminal)
    out = b""
    try:
        while data := os.read(main, 65536):
            out += data
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(main)
    return out.decode(), child.communicate()[1].decode()


@pytest.mark.parametrize("how", ["close", "forgotten", "error", "interrupt"])
def test_however_a_run_ends_the_terminal_is_given_back(how: str) -> None:
    out, error = in_terminal(how)
    assert HIDE in out and out.rindex(SHOW) > out.rindex(HIDE)
    assert "100%  1000 of 1000 steps" in out, "the last state is drawn"
    assert "printed meanwhile" in out
    assert {"error": "the env broke", "interrupt": "KeyboardInterrupt"}.get(how, "") in error
    if how == "close":
        assert out.endswith("after the board\r\n") and not error


def test_a_dumb_terminal_gets_plain_lines() -> None:
    out, _ = in_terminal("close", TERM="dumb")
    assert "\x1b" not in out and "1000/1000 steps" in out


def test_a_pipe_gets_plain_lines_the_first_at_once_even_if_colour_is_forced(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "close"],
        capture_output=True,
        text=True,
        env={**os.environ, "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"},
    )
    lines = done.stdout.splitlines()
    assert "\x1b" not in done.stdout and not done.stderr
    assert lines[0] == "0:00 0/1000 steps  cartpole-20260102-030405" and " 100/1000 steps" in lines[1]
    assert " 1000/1000 steps" in lines[-2] and "return 60" in lines[-2] and lines[-1] == "after the board"


READER_GONE = """
import os, sys, time
from fugu.trainer.config_parts import LogConfig
from fugu.run.dashboard import Dashboard, Header
dash = Dashboard(Header(run="r", env="e", total_steps=1000), LogConfig(interval=0.01))
sys.stdin.readline()
for update in range(20):
    dash.update({"steps": update})
    time.sleep(0.005)
print("what others print then is safe too", flush=True)
dash.close()
sys.stderr.write("went on")
"""


def test_a_reader_that_goes_away_does_not_end_the_run() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen([sys.executable, "-c", READER_GONE], **pipes)
    assert child.stdout is not None
    child.stdout.readline()
    child.stdout.close()
    child.stdout = None
    assert child.communicate(b"go\n")[1] == b"went on"
    assert child.returncode == 0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


def test_plain_lines_come_once_per_interval_and_at_the_end(clock: Clock) -> None:
    file = io.StringIO()
    dash = Dashboard(HEADER, LogConfig(interval=5.0), file)
    for update in range(1, 101):
        clock.now += 0.125
        dash.update({"steps": update, "updates": update})
    dash.close()
    dash.close()
    times = [line.split()[0] for line in file.getvalue().splitlines()]
    assert times == ["0:00", "0:00", "0:05", "0:10", "0:12"]


def test_speed_is_measured_over_the_last_seconds_also_of_a_resumed_run(clock: Clock) -> None:
    dash = Dashboard(HEADER, LogConfig(interval=1.0), io.StringIO())
    steps = 500_000_000
    for second in range(40):
        clock.now += 1.0
        steps += 1000 if second < 20 else 50
        dash.update({"steps": steps, "updates": second})
    assert dash.progress.rate == pytest.approx(50)


def test_steps_that_no_float_can_hold_have_no_speed_at_once(clock: Clock) -> None:
    """A run may claim to have come far. Between two readings of one clock the steps grow, as one of them is rounded."""
    dash = Dashboard(HEADER, LogConfig(interval=1.0), io.StringIO())
    dash.update({"steps": 2**53 + 3, "updates": 1})
    assert dash.progress.rate != dash.progress.rate


def test_an_update_without_an_ended_episode_keeps_the_last_return(clock: Clock) -> None:
    dash = Dashboard(HEADER, LogConfig(interval=1.0), io.StringIO())
    dash.update({"steps": 1})
    for returned, score in ((7.0, 3.0), (float("nan"), float("nan"))):  # between two drawings
        clock.now += 0.4
        dash.update({"steps": 1, "updates": 1, "episode/return": returned, "env/score": score, "loss/kl": 0.5})
    dash.close()
    assert dash.progress.metrics["episode/return"] == 7.0 and dash.progress.metrics["env/score"] == 3.0
    assert dash.progress.history == [7.0]


def test_the_time_split_is_that_of_all_updates_since_the_last_drawing(clock: Clock) -> None:
    dash = Dashboard(HEADER, LogConfig(interval=10.0), io.StringIO())
    dash.update({"steps": 1, "time/env": 1.0})
    for env in (0.2, 0.4, 0.9):
        dash.update({"steps": 1, "time/env": env, "time/update": 1 - env})
    dash.close()
    assert dash.progress.metrics["time/env"] == pytest.approx(0.5)


def test_the_board_is_drawn_four_times_a_second_at_most_and_less_where_it_is_slow(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = 0.0
    cost = 0.001
    monkeypatch.setattr(time, "thread_time", lambda: used)
    dash = Dashboard(HEADER, LogConfig(board="board"), io.StringIO())
    show = dash._screen.show

    def slow(*args: object) -> None:
        nonlocal used
        used += cost
        show(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(dash._screen, "show", slow)

    def draws(seconds: float) -> int:
        before = dash.draws
        for _ in range(int(seconds * 100)):
            clock.now += 0.01
            dash.update({"steps": 1})
        return dash.draws - before

    draws(1)
    assert 35 <= draws(10) <= 41
    cost = 0.005  # a drawing a second keeps it at half a percent
    draws(1)
    assert 9 <= draws(10) <= 11
    dash.close()


def test_update_costs_microseconds_when_nothing_is_drawn() -> None:
    dash = Dashboard(HEADER, LogConfig(board="off"), io.StringIO())
    metrics = {f"loss/{i}": 0.1 for i in range(20)} | {"episode/return": 1.0, "time/env": 0.5, "steps": 1}
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(500):
            dash.update(metrics)
        best = min(best, time.perf_counter() - start)
    in_time(best / 500, 10e-6)  # measured 1; loose for slow machines
    dash.close()


def test_off_shows_nothing() -> None:
    file = io.StringIO()
    with Dashboard(HEADER, LogConfig(board="off"), file) as dash:
        dash.update({"steps": 1})
    assert file.getvalue() == ""


def test_what_the_encoding_lacks_is_replaced() -> None:
    raw = io.BytesIO()
    with Dashboard(HEADER, LogConfig(), io.TextIOWrapper(raw, encoding="ascii", write_through=True)) as dash:
        dash.update({"steps": 1, "env/größe": 2.0})
    assert b"env/gr??e 2" in raw.getvalue()


def test_nothing_is_left_running(no_leaks: None) -> None:
    Dashboard(HEADER, LogConfig(board="board"), io.StringIO()).close()
    assert dashboard.SHARE < 0.01
