"""Twenty attempts to get out, and how fast programs run: what ``fugu sandbox`` tries on a machine. The full list is in the tests.

An attempt that succeeds says ESCAPED. None does harm where it does succeed.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fugu.coding.sandbox.contract import Limits, Outcome, Program
from fugu.coding.sandbox.protections import gaps
from fugu.coding.sandbox.sandbox import Sandbox

QUICK = Limits(cpu_s=0.5, wall_s=1.5, memory_mb=128)


@dataclass(frozen=True)
class Attempt:
    what: str
    protection: str
    """which should stop it; without one, it is a limit that every backend keeps"""
    code: str
    statuses: tuple[str, ...] = ("ok", "runtime_error", "violation")


@dataclass(frozen=True)
class Result:
    attempt: Attempt
    contained: bool | None
    """None: this backend does not offer the protection"""
    found: str


STOPPED = ("time_limit",)
CALL = "import ctypes\nlibc = ctypes.CDLL(None)\nif {} == 0: print('ESCAPED')"
ATTEMPTS = (
    Attempt("read a file of this machine", "files", "print('ESCAPED', open('@SECRET@').read())"),
    Attempt("write into a folder of this machine", "writes", "open('@FOLDER@/planted', 'w')\nprint('ESCAPED')"),
    Attempt("find an environment variable", "", "import os\nprint('ESCAPED' if 'FUGU_SMOKE' in os.environ else '')"),
    Attempt("use an open descriptor", "", "import os\nprint('ESCAPED', os.read(@DESCRIPTOR@, 9))"),
    Attempt(
        "connect to a port", "network", "import socket\nsocket.create_connection(('127.0.0.1', @PORT@), 0.3)\nprint('ESCAPED')"
    ),
    Attempt("make a socket", "network", "import socket\nsocket.socket(socket.AF_UNIX)\nprint('ESCAPED')"),
    Attempt("start a process", "kernel", "import os\nif os.fork() == 0:\n    os._exit(0)\nprint('ESCAPED')"),
    Attempt("run another program", "kernel", "import os\nos.execv('/bin/echo', ['echo', 'ESCAPED'])"),
    Attempt("signal this process", "others", "import os\nos.kill(@PID@, 0)\nprint('ESCAPED')"),
    Attempt("read this process's memory", "others", "open('/proc/@PID@/mem', 'rb')\nprint('ESCAPED')"),
    Attempt("mount", "kernel", CALL.format("libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)")),
    Attempt("make a namespace", "kernel", CALL.format("libc.unshare(0x10000000)")),
    Attempt("become root", "privileges", "import os\nif os.getuid() != 0:\n    os.setuid(0)\n    print('ESCAPED')"),
    Attempt("take all memory", "", "x = []\nwhile True:\n    x.append(bytearray(1 << 24))", ("memory_limit",)),
    Attempt("compute for ever", "", "while True:\n    pass", STOPPED),
    Attempt("sleep for ever", "", "import time\ntime.sleep(99)", STOPPED),
    Attempt("write without end", "", "while True:\n    print('x' * 1000)", ("output_limit",)),
    Attempt("write a large file", "disk", "f = open('x', 'wb')\nfor _ in range(64): f.write(bytes(1 << 20))\nprint('ESCAPED')"),
    Attempt("make many files", "inodes", "for i in range(5000): open(str(i), 'w').close()\nprint('ESCAPED')"),
    Attempt("find what an earlier run left", "disk", "import os\nprint('ESCAPED' if os.path.exists('fugu-left') else '')"),
)
LEAVE = "open('fugu-left', 'w').close()"


def attempts(sandbox: Sandbox, names: dict[str, str]) -> Iterator[Result]:
    """Make all attempts. ``names`` are those of the ``surroundings`` in which ``sandbox`` was opened, so that something could leak."""
    missing = gaps(sandbox.backend)
    sandbox.run([_program(LEAVE, names)])
    tried = [attempt for attempt in ATTEMPTS if attempt.protection not in missing]
    outcomes = iter(sandbox.run([_program(attempt.code, names) for attempt in tried]))
    for attempt in ATTEMPTS:
        if attempt.protection in missing:
            yield Result(attempt, None, f"not offered: {missing[attempt.protection]}")
        else:
            yield _judged(attempt, next(outcomes))


def _judged(attempt: Attempt, outcome: Outcome) -> Result:
    escaped = b"ESCAPED" in outcome.stdout
    found = "it succeeded" if escaped else f"{outcome.status} {outcome.detail}".strip()
    return Result(attempt, not escaped and outcome.status in attempt.statuses, found)


def _program(code: str, names: dict[str, str]) -> Program:
    for name, value in names.items():
        code = code.replace(f"@{name}@", value)
    return Program(source=code.encode(), limits=QUICK)


@contextmanager
def surroundings() -> Iterator[dict[str, str]]:
    """Provide something to find: a file, a folder anyone may write to, a port, an open descriptor, a variable of the environment."""
    with tempfile.TemporaryDirectory(prefix="fugu-smoke-") as folder, socket.create_server(("127.0.0.1", 0)) as server:
        os.chmod(folder, 0o777)
        secret = os.path.join(folder, "secret")
        with open(secret, "w") as file:
            file.write("secret")
        descriptor = os.open(secret, os.O_RDONLY)
        os.set_inheritable(descriptor, True)
        os.environ["FUGU_SMOKE"] = "secret"
        try:
            yield {
                "SECRET": secret,
                "FOLDER": folder,
                "PORT": str(server.getsockname()[1]),
                "DESCRIPTOR": str(descriptor),
                "PID": str(os.getpid()),
            }
        finally:
            del os.environ["FUGU_SMOKE"]
            os.close(descriptor)


def executions_per_second(sandbox: Sandbox, seconds: float) -> float:
    """Measure a program that does next to nothing, as many at once as there are places."""
    program = Program(source=b"print(int(input()) + 1)", stdin=b"1")
    sandbox.run([program] * 4)
    submitted = done = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or done < submitted:
        while sandbox.backend.room > 0 and time.perf_counter() - start < seconds:
            sandbox.submit(program)
            submitted += 1
        done += len(sandbox.collect(1.0))
    return done / (time.perf_counter() - start)
