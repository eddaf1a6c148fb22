"""Run inside a box of the backends that start a process per program (``spawn``): a small parent, and the program as its child.

It is sent as text (``python -c``) together with ``values``, so it needs nothing of fugu in the box, only the standard library. It
speaks over its own standard streams, since a container has no others: frames of ``<IB`` (length, kind) and the payload.

Comes in:  H header (JSON), S source, I standard input, then C calls one at a time (JSON) and E when there are no more,
           or R replies (JSON) to the questions of test code.
Goes out:  b about to begin, o standard output, e standard error, r a result, q a question of test code, x how it ended (JSON).

The program could write such frames itself if it took over this process. All of them are claims about the program's own doing, and are
treated as such; that it ended in time is seen from outside.
"""

import atexit
import contextlib
import ctypes
import json
import os
import random
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable

from fugu.coding.sandbox.standins import Agent, Examiner
from fugu.coding.sandbox.values import decode, encode

HEAD = struct.Struct("<IB")
OUT_OF_MEMORY = 77
"""exit code of a program that ended with MemoryError"""


def main() -> int:
    header, source, stdin = json.loads(read_frame(0)[1]), read_frame(0)[1], read_frame(0)[1]
    # the program's ends come second
    streams = [os.pipe()[::-1], os.pipe(), os.pipe()]
    ready, done = os.pipe()
    channel, theirs = socket.socketpair() if header["channel"] else (None, None)
    child = os.fork()
    if child == 0:
        descriptors = [os.dup(end) for _, end in streams] + ([os.dup(theirs.fileno())] if theirs is not None else [])
        enter(header)
        os.write(done, b"1")
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        os.closerange(len(descriptors), 1024)
        return run(header, source)
    harden()
    os.close(done)
    for _, end in streams:
        os.close(end)
    if theirs is not None:
        theirs.close()
    if not os.read(ready, 1):
        return 1  # its limits could not be set, so it has not run
    write_frame(1, b"b", b"")
    ending = Watch(header, stdin, child, [end for end, _ in streams], channel).until_it_ends()
    write_frame(1, b"x", json.dumps(ending).encode())
    return 0


class Watch:
    """The parent's part: carries bytes both ways, and ends the program when it has had enough."""

    def __init__(self, header: dict, stdin: bytes, child: int, ends: list, channel: "socket.socket | None") -> None:
        self.header, self.stdin, self.child, self.channel = header, stdin, child, channel
        self.input, self.outputs = ends[0], {ends[1]: b"o", ends[2]: b"e"}
        self.flood = header["flood"]
        self.begun = time.monotonic()
        self.verdict = ""
        self.to_child, self.from_child = b"", b""
        for fd in ends:
            os.set_blocking(fd, False)
        if channel is not None:
            channel.setblocking(False)

    def until_it_ends(self) -> dict:
        ended = 0
        while not ended:
            ended, status, usage = os.wait4(self.child, os.WNOHANG)
            if not ended:
                self.carry(self.patience())
        while self.outputs and self.carry(
            0.0, only_out=True
        ):  # what it left in the pipes; descendants may hold them open for ever
            pass
        end_the_rest(self.header["alone"])
        return {
            "exit_code": os.waitstatus_to_exitcode(status),
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "wall_s": time.monotonic() - self.begun,
            "max_rss_mb": usage.ru_maxrss / 1024,
            "verdict": self.verdict,
        }

    def patience(self) -> float:
        """Return the seconds until there is something to check; past the limits, kill the program."""
        wall = self.header["wall_s"] - (time.monotonic() - self.begun)
        try:
            cpu = self.header["cpu_s"] - time.clock_gettime((~self.child << 3) | 2)  # its CPU clock, see clock_getcpuclockid(3)
        except OSError:
            cpu = wall
        if min(wall, cpu) <= 0:
            self.kill("time_limit")
            return 0.01
        return min(wall, max(cpu, 0.01), 0.02 if not self.outputs else 0.05)

    def kill(self, verdict: str) -> None:
        self.verdict = self.verdict or verdict
        os.kill(self.child, signal.SIGKILL)

    def carry(self, timeout: float, only_out: bool = False) -> bool:
        reads = list(self.outputs)
        writes = []
        if not only_out:
            if self.channel is not None:
                reads += [0] if not self.to_child else []
                reads.append(self.channel.fileno())
                writes += [self.channel.fileno()] if self.to_child else []
            writes += [self.input] if self.input >= 0 else []
        readable, writable, _ = select.select(reads, writes, [], timeout)
        for fd in readable:
            if fd in self.outputs:
                self.output(fd)
            elif fd == 0:
                self.from_harness()
            else:
                self.from_program()
        for fd in writable:
            self.feed(fd)
        return bool(readable)

    def output(self, fd: int) -> None:
        try:
            data = os.read(fd, 65536)
        except OSError:
            data = b""
        if not data:
            os.close(fd)
            del self.outputs[fd]
            return
        self.flood -= len(data)
        if self.flood < 0 and not self.verdict:
            self.kill("output_limit")
        elif self.flood >= 0:
            write_frame(1, self.outputs[fd], data)

    def from_harness(self) -> None:
        kind, payload = read_frame(0)
        if not kind:  # the harness is gone
            self.kill("internal_error")
        elif kind in b"CR":
            self.to_child += HEAD.pack(len(payload), kind[0]) + payload
        else:
            self.to_child += HEAD.pack(0, kind[0])

    def from_program(self) -> None:
        assert self.channel is not None
        try:
            data = self.channel.recv(65536)
        except OSError:
            data = b""
        if not data:
            self.channel.close()
            self.channel = None
            return
        self.from_child += data
        while len(self.from_child) >= HEAD.size:
            length, kind = HEAD.unpack_from(self.from_child)
            if length > self.header["result"] or kind not in b"rq":
                self.kill("output_limit" if kind in b"rq" else "violation")
                self.from_child = b""
            elif len(self.from_child) < HEAD.size + length:
                break
            else:
                write_frame(1, bytes([kind]), self.from_child[HEAD.size : HEAD.size + length])
                self.from_child = self.from_child[HEAD.size + length :]

    def feed(self, fd: int) -> None:
        try:
            if fd == self.input:
                self.stdin = self.stdin[os.write(fd, self.stdin[:65536]) :]
            elif self.channel is not None:
                self.to_child = self.to_child[self.channel.send(self.to_child[:65536]) :]
        except OSError:
            self.stdin = self.to_child = b""
        if not self.stdin and fd == self.input:
            os.close(self.input)
            self.input = -1


