"""A hostile program as data: its source, what it may end as, what must not be seen, and the protection it tries.

``number`` is the case's place in the list of isolation and abuse tests; several variants share a number. Programs that try something
say ``denied WHAT`` or ``ESCAPED WHAT``: the second, anywhere in what a program wrote, fails the case. ``needs`` names the
protection; a backend that declares it missing reports the case as not provided.

Names in ``@`` signs in a source are filled in by ``world.py`` (paths, ports and process numbers of the harness).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

# what every program here can call: try something, and say how it went
TRY = """
import os, sys

def attempt(what, action):
    try:
        got = action()
    except BaseException as error:
        print("denied", what, type(error).__name__, str(error)[:80].encode("ascii", "replace").decode(), flush=True)
    else:
        print("ESCAPED", what, ascii(got)[:200], flush=True)
"""

# system calls by number: only a refusal counts. EFAULT or EINVAL would say that the kernel looked at the arguments
CALL = (
    TRY
    + """
import ctypes, errno

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
REFUSED = (errno.EPERM, errno.EACCES, errno.ENOSYS)

def refused(what, number, *arguments):
    ctypes.set_errno(0)
    got = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    problem = ctypes.get_errno()
    if got == -1 and problem in REFUSED:
        print("denied", what, errno.errorcode[problem], flush=True)
    else:
        print("ESCAPED", what, got, errno.errorcode.get(problem, problem), flush=True)
"""
)

QUICK = {"cpu_s": 0.4, "wall_s": 0.6}
"""limits of programs that are expected to run into them"""

RAN = ("ok",)
STOPPED = ("time_limit",)
FAILED = ("runtime_error",)
BOUNDED = ("ok", "runtime_error", "time_limit", "memory_limit", "output_limit", "violation")
"""any ending that is the program's own doing; never internal_error"""
TRIED = ("ok", "violation")
"""the program was told no, or was killed for asking"""


@dataclass(frozen=True, kw_only=True)
class Case:
    number: int
    name: str
    source: str | bytes
    statuses: tuple[str, ...] = TRIED
    needs: str = ""
    stdin: bytes = b""
    calls: tuple[tuple[str, str], ...] = ()
    """function and its arguments as a JSON list"""
    results: tuple[bytes, ...] | None = None
    """exactly these, where given"""
    partner: str | None = None
    stdout: bytes | None = None
    """exactly this, where given"""
    detail: str = ""
    """must be in the outcome's detail"""
    absent: tuple[str, ...] = ("ESCAPED",)
    """must not be in stdout, stderr, detail or results; may hold names in @ signs"""
    limits: dict[str, float] = field(default_factory=dict)
    profile: str = "compute"
    processes: bool = False
    """starts processes: only for backends that bound them"""
    fewer_results: bool = False
    """not all calls may be answered"""

    @property
    def id(self) -> str:
        return f"{self.number:02d}-{self.name}"


def each(number: int, sources: dict[str, str], **more: object) -> Iterator[Case]:
    """One case per entry of ``sources``."""
    for name, source in sources.items():
        yield Case(number=number, name=name, source=source, **more)  # type: ignore[arg-type]
