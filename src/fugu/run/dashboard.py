"""The dashboard of a run: a board in the terminal, or one plain line per interval if the output is not a terminal.

``update`` is called after every update and is cheap: it draws only if the last drawing is long enough ago, at most four times a
second and for less than one percent of the time. Other output appears above the board meanwhile.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, TextIO, cast

from fugu.run.board import ASCII, UNICODE, Header, Progress, board, plain
from fugu.run.metrics import PHASES
from fugu.trainer.config_parts import LogConfig

__all__ = ["Dashboard", "Header"]

INTERVAL = 0.25
"""seconds between two drawings, at least"""
SHARE = 0.005
"""share of the time that drawing may take: under one percent with the rest of ``update``"""
LONGEST = 2.0
"""seconds between two drawings, at most, on a machine that is slow at it"""
WINDOW = 10.0
"""seconds over which the speed is measured"""
SHARES = tuple(f"time/{phase}" for phase in PHASES)


class Dashboard:
    def __init__(self, header: Header, log: LogConfig | None = None, file: TextIO | None = None) -> None:
        log = log or LogConfig()
        self.header = header
        self.progress = Progress()
        self.draws = 0
        self.seconds = 0.0
        """seconds spent on drawing"""
        self._started = time.perf_counter()
        self._speed: deque[tuple[float, float]] = deque()
        self._shares = dict.fromkeys(SHARES, 0.0)
        self._latest: Mapping[str, float] = {}
        self._ended: Mapping[str, float] = {}
        """the latest metrics with an episode in them"""
        self._evaluated: Mapping[str, float] = {}
        """those of the latest evaluation"""
        self._next = -math.inf
        self._closed = False
        file = sys.stdout if file is None else file
        self._screen = _screen(log, file)
        self.above: TextIO = self._screen.above if isinstance(self._screen, _Board) else file
        """file whose lines appear above the board"""
        atexit.register(self.close)  # an error that nobody catches must not leave the cursor hidden
        self._draw(self._started)

    def update(self, metrics: Mapping[str, float]) -> None:
        """Take note of ``metrics`` (names of ``metrics.py``, not to be changed afterwards) and draw them when it is time."""
        now = time.perf_counter()
        self._latest = metrics
        returned = metrics.get("episode/return", math.nan)
        if returned == returned:  # not nan, as when no episode has ended
            self._ended = metrics
            self.progress.remember(metrics.get("self_play/rating", returned))
        if "eval/return" in metrics:
            self._evaluated = {name: value for name, value in metrics.items() if name.startswith("eval/")}
        shares = self._shares
        for name in SHARES:
            shares[name] += metrics.get(name, 0.0)
        if not self._speed:
            self._speed.append((now, metrics.get("steps", 0)))
            self._next = now  # the first numbers are shown at once
        if now >= self._next:
            self._draw(now)

    def close(self) -> None:
        """Draw the last state and give the terminal back. Can be called twice."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        try:
            if self._latest:  # not shown yet
                self._draw(time.perf_counter())
        finally:
            self._screen.close()

    def __enter__(self) -> Dashboard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _draw(self, now: float) -> None:
        progress = self.progress
        progress.uptime = now - self._started
        if self._speed:
            self._measure(now)
        used = time.thread_time()
        self._screen.show(self.header, progress)
        used = time.thread_time() - used
        self.draws += 1
        self.seconds += used
        if self.draws == 1:
            used = 0.0  # most of it was importing
        self._next = now + max(self._screen.interval, min(LONGEST, used / SHARE))

    def _measure(self, now: float) -> None:
        """Take the latest of every metric, the speed over the last seconds, and the time split since the last drawing."""
        metrics = self.progress.metrics
        for source in (self._ended, self._evaluated, self._latest):
            metrics.update({name: float(value) for name, value in source.items() if value == value})
        self._latest, self._ended, self._evaluated = {}, {}, {}
        speed = self._speed
        speed.append((now, metrics.get("steps", 0)))
        while len(speed) > 2 and speed[0][0] < now - WINDOW:
            speed.popleft()
        (before, some), (_, more) = speed[0], speed[-1]
        moved = more > some and now > before
        self.progress.rate = (more - some) / (now - before) if moved else metrics.get("time/steps_per_second", math.nan)
        whole = sum(self._shares.values())
        if whole > 0:
            metrics.update({name: part / whole for name, part in self._shares.items()})
            self._shares = dict.fromkeys(SHARES, 0.0)


class _Nothing:
    interval = math.inf

    def show(self, header: Header, progress: Progress) -> None:
        pass

    def close(self) -> None:
        pass


class _Lines:
    """Plain lines for files and pipes: no escape codes, nothing that the encoding lacks."""

    def __init__(self, file: TextIO, interval: float) -> None:
        self.interval = interval
        self._file = file

    def show(self, header: Header, progress: Progress) -> None:
        line = plain(header, progress)
        encoding = getattr(self._file, "encoding", None) or "utf-8"
        try:
            self._file.write(line.encode(encoding, "replace").decode(encoding) + "\n")
            self._file.flush()
        except (BrokenPipeError, ValueError):  # the reader has gone; the run goes on
            self.show = lambda header, progress: None  # type: ignore[method-assign]
            with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self._file.fileno())  # or the interpreter complains when it flushes on exit
        except OSError:  # a full disk: perhaps the next line
            pass

    def close(self) -> None:
        pass


class _Board:
    interval = INTERVAL

    def __init__(self, file: TextIO) -> None:
        from rich.console import Console
        from rich.file_proxy import FileProxy
        from rich.live import Live

        self._file = file
        self._console = Console(file=file, force_terminal=True, highlight=False, markup=False)
        self._glyphs = UNICODE if self._console.encoding.startswith("utf") else ASCII
        self._lines: list[Any] = []
        # errors that go to a file must not come to the board instead
        shared = file is sys.stdout  # else what is printed goes elsewhere
        errors = shared and sys.stderr is not None and sys.stderr.isatty()
        self._live = Live(
            self,
            console=self._console,
            auto_refresh=False,
            vertical_overflow="crop",
            redirect_stdout=shared,
            redirect_stderr=errors,
        )
        self._live.start()
        self.above = cast(TextIO, FileProxy(self._console, file))

    def show(self, header: Header, progress: Progress) -> None:
        self._measure()
        width, height = self._console.size
        self._lines = board(header, progress, width, max(1, height - 1), self._glyphs)
        with contextlib.suppress(OSError):  # the terminal has gone
            self._live.refresh()

    def _measure(self) -> None:
        """Take the size of this very terminal; rich asks the standard streams, which may lead elsewhere."""
        with contextlib.suppress(OSError, ValueError, AttributeError):  # no terminal
            size = os.get_terminal_size(self._file.fileno())
            if min(size) > 0 and not {"COLUMNS", "LINES"} & os.environ.keys():
                self._console.size = size

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._live.stop()

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.segment import Segment

        get_style = console.get_style
        for i, line in enumerate(self._lines):
            if i:
                yield Segment.line()
            for text, style in line:
                yield Segment(text, get_style(style) if style else None)


def shows_board(log: LogConfig, file: TextIO) -> bool:
    """Return whether ``file`` gets the board, not plain lines or nothing."""
    return _kind(log, file) == "board"


def _kind(log: LogConfig, file: TextIO) -> str:
    terminal = file.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    return log.board if log.board != "auto" else "board" if terminal else "lines"


def _screen(log: LogConfig, file: TextIO) -> _Nothing | _Lines | _Board:
    kind = _kind(log, file)
    if kind == "off":
        return _Nothing()
    return _Board(file) if kind == "board" else _Lines(file, log.interval)
