"""One process of a program as the manager sees it: its pipes, its channel, what it wrote, and what became of it.

Everything read here comes from a process that runs an agent's code. Sizes are bounded before anything is kept, frames that nobody asked
for end the run, and nothing is interpreted.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fugu.coding.sandbox import wire
from fugu.coding.sandbox.contract import Program, printable

_CHUNK, _PAGE = 1 << 16, 4096


@dataclass
class Report:
    """The zygote's report at the end."""

    status: int
    why: int
    cpu_s: float
    wall_s: float
    max_rss_mb: float


@dataclass
class Stream:
    """The bytes that came through a pipe: the beginning is kept, all of it is counted."""

    descriptor: int
    most: int
    data: bytearray = field(default_factory=bytearray)
    total: int = 0

    def read(self, up_to: int) -> bool:
        """Take what is there, about ``up_to`` bytes at most; False at the end."""
        while self.total < up_to:
            try:
                part = os.read(self.descriptor, _CHUNK)
            except BlockingIOError:
                return True
            if not part:
                return False
            self.total += len(part)
            if len(self.data) < self.most:
                self.data += part[: self.most - len(self.data)]
        return True

    def is_full(self) -> bool:
        """Return True if there is no room for a page more, so that a writer waits. How much a pipe holds is the kernel's choice."""
        (waiting,) = struct.unpack("i", fcntl.ioctl(self.descriptor, termios.FIONREAD, bytes(4)))
        capacity: int = fcntl.fcntl(self.descriptor, fcntl.F_GETPIPE_SZ)
        return bool(waiting >= max(capacity - _PAGE, capacity // 2))


class Execution:
    """``answered`` is called with (kind, payload) of each frame that a caller of functions has to see."""

    def __init__(self, number: int, program: Program, mode: int) -> None:
        self.number, self.program, self.mode = number, program, mode
        self.report: Report | None = None
        self.ready = False
        self.setup_error = ""
        self.loaded = self.tested = False
        self.results: list[bytes] = []
        self.raised = ""
        self.heard = 0.0
        """when the last frame was taken that it waits for an answer to"""
        self.kept_waiting = False
        """for an answer of ours, until its time was up"""
        self.stood_full = False
        """before a pipe that nobody emptied, when its time was up"""
        self.problem: tuple[str, str] | None = None
        """(status, detail) of what ended the run by our own decision"""
        self.on_frame: Callable[[int, bytes], None] | None = None
        """for a pair: gets calls of the test code and answers of the agent's"""
        self._asked = 0
        self._last_asked = False
        """all calls are on their way: what it hears next is the end"""
        self._incoming = bytearray()
        self._outgoing = bytearray()
        kept = program.limits.output_kb * 1024
        self.channel, self._theirs = socket.socketpair()
        self.channel.setblocking(False)
        ours_out, self._their_out = os.pipe2(os.O_CLOEXEC)
        try:
            ours_err, self._their_err = os.pipe2(os.O_CLOEXEC)
        except OSError:
            os.close(ours_out)
            os.close(self._their_out)
            raise
        os.set_blocking(ours_out, False)
        os.set_blocking(ours_err, False)
        self.out, self.err = Stream(ours_out, kept), Stream(ours_err, kept)
        names = b""
        if mode == wire.TESTS:
            assert program.partner is not None
            names = "\0".join(call.function for call in program.partner.calls).encode()
        self._outgoing += wire.OPENING.pack(len(program.stdin), len(program.source), len(names))
        self._outgoing += program.stdin + program.source + names

    def start(self, control: socket.socket) -> None:
        """Hand it to a zygote. The program is on its way to the child before the zygote knows of it, and the first call behind it."""
        if self.mode == wire.CALLS and self.on_frame is None:
            self._next_call()
        self.write()
        limits = self.program.limits
        request = wire.REQUEST.pack(
            wire.RUN,
            self.number,
            limits.cpu_s,
            limits.wall_s,
            limits.memory_mb << 20,
            limits.processes,
            limits.open_files,
            limits.file_mb << 20,
            limits.disk_mb << 20,
            self.program.seed & (1 << 64) - 1,
            self.program.profile == "program",
            self.mode,
            self.on_frame is not None and self.mode == wire.CALLS,  # the second of a pair, which the first waits for
        )
        socket.send_fds(control, [request], [self._theirs.fileno(), self._their_out, self._their_err])
        self._theirs.close()
        os.close(self._their_out)
        os.close(self._their_err)
        self._their_out = self._their_err = -1

    def write(self) -> bool:
        """Send what can be sent; True when all is."""
        while self._outgoing:
            try:
                sent = self.channel.send(memoryview(self._outgoing)[:_CHUNK])
            except BlockingIOError:
                return False
            except OSError:  # the child is gone, which the zygote will report
                self._outgoing.clear()
                return True
            del self._outgoing[:sent]
        if self._last_asked:
            self._say_no_more()
        return True

    def read(self) -> None:
        """Take what has come by channel and pipes."""
        if self.report is not None and self.report.why == wire.WALL:
            self.stood_full = self.out.is_full() or self.err.is_full()
        self._read_channel()
        flood = self.program.limits.flood_kb * 1024
        self.out.read(flood + 1 - self.err.total)
        self.err.read(flood + 1 - self.out.total)
        if self.out.total + self.err.total > flood:
            self._end("output_limit", f"wrote more than {self.program.limits.flood_kb} KB")

    def _read_channel(self) -> None:
        # A frame is read whole before the next is taken, so at most one frame and a chunk are held.
        while self.problem is None:
            try:
                part = self.channel.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                return
            if not part:
                return
            self._incoming += part
            self._parse()

    def _parse(self) -> None:
        head = wire.FRAME.size
        while len(self._incoming) >= head and self.problem is None:
            kind, size = wire.FRAME.unpack_from(self._incoming)
            if size > self.program.limits.result_kb * 1024:
                self._end("output_limit", f"a result of more than {self.program.limits.result_kb} KB")
                return
            if len(self._incoming) < head + size:
                return
            payload = bytes(self._incoming[head : head + size])
            del self._incoming[: head + size]
            self._take(kind, payload)

    def _take(self, kind: int, payload: bytes) -> None:
        if not self.ready:
            if kind == wire.READY:
                self.ready = True
            else:
                self.setup_error = printable(payload)
        elif kind == wire.LOADED and self.mode == wire.CALLS and not self.loaded:
            self.loaded = True
            self._wait_began()
            if self.on_frame is not None:
                self.on_frame(kind, payload)
        elif kind in (wire.VALUE, wire.RAISED) and self.loaded and self._asked:
            self._asked -= 1
            self._wait_began()
            if self.on_frame is not None:
                self.on_frame(kind, payload)
            elif kind == wire.VALUE:
                self.results.append(payload)
                self._next_call()
            else:
                self.raised = _exception_line(payload)
                self._say_no_more()
        elif kind == wire.CALL and self.mode == wire.TESTS and self.on_frame is not None:
            self._wait_began()
            self.on_frame(kind, payload)
        elif kind == wire.DONE_TESTING and self.mode == wire.TESTS and not payload:
            self.tested = True
        else:
            self._end("violation", "wrote to the channel of results")

    def _wait_began(self) -> None:
        """Note that it has nothing to do until we answer, unless more is on its way already."""
        if not self._asked and not self._last_asked:
            self.heard = time.monotonic()

    def ask(self, request: bytes) -> None:
        """Ask for a function to be called: ``request`` is the JSON of a call."""
        self._asked += 1
        self.tell(wire.CALL, request)

    def tell(self, kind: int, payload: bytes) -> None:
        self._outgoing += wire.frame(kind, payload)
        self.write()

    def _next_call(self) -> None:
        """Ask for the result that comes next. One call after the other: what the later ones are asked is nobody's business yet."""
        if len(self.results) < len(self.program.calls):
            call = self.program.calls[len(self.results)]
            self._last_asked = len(self.results) == len(self.program.calls) - 1
            self.ask(b'{"function":' + json.dumps(call.function).encode() + b',"args":' + call.args + b"}")

    def _say_no_more(self) -> None:
        try:
            self.channel.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def _end(self, status: str, detail: str) -> None:
        if self.problem is None:
            self.problem = (status, detail)

    @property
    def unsent(self) -> bool:
        return bool(self._outgoing)

    @property
    def needs_nobody(self) -> bool:
        """Return True if it has all it will ever be told, until it ends or writes more than fits into pipes."""
        return not self._outgoing and (self.mode == wire.STDIO or self._last_asked)

    def close(self) -> None:
        self.channel.close()
        self._theirs.close()
        for descriptor in (self.out.descriptor, self.err.descriptor, self._their_out, self._their_err):
            if descriptor >= 0:
                os.close(descriptor)
        self.out.descriptor = self.err.descriptor = self._their_out = self._their_err = -1


def _exception_line(payload: bytes) -> str:
    try:
        kind, message = json.loads(payload)
        return printable(f"{kind}: {message}")
    except (ValueError, TypeError, RecursionError):
        return "raised something unreadable"
