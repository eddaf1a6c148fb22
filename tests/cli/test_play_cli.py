"""``fugu play``: plain lines without a terminal, pictures and keys with one, and a terminal that is as it was afterwards."""

from __future__ import annotations

import fcntl
import itertools
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from tests.timing import in_time

import fugu
from fugu import vector
from fugu.cli.keys import ARROWS, IDLE, keys_for
from fugu.cli.main import main
from fugu.cli.screen import fit, half_blocks, split_keys
from fugu.emulation.native import names, native_spec
from fugu.run.player import Player
from fugu.run.scene import Scene


@pytest.fixture(autouse=True)
def able_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def test_without_a_terminal_a_policy_is_shown_line_by_line(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["play", "latest", "--runs", str(trained), "--max-steps", "30"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert len(lines) == 31 and lines[0] == "episode 1 step 0 action - reward 0 return 0"
    assert re.fullmatch(r"episode 1 step 5 action [01] reward 1 return 5", lines[5]) and "\x1b" not in text
    assert main(arguments) == 0
    assert capsys.readouterr().out == text


class Text(gym.Env):
    """Shows itself as text."""

    observation_space, action_space = gs.Discrete(2), gs.Discrete(2)
    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        self.said = "nothing yet"
        return 0, {}

    def step(self, action):
        self.said = f"did {action}\nand saw 0"
        return 0, 0.0, False, False, {}

    def render(self):
        return self.said


def test_text_is_shown_as_text_and_is_no_picture(capsys: pytest.CaptureFixture[str]) -> None:
    with vector.make(Text, 1) as vec:
        scene = Scene(vec, 0)
        assert scene.text() == "nothing yet"
        with pytest.raises(fugu.FuguError, match="shows text, not pictures; fugu play does"):
            scene.picture()
    assert main(["play", f"{__file__}:Text", "--max-steps", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["episode 1 step 0 reward 0 return 0", "  nothing yet"]
    assert (
        lines[3] == "episode 1 step 1 reward 0 return 0" and re.fullmatch("  did [01]", lines[4]) and lines[5] == "  and saw 0"
    )


def test_the_seed_decides_which_actions_are_drawn(tmp_path: Path) -> None:
    # what a lock of digits shows depends on the actions alone, so only the draws can differ
    run = fugu.train("password", runs=tmp_path, steps=1, threads=1, board="off")

    def actions(seed: int) -> list[int]:
        with Player(run, seed=seed) as player:
            moments = [scene.moment for scene in itertools.islice(player.play(), 40)]
        return [int(moment.action[0]) for moment in moments if moment.action is not None]

    assert actions(1) == actions(1) != actions(2)


def test_without_a_terminal_an_environment_gets_random_actions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "bandit", "--max-steps", "40"]) == 0
    lines = capsys.readouterr().out.splitlines()
    actions = {line.split()[5] for line in lines}
    assert actions == {"-", "0", "1", "2", "3"}
    assert [line.split()[1] for line in lines if line.endswith("over")] == [str(i) for i in range(1, 21)]  # one step each


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["cartpol"], "Did you mean 'cartpole'"),
        (["cartpole", "--max-steps", "0"], "at least 1"),
        (["cartpole", "--fps", "0"], "--fps"),
        (["cartpole", "--mod", "live"], "--mode"),
        (["cartpole", "--env.gravty", "3"], "gravity"),
        (["latest", "--runs", "nowhere"], "fugu train"),
    ],
)
def test_wrong_calls_of_play_are_one_message(arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", *arguments]) == 2
    out, err = capsys.readouterr()
    assert part in err and "Traceback" not in err and out == ""


def play(arguments: list[str], *, send: list[bytes] = (), stop: int | None = None) -> tuple[int, bytes, bool]:  # type: ignore[assignment]
    """Run ``fugu play`` in a terminal of 100 x 30: (exit code, all it wrote, whether the terminal is as before)."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    before = termios.tcgetattr(slave)
    command = [sys.executable, "-m", "fugu", "play", *arguments]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave)
    written, todo, deadline = b"", list(send), time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if select.select([master], [], [], 0.05)[0]:
            written += os.read(master, 1 << 16)
        if b"q quits" in written:
            if todo:
                os.write(master, todo.pop(0))
            elif stop is not None:
                process.send_signal(stop)
                stop = None
    process.kill()
    process.wait()
    while select.select([master], [], [], 0)[0]:
        written += os.read(master, 1 << 16)
    same = termios.tcgetattr(slave) == before
    os.close(master)
    os.close(slave)
    return process.returncode, written, same


def test_in_a_terminal_a_policy_is_drawn_until_q(trained: Path) -> None:
    code, written, same = play(["latest", "--runs", str(trained), "--fps", "200"], send=[b"q"])
    assert code == 0 and same
    assert written.startswith(b"\x1b[?1049h") and written.rstrip().endswith(b"\x1b[?1049l") and b"\x1b[?25h" in written
    assert written.count("\u2580".encode()) > 500 and b"38;2;" in written and b"return 0" in written


def test_keys_decide_what_an_environment_gets() -> None:
    code, written, same = play(["password", "--env.password", "22"], send=[b"0", b"1", b"x", b"1", b"0", b"1", b"q"])
    assert code == 0 and same
    assert b"episode 1   step 5   reward 1   return 1   episode over" in written  # 01101 is what opens the lock; x is no action


def test_what_a_person_does_is_recorded_and_added_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = ["password", "--env.password", "22", "--record", str(tmp_path / "d")]
    for keys in (b"01101", b"00000"):
        code, _, same = play(record, send=[bytes([key]) for key in keys + b"q"])
        assert code == 0 and same
    data = fugu.data.open(tmp_path / "d")
    assert data.check() == [] and data.returns.tolist() == [1, 0] and data.sources == [{"policy": "human"}]
    assert data.episode(0)["action"].tolist() == [0, 1, 1, 0, 1, 0] and data.episode(1)["action"].tolist() == [0] * 6
    assert main(["play", "bandit", "--max-steps", "10", "--record", str(tmp_path / "chance")]) == 0
    assert fugu.data.open(tmp_path / "chance").sources == [{"policy": "random"}]
    capsys.readouterr()


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_leaves_the_terminal_as_it_was(number: int, expected: int) -> None:
    code, written, same = play(["cartpole"], stop=number)
    assert code == expected and same and b"\x1b[?25h\x1b[?1049l" in written[-200:] and b"Traceback" not in written


def test_a_terminal_that_goes_away_ends_it_without_a_traceback() -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fugu", "play", "cartpole"], stdin=slave, stdout=slave, stderr=subprocess.PIPE
    )
    os.close(slave)
    written = b""
    while b"q quits" not in written:
        written += os.read(master, 1 << 16)
    os.close(master)
    began = time.monotonic()
    _, err = process.communicate(timeout=60)
    took = time.monotonic() - began
    assert process.returncode == 129 and err == b""
    in_time(took, 20)


def test_ctrl_z_gives_the_terminal_back_for_as_long_as_it_sleeps() -> None:
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    process = subprocess.Popen([sys.executable, "-m", "fugu", "play", "cartpole"], stdin=slave, stdout=slave, stderr=slave)

    def until(part: bytes) -> None:
        written = b""
        while part not in written:
            assert select.select([master], [], [], 20)[0]
            written += os.read(master, 1 << 16)

    until(b"q quits")
    assert termios.tcgetattr(slave) != before
    process.send_signal(signal.SIGTSTP)
    until(b"\x1b[?1049l")
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert termios.tcgetattr(slave) == before
    process.send_signal(signal.SIGCONT)
    until(b"q quits")
    assert termios.tcgetattr(slave) != before
    os.write(master, b"q")
    until(b"\x1b[?1049l")
    assert process.wait(20) == 0 and termios.tcgetattr(slave) == before
    os.close(master)
    os.close(slave)


def test_keys_are_told_apart() -> None:
    assert split_keys("a\x1b[A\x1bOD1") == ["a", "up", "left", "1"]
    assert split_keys("\x1b[Zq\x1b") == ["q"]


def test_pixels_are_means_and_fit_the_terminal() -> None:
    picture = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    assert fit(picture, 6, 4).tolist() == picture.tolist()
    halved = picture.reshape(2, 2, 3, 2, 3).astype(int).sum((1, 3)) // 4
    assert fit(picture, 3, 100).tolist() == halved.tolist()
    assert fit(picture, 12, 100).tolist() == picture.repeat(2, 0).repeat(2, 1).tolist()
    for size in ((1, 2), (7, 5), (80, 44)):
        height, width = fit(np.zeros((210, 160, 3), np.uint8), *size).shape[:2]
        assert width <= size[0] and height <= max(2, size[1]) and height % 2 == 0


def test_half_blocks_name_a_colour_where_it_changes() -> None:
    red, blue = [255, 0, 0], [0, 0, 255]
    (line,) = half_blocks(np.array([[red, red], [red, blue]], np.uint8))
    assert line == "\x1b[38;2;255;0;0m\x1b[48;2;255;0;0m\u2580\x1b[48;2;0;0;255m\u2580\x1b[0m"


def test_every_key_is_an_action_of_its_environment() -> None:
    assert all(name in names() or "-v" in name for name in (*ARROWS, *IDLE))
    for name in names():
        space = native_spec(name, {}).action_space
        keys = keys_for(name, space)
        if keys is not None:
            rows: list[Any] = [*keys.actions.values(), *([keys.idle] if keys.idle is not None else [])]
            assert all(space.contains(row[()] if row.shape == () else row) for row in rows)
    assert keys_for("x", gs.Discrete(11)) is None and keys_for("x", gs.MultiDiscrete([2, 2])) is None
    shifted = keys_for("x", gs.Discrete(2, start=5))
    assert shifted is not None and shifted.actions["right"] == shifted.actions["1"] == 6


def test_an_episode_of_several_agents_is_over_when_all_have_ended() -> None:
    with vector.make("snake", 1) as vec:
        scene, ended, total = Scene(vec, 3), np.zeros(8, bool), 0.0
        for _ in range(5000):
            scene.step(np.zeros(8, np.int64))  # straight up, into the wall
            rows = vec.rows
            ended |= rows.terminated | rows.truncated
            total += float(rows.reward.sum())
            assert scene.moment.over == ended.all() and scene.moment.total == pytest.approx(total)
            if scene.moment.over:
                break
        assert scene.moment.over and scene.moment.step > 1
        scene.step(np.zeros(8, np.int64))
        assert (scene.moment.episode, scene.moment.step, scene.moment.total) == (2, 0, 0.0)


def test_a_terminal_that_knows_no_escapes_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    code, written, same = play(["bandit", "--max-steps", "3"])
    assert code == 0 and same and b"\x1b" not in written and written.startswith(b"episode 1 step 0 action -")
