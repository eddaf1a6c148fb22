"""What environments print while a board is shown: in a file of the run, its last lines in errors, and never on the terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from fugu.errors import EnvError
from fugu.run.output import ROOM, Output, kept_output
from fugu.trainer.config_parts import LogConfig
from fugu.vector.launch import anonymous_file

SCRIPT = """
import os, sys, warnings
import gymnasium, numpy as np
import fugu

class Loud(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    count = 0
    def __init__(self):
        print("made in", os.getpid())
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.count += 1
        print("step", self.count, "\\x1b[31mred")
        os.write(2, b"from C\\n")
        if self.count == 20 and HOW == "raise":
            raise ValueError("the end")
        return np.zeros(2, np.float32), 1.0, True, False, {}

def warn(*_):
    warnings.warn("mind the gap", RuntimeWarning)

HOW = sys.argv[1]
if __name__ == "__main__":
    from fugu.run.live import Report
    report, before = Report.__call__, [os.fstat(1).st_ino, os.fstat(2).st_ino]
    Report.__call__ = lambda self, metrics: (report(self, metrics), warn())
    settings = {"steps": 64, "num_envs": 2, "horizon": 8, "minibatch": 16, "threads": 1, "backend": "process", "num_workers": 2}
    sys.modules["loud"] = sys.modules["__main__"]
    try:
        fugu.train("loud.py:Loud", **settings, **({"log.board": "off"} if HOW == "off" else {}))
    except Exception as error:
        print(f"caught {error}")
    print("after it", before == [os.fstat(1).st_ino, os.fstat(2).st_ino], os.isatty(1), sys.stdout is sys.__stdout__)
"""


def in_terminal(folder: Path, how: str) -> str:
    """All that SCRIPT writes to a terminal, without what steers it."""
    (folder / "loud.py").write_text(SCRIPT)
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 91, 0, 0))
    variables = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")}
    child = subprocess.Popen(
        [sys.executable, "loud.py", how],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
        env={**variables, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"},
    )
    os.close(terminal)
    out = b""
    try:
        while data := os.read(main, 65536):
            out += data
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(main)
    assert child.wait(60) == 0
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.decode().replace("\x1b[31mred", "RED"))


@pytest.mark.parametrize("how", ["raise", pytest.param("fine", marks=pytest.mark.slow)])
def test_the_terminal_has_the_board_and_a_file_what_was_printed(how: str, tmp_path: Path) -> None:
    shown = in_terminal(tmp_path, how)
    (run,) = (tmp_path / "runs").iterdir()
    kept = (run / "output.txt").read_text()
    assert kept.count("step 1 \x1b[31mred") == 2 and "from C" in kept and len(set(re.findall(r"made in \d+", kept))) == 2
    board, _, rest = shown.partition("caught " if how == "raise" else "after it")
    board = board[board.index("fugu \u00b7 ") :]  # before it an environment was made to choose a preset by
    assert "step 1 " not in board and "from C" not in board and "made in" not in board and "updates" in board
    assert "RuntimeWarning: mind the gap" in " ".join(board.split()) and "mind the gap" not in kept
    assert max(len(line) for line in board.splitlines()) <= 91 and any(len(line) > 80 for line in board.splitlines())
    assert shown.rstrip().endswith("after it True True True")
    if how == "raise":
        assert rest.startswith("ValueError: the end") and "RED" not in rest
        assert f"printed last (all of it in runs/{run.name}/output.txt):" in rest
        assert "  | step 20 \\x1b[31mred" in rest and rest.count("  | ") == 10
        assert "from C" in (run / "failed.txt").read_text()


@pytest.mark.slow
def test_without_a_board_printing_stays_where_it_is(tmp_path: Path) -> None:
    shown = in_terminal(tmp_path, "off")
    assert "step 1 RED" in shown and "from C" in shown and not list(tmp_path.glob("runs/*/output.txt"))


def test_a_pipe_is_left_alone() -> None:
    before = os.fstat(1)
    with kept_output(LogConfig(board="board")) as output:
        assert output.terminal is None and os.path.samestat(os.fstat(1), before)


def test_the_file_is_bounded_and_the_last_lines_are_there_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fugu.run.output.LIMIT", 1000)
    monkeypatch.setattr("fugu.run.output.ROOM", 500)
    output = Output()
    output._memory, output.terminal = os.memfd_create("test"), sys.__stdout__
    try:
        fcntl.fcntl(output._memory, fcntl.F_SETFL, os.O_APPEND)
        os.write(output._memory, b"early\n")
        output._move()
        output.keep(tmp_path / "output.txt", tmp_path / "output.txt")
        for number in range(100):
            os.write(output._memory, b"line %d %s\n" % (number, b"x" * 30))
            output._move()
        kept = (tmp_path / "output.txt").read_text()
        assert kept.startswith("early\nline 0 x") and 1000 <= len(kept) < 1100
        assert kept.endswith("\n... more was printed than is kept here\n")
        assert os.fstat(output._memory).st_size < 600
        error = EnvError("ValueError: no")
        for _ in range(2):
            with pytest.raises(EnvError), output.telling():
                raise error
        told = str(error).splitlines()[-10:]
        assert (
            told[0].startswith("  | line 90 x")
            and told[-1].startswith("  | line 99 x")
            and str(error).count("printed last") == 1
        )
    finally:
        os.close(output._memory)


def test_what_is_printed_while_much_is_moved_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output()
    output._memory = anonymous_file("test-output")
    fcntl.fcntl(output._memory, fcntl.F_SETFL, os.O_APPEND)
    written, late = output._write, [b"late\n"]

    def write(data: bytes) -> None:
        written(data)
        if late and data.endswith(b"\n"):
            os.write(output._memory, late.pop())

    monkeypatch.setattr(output, "_write", write)
    try:
        os.write(output._memory, bytes(ROOM) + b"\n")
        output._move()
        output._move()
    finally:
        os.close(output._memory)
    assert output._waiting.endswith(b"\nlate\n")
