"""One program in a process of its own, seen from outside: what was sent to its ``runner``, what came back, and what became of it.

Nothing here waits. ``spawn`` calls ``read`` and ``write`` when the streams are ready, and ``kill`` when time is up. What comes back is
untrusted: frames are size-capped, their order and content are checked, and whatever is wrong with them after the program began is
the program's doing.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fugu.coding.sandbox.contract import Isolation, Limits, Outcome, Program, Status, printable
from fugu.coding.sandbox.runner import HEAD, OUT_OF_MEMORY

GRACE = 0.5
"""seconds past the wall limit after which a box is ended from outside"""
START = 30.0
"""seconds for a box to start"""


@dataclass(frozen=True)
class Start:
    """The way to start a box: the command, the folder the program works in (None: the box has its own), and what it may rely on."""

    command: list[str]
    folder: str | None = None
    alone: bool = False
    """in a pid namespace of its own"""
    processes: bool = False
    """the number of processes can be limited: they are counted per box, not per user"""
    filter: bytes = b""
    """of system calls, for the program"""
    name: str = ""
    """of the container"""
    environment: Mapping[str, str] = field(default_factory=dict)
    """of the command that makes the box, not of the program"""
    user: int | None = None
    """who it runs as, where that is somebody else"""


class Box:
    """``program`` in a process; ``candidates`` are the functions that test code may ask another box for."""

    def __init__(self, program: Program, start: Start, candidates: tuple[str, ...] = ()) -> None:
        self.program = program
        self.begun = False
        self.ending: dict[str, Any] | None = None
        self.broken = ""
        self.stdout, self.stderr, self.truncated = bytearray(), bytearray(), False
        self.results: list[bytes] = []
        self.questions: list[bytes] = []
        self.late: Status | None = None
        self.over = self.writing = False
        self.asked = self.finished = False
        """a question it has not answered; it was told that there are no more"""
        self.answers = not candidates and bool(program.calls)
        self.incoming = bytearray()
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            start.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(start.environment),
            cwd="/",
            start_new_session=True,
            user=start.user,
            group=start.user,
            extra_groups=None if start.user is None else [],
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.input, self.output = self.process.stdin.fileno(), self.process.stdout.fileno()
        for fd in (self.input, self.output):
            os.set_blocking(fd, False)
        header = {
            "channel": bool(candidates) or self.answers,
            "calls": self.answers,
            "candidates": candidates,
            "cwd": start.folder or "",
            "alone": start.alone,
            "seed": program.seed,
            "cpu_s": program.limits.cpu_s,
            "wall_s": program.limits.wall_s,
            "flood": program.limits.flood_kb * 1024,
            "result": program.limits.result_kb * 1024,
            "rlimits": resource_limits(program, start.processes),
            "filter": start.filter.hex(),
        }
        self.outgoing = bytearray()
        self.send(b"H", json.dumps(header).encode())
        self.send(b"S", program.source)
        self.send(b"I", program.stdin)

    @property
    def deadline(self) -> float:
        """Return when to end it from outside; until it has begun, it may take as long as a box takes to start."""
        return self.started + (self.program.limits.wall_s + GRACE if self.begun else START)

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        self.outgoing += HEAD.pack(len(payload), kind[0]) + payload

    def write(self) -> None:
        try:
            del self.outgoing[: os.write(self.input, self.outgoing[:65536])]
        except BlockingIOError:
            pass
        except OSError:  # it is gone; reading says how
            self.outgoing.clear()

    def read(self) -> bool:
        """Take what has come; return False when there will be no more."""
        try:
            data = os.read(self.output, 1 << 18)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        self.incoming += data
        while len(self.incoming) >= HEAD.size and not self.broken:
            length, kind = HEAD.unpack_from(self.incoming)
            if length > max(self.program.limits.result_kb * 1024, 1 << 17):
                self.broken = "a frame too large"
            elif len(self.incoming) < HEAD.size + length:
                break
            else:
                payload = bytes(self.incoming[HEAD.size : HEAD.size + length])
                del self.incoming[: HEAD.size + length]
                self._take(bytes([kind]), payload)
        return bool(data) and not self.broken

    def _take(self, kind: bytes, payload: bytes) -> None:
        if kind == b"b" and not self.begun:
            self.begun, self.started = True, time.monotonic()
        elif kind in (b"o", b"e") and self.begun:
            kept = self.stdout if kind == b"o" else self.stderr
            space = self.program.limits.output_kb * 1024 - len(kept)
            kept += payload[: max(space, 0)]
            self.truncated |= len(payload) > space
        elif kind == b"r" and len(self.results) < max(len(self.program.calls), 1):
            self.results.append(payload)
        elif kind == b"q" and not self.questions:
            self.questions.append(payload)
        elif kind == b"x" and self.ending is None:
            self.ending = _ending(payload)
            self.broken = "" if self.ending else "an ending that is none"
        else:
            self.broken = f"an unexpected frame {kind!r}"

    def outcome(self, isolation: Isolation, backend: str) -> Outcome:
        """Return the outcome, after it has ended."""
        wall = time.monotonic() - self.started
        told = self.ending or {}
        code = told.get("exit_code")
        status, detail = self._judge(code)
        return Outcome(
            status=status,
            detail=printable(detail),
            stdout=bytes(self.stdout),
            stderr=bytes(self.stderr),
            truncated=self.truncated,
            results=tuple(self.results),
            exit_code=None if code is None or code < 0 else (1 if code == OUT_OF_MEMORY else code),
            signal=-code if code is not None and code < 0 else None,
            cpu_s=told.get("cpu_s", 0.0),
            wall_s=told.get("wall_s", wall),
            max_rss_mb=told.get("max_rss_mb", 0.0),
            isolation=isolation,
            backend=backend,
        )

    def _judge(self, code: int | None) -> tuple[Status, str]:
        limits = self.program.limits
        if self.late is not None and self.ending is None:
            return self.late, f"ended from outside after {limits.wall_s} s"
        if not self.begun:
            return "internal_error", f"the box did not start (exit code {self.process.poll()})"
        if self.broken:
            return "violation", f"it sent {self.broken}"
        if self.ending is None or code is None:
            return "runtime_error", "it ended the process it runs in"
        verdict = self.ending["verdict"]
        if verdict:
            return verdict, {"time_limit": _time(limits), "output_limit": "too much output"}.get(verdict, verdict)
        if code == OUT_OF_MEMORY:
            return "memory_limit", f"more than {limits.memory_mb} MB"
        if code == -24 or (code == -9 and self.ending["cpu_s"] >= limits.cpu_s):  # SIGXCPU
            return "time_limit", _time(limits)
        if code == -31:  # SIGSYS
            return "violation", "a forbidden system call"
        if code < 0:
            return "runtime_error", f"killed by signal {-code}"
        if code > 0:
            return "runtime_error", last_line(bytes(self.stderr)) or f"exit code {code}"
        if len(self.results) < len(self.program.calls):
            return "runtime_error", f"it ended after {len(self.results)} of {len(self.program.calls)} calls"
        return "ok", ""

    def kill(self, status: Status | None = None) -> None:
        self.late = self.late or status
        try:
            os.killpg(self.process.pid, 9)
        except (ProcessLookupError, PermissionError):
            self.process.kill()

    def close(self) -> None:
        """End its group, reap the process, close the pipes."""
        self.kill()
        assert self.process.stdin is not None and self.process.stdout is not None
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                stream.close()
        self.process.wait()


def resource_limits(program: Program, processes: bool) -> dict[str, int]:
    """Return the limits for ``setrlimit`` in the box, by the names of ``resource``."""
    limits: Limits = program.limits
    counted = (
        {"NPROC": limits.processes + 3 if program.profile == "program" else 19} if processes else {}
    )  # the runner's are three
    return {
        **counted,
        "AS": limits.memory_mb << 20,
        "CPU": int(limits.cpu_s) + 1,
        "FSIZE": limits.file_mb << 20,
        "NOFILE": limits.open_files,
        "STACK": 64 << 20,
        "CORE": 0,
    }


def last_line(text: bytes) -> str:
    lines = text.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def _time(limits: Limits) -> str:
    return f"more than {limits.cpu_s} s of CPU time or {limits.wall_s} s"


def _ending(payload: bytes) -> dict[str, Any] | None:
    """Return the runner's last word, or None where it is not one."""
    try:
        told = json.loads(payload)
        numbers = {name: float(told[name]) for name in ("cpu_s", "wall_s", "max_rss_mb")}
        code, verdict = told["exit_code"], told["verdict"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    fine = isinstance(code, int) and abs(code) < 256 and verdict in ("", "time_limit", "output_limit", "violation")
    return {**numbers, "exit_code": code, "verdict": verdict} if fine and all(0 <= n < 1e9 for n in numbers.values()) else None