def harden() -> None:
    """Keep the program out of this process's memory and descriptors, where the kernel can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE


def end_the_rest(alone: bool) -> None:
    """End everyone in sight: in a pid namespace of its own this process is alone with what the program left."""
    if alone and os.getpid() <= 2:  # 2 under bwrap's own process; anything else would be a mistake with everyone's processes
        with contextlib.suppress(OSError):
            os.kill(-1, signal.SIGKILL)


def run(header: dict, source: bytes) -> int:
    """Run the child's part: the program and its calls. Returns only by ending the process."""
    code = 1
    try:
        code = execute(header, source)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            os.write(2, error.code.encode("utf-8", "replace") + b"\n")
    except MemoryError:
        code = OUT_OF_MEMORY
        os.write(2, b"MemoryError\n")
    except BaseException as error:
        report(error)
    finish()
    os._exit(code & 0xFF)


def enter(header: dict) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: ends with the parent
    os.environ.clear()
    if header["cwd"]:
        os.chdir(header["cwd"])
    for name, amount in header["rlimits"].items():
        which = getattr(resource, "RLIMIT_" + name, None)
        if which is not None:
            hard = resource.getrlimit(which)[1]
            amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
            resource.setrlimit(which, (amount, amount))
    random.seed(header["seed"])
    if header["filter"]:
        install_filter(bytes.fromhex(header["filter"]))


def install_filter(code: bytes) -> None:
    """Limit, for good, the system calls it may make: see ``seccomp``."""
    libc = ctypes.CDLL(None)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer)))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
        raise OSError("the filter of system calls cannot be set")


def execute(header: dict, source: bytes) -> int:
    import types

    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["program"]
    place = module.__dict__
    if header["candidates"]:
        tests = Examiner(ask)
        for name in header["candidates"]:
            place[name] = tests.named(name)
        place["candidate"] = place[header["candidates"][0]]
    exec(compile(source, "<program>", "exec", dont_inherit=True), place)
    agent = Agent(reply, lambda name: find(place, name), report)
    while header["calls"]:
        kind, payload = read_frame(3)
        if kind != b"C":
            break
        if payload.startswith(b'{"ask"'):
            write_frame(3, b"r", agent.serve(payload))
            continue
        function, args = json.loads(payload)
        write_frame(3, b"r", encode(find(place, function)(*decode(args.encode()))))
    return 0


def find(place: dict, name: str) -> "Callable[..., object]":
    if not callable(place.get(name)):
        raise NameError(f"the program has no function {name!r}")
    found: Callable[..., object] = place[name]
    return found


def ask(question: bytes) -> bytes:
    """Send a question of test code and wait for the answer."""
    write_frame(3, b"q", question)
    kind, payload = read_frame(3)
    answer = json.loads(payload) if kind == b"R" else {}
    if "value" not in answer:
        raise RuntimeError(f"the program did not answer: {answer.get('detail')}")
    return answer["value"].encode()


def reply(message: bytes) -> bytes:
    """Send test code a question of the program's own in place of an answer, and wait for what it says."""
    write_frame(3, b"r", message)
    kind, payload = read_frame(3)
    if kind != b"C":
        raise RuntimeError("the test code has ended")
    return payload


def report(error: BaseException) -> None:
    """Print the traceback from the program's first line on, as an interpreter would."""
    place = error.__traceback__
    while place is not None and place.tb_frame.f_code.co_filename != "<program>":
        place = place.tb_next
    error.__traceback__ = place
    try:
        text = (
            "".join(traceback.format_exception(error))
            if not isinstance(error, RecursionError)
            else "RecursionError: too deep\n"
        )
    except BaseException:
        text = "an exception that cannot be shown\n"
    with contextlib.suppress(BaseException):
        os.write(2, text[-30000:].encode("utf-8", "backslashreplace"))


def finish() -> None:
    """Do what an interpreter does when its program ends."""
    for step in (getattr(threading, "_shutdown", None), getattr(atexit, "_run_exitfuncs", None)):
        try:
            if step is not None:
                step()
        except BaseException as error:
            report(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()


def read_frame(fd: int) -> "tuple[bytes, bytes]":
    """Read (kind, payload), or two empty ones at the end of the stream."""
    head = read_exactly(fd, HEAD.size)
    if len(head) < HEAD.size:
        return b"", b""
    length, kind = HEAD.unpack(head)
    return bytes([kind]), read_exactly(fd, length)


def read_exactly(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(fd, min(size - len(data), 1 << 20))
        if not more:
            break
        data += more
    return data


def write_frame(fd: int, kind: bytes, payload: bytes) -> None:
    data = HEAD.pack(len(payload), kind[0]) + payload
    while data:
        data = data[os.write(fd, data) :]


if __name__ == "__main__":
    sys.exit(main())
