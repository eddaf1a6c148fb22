"""What is printed while a board is shown: kept in a file of the run instead of on the terminal, which the board has to itself.

Descriptors 1 and 2 lead elsewhere for that time, so what C libraries print counts, and what workers print that are started in it.
They lead to memory, where a print never waits; a thread moves it to the file, which ends at ``LIMIT`` bytes. Warnings of this
process still reach the terminal. Without a board (plain lines, a pipe, a notebook) printing stays where it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from fugu import files
from fugu.errors import ConfigError, FuguError, LoadError, shown_line
from fugu.run.dashboard import shows_board
from fugu.trainer.config_parts import LogConfig
from fugu.vector.launch import anonymous_file

LIMIT = 10_000_000
"""bytes of the file; what is printed after that is not kept"""
ROOM = 1_000_000
"""bytes in memory after which those that have been moved are let go"""
ROUNDS = 8
"""looks in one move at what was printed during the one before; the memory that is let go would take it along"""
EVERY_S = 0.25
"""seconds between two moves"""
TAIL = 10
"""lines that an error shows of it"""
KEPT = 8_000
"""bytes that are kept for those lines"""


class Output:
    """``terminal``: where the board is to be drawn; None: nothing is kept here, and standard output is where it was."""

    def __init__(self) -> None:
        self.terminal: TextIO | None = None
        self.above: TextIO | None = None
        """where warnings go: the terminal, or the lines above the board"""
        self.path: Path | None = None
        self._shown = Path()
        self._memory = -1
        self._taken = 0
        """bytes of the memory that were moved"""
        self._written = 0
        """bytes of the file"""
        self._waiting = b""
        """what was printed before there was a file"""
        self._last = b""
        self._told = False
        self._lock = threading.Lock()

    def keep(self, path: Path, shown: Path) -> None:
        """Keep what is printed, and was so far, in ``path``, which errors call ``shown``."""
        if self.terminal is None:
            return
        with self._lock:
            self.path, self._written = path, path.stat().st_size if path.exists() else 0
            self._shown = shown
            waiting, self._waiting = self._waiting, b""
            self._write(waiting)

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Add the last lines that were printed to the text of an error, once."""
        try:
            yield
        except FuguError as error:
            self._tell(error)
            raise

    def _tell(self, error: FuguError) -> None:
        if self.terminal is None or self._told:
            return
        if isinstance(error, ConfigError) and not isinstance(error, LoadError):
            return  # nothing has run
        self._told = True
        self.move()
        lines = [shown_line(line.expandtabs()) for line in self._last.decode(errors="replace").splitlines() if line.strip()][
            -TAIL:
        ]
        if lines:
            place = "" if self.path is None or not self.path.exists() else f" (all of it in {self._shown})"
            error.add(f"  printed last{place}:\n" + "\n".join(f"  | {line[:200]}" for line in lines))

    def move(self) -> None:
        """Move what was printed from memory to the file."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        self._move()

    def _move(self) -> None:
        with self._lock:
            for _ in range(ROUNDS):
                end = os.fstat(self._memory).st_size
                if self._taken >= end:
                    break
                while self._taken < end and (data := os.pread(self._memory, ROOM, self._taken)):
                    self._taken += len(data)
                    self._last = (self._last + data)[-KEPT:]
                    self._write(data)
            if self._taken > ROOM:
                os.ftruncate(self._memory, 0)
                self._taken = 0

    def _write(self, data: bytes) -> None:
        if self.path is None:
            self._waiting = (self._waiting + data)[:LIMIT]
            return
        room = LIMIT - self._written
        if not data or room <= 0 or not self.path.parent.exists():
            return
        note = b"" if len(data) < room else b"\n... more was printed than is kept here\n"
        self._written += len(data)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with contextlib.suppress(OSError, files.NotPlain), os.fdopen(files.opened(self.path, flags), "ab") as file:
            file.write(data[:room] + note)  # a full disk costs these lines and nothing else


@contextlib.contextmanager
def kept_output(log: LogConfig) -> Iterator[Output]:
    """Let what is printed go elsewhere, if there will be a board."""
    output = Output()
    if not (_is_descriptor(sys.stdout, 1) and sys.stdout.isatty() and shows_board(log, sys.stdout)):
        yield output
        return
    both = _is_descriptor(sys.stderr, 2) and sys.stderr.isatty()  # standard error may go to a file of the user's
    taken = [(sys.stdout, 1), (sys.stderr, 2)] if both else [(sys.stdout, 1)]
    with contextlib.ExitStack() as stack:
        output._memory = anonymous_file("fugu-output")
        stack.callback(os.close, output._memory)
        fcntl.fcntl(output._memory, fcntl.F_SETFL, os.O_APPEND)
        terminal = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="replace", buffering=1)
        output.terminal = output.above = stack.enter_context(terminal)
        stack.callback(output.move)
        for stream, number in taken:
            stream.flush()
            stack.callback(_give_back, stream, number, os.dup(number))
            os.dup2(output._memory, number)
        stack.enter_context(_moving(output))
        if both:
            stack.enter_context(_warnings_above(output))
        with output.telling():
            yield output


def _give_back(stream: TextIO, number: int, before: int) -> None:
    with contextlib.suppress(OSError, ValueError):
        stream.flush()
    os.dup2(before, number)
    os.close(before)


@contextlib.contextmanager
def _moving(output: Output) -> Iterator[None]:
    """Move what was printed now and then."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(EVERY_S):
            output._move()

    thread = threading.Thread(target=work, name="fugu-output", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def _warnings_above(output: Output) -> Iterator[None]:
    """Show warnings on the terminal all the same."""
    before = warnings.showwarning

    def show(*what: Any, **more: Any) -> None:
        with contextlib.redirect_stderr(output.above):
            before(*what, **more)

    warnings.showwarning = show
    try:
        yield
    finally:
        if warnings.showwarning is show:
            warnings.showwarning = before


def _is_descriptor(stream: Any, number: int) -> bool:
    try:
        return bool(stream.fileno() == number)
    except (OSError, ValueError, AttributeError):
        return False
