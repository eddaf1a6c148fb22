"""The terminal as a screen: pictures as coloured half blocks, single keys without Enter, and everything put back at the end.

Each character cell shows two pixels, one above the other: the upper half block in one colour on a background of the other.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from types import FrameType, TracebackType
from typing import Any

import numpy as np

ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
"""the terminal's second page, without a cursor, cleared"""
LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"
GONE = 128 + signal.SIGHUP
"""exit code when the terminal is gone"""
ESCAPES = {"\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left"}
ESCAPES |= {"\x1bO" + key[-1]: name for key, name in ESCAPES.items()}  # what some terminals send instead


class Screen:
    """Draws on standard output and reads keys from standard input while it is entered. Leaving restores the terminal, however the
    program ended: an error, Ctrl-C, SIGTERM or SIGHUP; Ctrl-Z restores it for as long as the program sleeps."""

    def __init__(self) -> None:
        self.keyboard = sys.stdin is not None and sys.stdin.isatty()
        self._settings: list[Any] | None = None
        self._unread: list[str] = []
        """keys pressed together with the one that ``wait`` returned"""
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Screen:
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, _end)
        self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._sleep)
        self._open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def show(self, picture: np.ndarray | None, lines: list[str]) -> None:
        """Draw the picture, as large as fits, with ``lines`` of text under it. One write, so that nothing flickers."""
        columns, rows = _size()
        text = [f"{line[: columns - 1]}\x1b[K" for line in lines]
        drawn = [] if picture is None else half_blocks(fit(picture, columns, 2 * max(1, rows - len(lines) - 1)))
        self._write("\x1b[H" + "\x1b[K\n".join([*drawn, *text]) + "\x1b[0m\x1b[J")

    def keys(self, seconds: float) -> list[str]:
        """Return keys pressed within the next ``seconds``: characters, or up, down, left, right. Takes that long, even without any."""
        pressed, self._unread = self._unread, []
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            if not self.keyboard:
                time.sleep(max(0.0, left))
                return pressed
            ready, _, _ = select.select([sys.stdin], [], [], max(0.0, left))
            if not ready:
                return pressed
            try:
                data = os.read(sys.stdin.fileno(), 256).decode(errors="ignore")
            except OSError:
                data = ""
            if not data:
                raise SystemExit(GONE)
            pressed += split_keys(data)

    def wait(self) -> str:
        """Return the next key."""
        while not self._unread:
            self._unread = self.keys(0.05)
        return self._unread.pop(0)

    def _open(self) -> None:
        if self.keyboard:
            self._settings = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        self._write(ENTER)

    def _close(self) -> None:
        with contextlib.suppress(SystemExit):  # a terminal that is gone needs no restoring
            self._write(LEAVE)
        if self._settings is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(sys.stdin, termios.TCSANOW, self._settings)
            self._settings = None

    def _sleep(self, number: int, frame: FrameType | None) -> None:
        self._close()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._open()  # after fg

    def _write(self, text: str) -> None:
        """Write past Python's buffer, which would complain again at the end about a terminal that is gone."""
        data = text.encode()
        try:
            while data:
                data = data[os.write(sys.stdout.fileno(), data) :]
        except OSError:
            raise SystemExit(GONE) from None


def _size() -> tuple[int, int]:
    """Return columns and rows of the terminal itself, whatever COLUMNS says; a common size if the terminal does not know."""
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return 80, 24
    return columns or 80, rows or 24


def split_keys(data: str) -> list[str]:
    """Return the keys that a terminal sent. Unknown escape sequences are left out."""
    out = []
    while data:
        length = 3 if data[:1] == "\x1b" and len(data) >= 3 else 1
        key, data = data[:length], data[length:]
        if length == 3:
            out += [ESCAPES[key]] if key in ESCAPES else []
        elif key != "\x1b":
            out.append(key)
    return out


def fit(picture: np.ndarray, width: int, height: int) -> np.ndarray:
    """Return ``picture [h, w, 3]`` as large as fits into ``width x height`` pixels, each the mean of those it stands for; even
    height."""
    h, w = picture.shape[:2]
    scale = min(width / w, height / h)
    new_w, new_h = max(1, int(w * scale)), max(2, int(h * scale) // 2 * 2)
    rows, columns = _edges(h, new_h), _edges(w, new_w)
    sums = np.zeros((h + 1, w + 1, 3), np.int64)  # of everything above and to the left
    sums[1:, 1:] = picture.cumsum(0, dtype=np.int64).cumsum(1)
    top, bottom = rows[0][:, None], rows[1][:, None]
    area = (bottom - top) * (columns[1] - columns[0])
    total = sums[bottom, columns[1]] - sums[top, columns[1]] - sums[bottom, columns[0]] + sums[top, columns[0]]
    return (total // area[..., None]).astype(np.uint8)


def half_blocks(picture: np.ndarray) -> list[str]:
    """Return a line of text per two rows of pixels; a colour is only named where it changes."""
    lines = []
    for upper, lower in zip(picture[0::2].tolist(), picture[1::2].tolist(), strict=True):
        parts: list[str] = []
        front = back = None
        for above, below in zip(upper, lower, strict=True):
            if above != front:
                parts.append(f"\x1b[38;2;{above[0]};{above[1]};{above[2]}m")
                front = above
            if below != back:
                parts.append(f"\x1b[48;2;{below[0]};{below[1]};{below[2]}m")
                back = below
            parts.append("\u2580")
        lines.append("".join(parts) + "\x1b[0m")
    return lines


def _edges(old: int, new: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the start and end of each of ``new`` pixels among ``old`` ones; at least one is in each."""
    start = np.arange(new) * old // new
    return start, np.maximum(start + 1, (np.arange(new) + 1) * old // new)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
