"""``apart(function, ...)``: run a function with a user's environment in a separate process, and return its result.

An environment that hangs, exits or crashes there does not take the command with it: the command gets an ``Ended`` that says what
happened and, if faulthandler saw it, in which lines.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import itertools
import linecache
import math
import multiprocessing
import os
import pickle
import re
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from fugu.errors import ConfigError, FuguError, signal_name

Result = TypeVar("Result")

POLL_S = 0.1
"""seconds between two looks whether the process is alive; its pipe stays open if it has forked others"""
PATIENCE_S = 5.0
"""seconds after which a terminal shows how long the command will wait"""
POLITE_S = 1.0
"""seconds the process may take to end after it has answered"""
LOOK = 0.9
"""share of its time after which a process notes where it is, in case it is late"""
TRACE_BYTES = 65536
SIZE = struct.Struct("=Q")
"""stands before the answer: its length in bytes"""
READ_BYTES = 1 << 20
PR_SET_PDEATHSIG = 1
SAFE_PATH = "PYTHONSAFEPATH"


class Ended(FuguError):
    """The process ended without an answer, or had to be ended: ``what`` happened, in which ``lines``, and a ``fix``."""

    def __init__(self, what: str, lines: Sequence[str], fix: str) -> None:
        super().__init__("\n".join([what, *lines, fix]))
        self.what = what
        self.lines = tuple(lines)
        self.fix = fix


class _Traceback(Exception):
    """The traceback of an error in the process, as text: for ``--debug``."""

    def __str__(self) -> str:
        return "\n" + "".join(self.args)


def apart(
    function: Callable[..., Result], *arguments: Any, timeout: float | None = None, fresh: bool = False, **settings: Any
) -> Result:
    """Return what ``function(*arguments, **settings)`` returns, called in another process; all of these can be pickled.

    A FuguError that it raises is raised here. ``Ended`` if the process comes to an end without an answer, or takes more than
    ``timeout`` seconds. No process is left behind, whatever happens here. ``fresh``: never a fork, whose memory seems to grow as it
    begins to use what it shares with its parent.
    """
    context: Any = multiprocessing.get_context("spawn" if fresh else _start_method())
    answer, answering = context.Pipe(duplex=False)
    trace, tracing = context.Pipe(duplex=False)
    call = function, arguments, settings
    environment = os.environ.get(SAFE_PATH)
    process = context.Process(target=_answer, args=(answering, tracing, timeout, os.getpid(), environment, call))
    try:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until it is out of reach of the terminal's Ctrl-C
        try:
            with _safe_path():
                process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        answering.close()
        tracing.close()
        content = _receive(answer, process.pid, timeout)
        over = _is_over(process.pid, wait=POLL_S if content is None else POLITE_S)
        _end(process)
        if content is None:
            raise _ended(process.exitcode if over else None, timeout, _places(trace))
    finally:
        _end(process)
        for end in (answer, answering, trace, tracing):
            end.close()
    result, error = pickle.loads(content)
    if error is not None:
        raised, text = error
        raise raised from _Traceback(text)
    return result


def _start_method() -> str:
    """Return the start method: a fork takes no time, but has only one of its parent's threads, and torch may wait for the others."""
    alone = threading.active_count() == 1 and "torch" not in sys.modules
    return "fork" if alone and sys.platform == "linux" else "spawn"


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """Let no Python that is started look for its own modules in the current folder first. Not for those that an environment starts:
    there it would keep scripts from what lies beside them."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        _restore_safe_path(before)


def _restore_safe_path(before: str | None) -> None:
    if before is None:
        os.environ.pop(SAFE_PATH, None)
    else:
        os.environ[SAFE_PATH] = before


def _receive(answer: Connection, pid: int, timeout: float | None) -> bytes | None:
    """Return the answer, or None if the process is over or late."""
    start = time.monotonic()
    until = math.inf if timeout is None else start + timeout
    told = timeout is None or not sys.stderr.isatty()
    while not answer.poll(max(0.0, min(POLL_S, until - time.monotonic()))):
        if not told and time.monotonic() - start > PATIENCE_S:
            print(f"no answer yet; waiting for at most {timeout:g} seconds in all (--timeout)", file=sys.stderr)
            told = True
        if (_is_over(pid) or time.monotonic() >= until) and not answer.poll():
            return None
    return _read(answer, pid, until)


def _read(answer: Connection, pid: int, until: float) -> bytes | None:
    """Return the answer that has begun to come; None if the rest does not, because the process ended, was stopped, or hangs."""
    pipe, content, size = answer.fileno(), bytearray(), SIZE.size
    os.set_blocking(pipe, False)
    while len(content) < size:
        try:
            part = os.read(pipe, READ_BYTES)
        except BlockingIOError:
            over = _is_over(pid) or time.monotonic() >= until
            if not answer.poll(0 if over else POLL_S) and over:
                return None
            continue
        if not part:
            return None
        content += part
        if size == SIZE.size <= len(content):
            size += SIZE.unpack_from(content)[0]
    return bytes(content[SIZE.size :])


def _is_over(pid: int, wait: float = 0.0) -> bool:
    """Return whether the process has ended, or does within ``wait`` seconds. Its number stays taken until ``_end``."""
    until = time.monotonic() + wait
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= until:
            return False
        time.sleep(0.002)
    return True


def _end(process: Any) -> None:
    """End the process, if it was started and still runs, and everything its environment has started."""
    if process.pid is None or process._popen.returncode is not None:  # its number may be somebody else's by now
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has no session of its own yet
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _ended(code: int | None, timeout: float | None, places: list[str]) -> Ended:
    """Return the error for ``code`` as multiprocessing has it, negative for a signal; None: it was late."""
    survive = "training survives it with --on-error restart"
    if code is None:
        return Ended(
            f"nothing came back within {timeout:g} seconds",
            places,
            "look for an endless loop, a sleep or a wait; raise --timeout if it is merely slow. "
            "In training --isolate True and --step-timeout end such a step",
        )
    if code >= 0:
        return Ended(
            f"the process of the environment ended with exit code {code}",
            places,
            f"look for os._exit() and sys.exit(), and raise an exception instead; {survive}",
        )
    memory = ", or for too little memory" if -code == signal.SIGKILL else ""
    return Ended(
        f"the process of the environment was killed by signal {-code} ({signal_name(-code)})",
        places,
        f"look for a crash in native code, for os.kill() and os.abort(){memory}; {survive}",
    )


def _places(trace: Connection) -> list[str]:
    """Return where the environment was when faulthandler looked: its innermost three lines, each on a line of its own."""
    text = os.read(trace.fileno(), TRACE_BYTES).decode(errors="replace") if trace.poll() else ""
    main_thread = text.rpartition("(most recent call first):")[2]  # the oldest, and so the last
    frames = re.findall(r'File "(.+)", line (\d+) in (.+)', main_thread)
    ours = str(Path(__file__).parents[1])
    inner = itertools.takewhile(lambda frame: not frame[0].startswith(ours), frames)
    lines = [
        f"  {Path(file).name}:{line} in {name}: {linecache.getline(file, int(line)).strip()}" for file, line, name in inner
    ]
    return lines[2::-1]


# --- in the other process ---


def _answer(
    answering: Connection,
    tracing: Connection,
    timeout: float | None,
    parent: int,
    safe_path: str | None,
    call: tuple[Any, Any, Any],
) -> None:
    _leave_terminal(parent)
    _restore_safe_path(safe_path)
    multiprocessing.set_start_method(None, force=True)  # an environment's own processes start as usual
    faulthandler.enable(tracing.fileno(), all_threads=False)
    if timeout is not None:
        faulthandler.dump_traceback_later(LOOK * timeout, file=tracing.fileno())
    function, arguments, settings = call
    result = error = None
    try:
        result = function(*arguments, **settings)
    except FuguError as raised:
        error = _sendable(raised), traceback.format_exc()
    faulthandler.cancel_dump_traceback_later()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.CDLL(None).fflush(None)  # what native code has printed: a fork ends without it
    content = pickle.dumps((result, error))
    with open(answering.fileno(), "wb", closefd=False) as pipe:
        pipe.write(SIZE.pack(len(content)) + content)


def _sendable(error: FuguError) -> FuguError:
    """Return the error, or one of its kind in plain words if its fields hold something that cannot leave this process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return ConfigError(str(error)) if isinstance(error, ConfigError) else FuguError(str(error))
    return error


def _leave_terminal(parent: int) -> None:
    """Leave Ctrl-C to the parent; this process ends with it, even if the parent is killed."""
    os.setsid()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # forgets one that has come since the start
    signal.signal(signal.SIGINT, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
