"""Define what is said between the manager (our process), a zygote and its children, byte by byte. No pickle, no sizes taken on trust.

Two conversations. On the *control* socket (SEQPACKET, so that messages keep their borders) manager and zygote speak of executions by
number; what they say has a fixed size and never contains anything an agent wrote. On the *channel* of an execution the manager speaks
with the child itself: source, stdin and arguments go there, so the zygote never sees them and a later child cannot find them in its
memory. Frames that come back are trusted until ``READY``, which a child sends before it runs the first line of the program, and never
after.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

# What a zygote is told to use, as bits. Each was seen to work by ``probe``; one that fails later is an error, never left out.
NAMESPACES, MOUNTS, PROCESS_LIMIT, LANDLOCK, SECCOMP = 1, 2, 4, 8, 16
PLAN = {"namespaces": NAMESPACES, "mounts": MOUNTS, "process_limit": PROCESS_LIMIT, "landlock": LANDLOCK, "seccomp": SECCOMP}

# Manager to zygote.
RUN, KILL, PING = 1, 2, 3
REQUEST = struct.Struct("<BQ dd Q IIQQ Q BBB")
"""kind, execution, cpu_s, wall_s, memory, processes, open files, file bytes, disk bytes, seed, program?, mode, urgent?"""


class Order(NamedTuple):
    """One execution, as numbers, in the order of ``REQUEST``."""

    kind: int
    execution: int
    cpu_s: float
    wall_s: float
    memory: int
    processes: int
    open_files: int
    file_bytes: int
    disk_bytes: int
    seed: int
    program: int
    mode: int
    urgent: int


# What a child does with its source.
STDIO, CALLS, TESTS = 0, 1, 2

# Zygote to manager.
HELLO, FAILED, DONE, PONG = 1, 2, 3, 4
REPORT = struct.Struct("<BQ iB dddd")
"""kind, execution, wait status, why it ended, cpu_s, wall_s, largest memory of the child in MB, and of the zygote"""

# Why an execution ended, as the zygote knows it.
BY_ITSELF, WALL, CPU, TOLD, NOT_STARTED, MEMORY = 0, 1, 2, 3, 4, 5

CHANNEL = 3
"""its descriptor in the child"""

# On the channel. Manager to child: OPENING, stdin, source, names; then CALL frames. Child to manager: frames.
OPENING = struct.Struct("<III")
"""bytes of stdin, of source, and of the names of functions (TESTS), which follow in this order"""
FRAME = struct.Struct("<BI")
"""kind and size of what follows"""
CALL, VALUE, RAISED = 1, 2, 3
READY, SETUP_FAILED, LOADED, DONE_TESTING = 4, 5, 6, 7


def frame(kind: int, payload: bytes = b"") -> bytes:
    return FRAME.pack(kind, len(payload)) + payload


def read_exactly(descriptor: int, size: int) -> bytes:
    """Read ``size`` bytes; EOFError if there are fewer."""
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            raise EOFError("the channel was closed")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
