"""Define what goes into a sandbox and what comes out: ``Program`` -> ``Outcome``, and what a ``Backend`` has to offer.

Everything in an ``Outcome`` that the program could have written (stdout, stderr, results, and the wording of ``detail``) is untrusted
data. Status, exit code, signal and times come from the kernel and from our own code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args, runtime_checkable

from fugu.errors import ConfigError

Status = Literal[
    "ok", "wrong_answer", "runtime_error", "time_limit", "memory_limit", "output_limit", "violation", "internal_error"
]
"""``wrong_answer`` is given by the judge only. ``internal_error`` is ours, never the program's: it must not become a reward."""

STATUSES: tuple[Status, ...] = get_args(Status)

Profile = Literal["compute", "program"]
"""``compute``: no new processes, threads allowed. ``program``: processes too, within ``Limits.processes``."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one execution."""

    cpu_s: float = 2.0
    """seconds of CPU time, of all its processes together"""
    wall_s: float = 5.0
    """seconds by the clock, from when its process starts"""
    memory_mb: int = 512
    """address space of a process; in profile=program also the memory of all its processes together"""
    processes: int = 1
    """processes and threads at once in profile=program; profile=compute has no processes and up to 16 threads"""
    open_files: int = 32
    """descriptors of a process"""
    file_mb: int = 4
    """size of a file it writes"""
    disk_mb: int = 16
    """all its files together; they are in memory and gone after the run"""
    output_kb: int = 64
    """of stdout and of stderr, what is kept"""
    flood_kb: int = 1024
    """of stdout and stderr together, what is too much: the program is killed"""
    result_kb: int = 1024
    """of one result"""
    source_kb: int = 256
    """of the source"""
    stdin_kb: int = 4096
    """of the standard input, and of the arguments of one call"""

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            if not getattr(self, each.name) > 0:
                raise ConfigError(f"limits.{each.name}={getattr(self, each.name)} must be above 0")
        if self.wall_s < self.cpu_s:
            raise ConfigError(f"limits.wall_s={self.wall_s} must be at least cpu_s={self.cpu_s}: CPU time passes no faster")


@dataclass(frozen=True)
class Call:
    """One call of a function that the program defines."""

    function: str
    args: bytes = b"[]"
    """a JSON list, see ``values.encode``"""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program to run, with its input and its calls.

    Without calls, ``source`` runs as ``__main__`` with ``stdin``. With calls it is executed first, then its functions are called one
    after the other; the arguments of a call arrive when the one before has been answered.

    With a ``partner``, ``source`` is trusted test code and the partner is the agent's program, each in a sandbox of its own. In the
    test code ``candidate(...)`` calls the function that ``partner.calls[0]`` names; every function that ``partner.calls`` names can
    also be called by its own name (arguments in ``partner.calls`` are not used). Only JSON passes between the two; containers that have
    passed are kept alike on both sides, and what is no data has stand-ins (``standins``).
    """

    source: bytes
    stdin: bytes = b""
    calls: tuple[Call, ...] = ()
    partner: Program | None = None
    limits: Limits = field(default_factory=Limits)
    seed: int = 0
    """``random`` starts from it"""
    profile: Profile = "compute"

    def __post_init__(self) -> None:
        for name in ("source", "stdin"):
            if not isinstance(getattr(self, name), bytes):
                raise TypeError(f"Program.{name} must be bytes, got {type(getattr(self, name)).__name__}; use .encode()")
        if self.profile not in get_args(Profile):
            raise ConfigError(f"profile={self.profile!r} must be one of {', '.join(get_args(Profile))}")
        if self.partner is not None:
            if self.calls or self.partner.partner is not None:
                raise ConfigError("a program with a partner has no calls of its own, and its partner has no partner")
            if not self.partner.calls:
                raise ConfigError("partner.calls must name the functions that the test code may call, e.g. (Call('solve'),)")

    def too_large(self) -> str | None:
        """Return what of it exceeds its limits, or None."""
        sizes = [("source", len(self.source), self.limits.source_kb), ("stdin", len(self.stdin), self.limits.stdin_kb)]
        sizes += [("arguments", len(call.args), self.limits.stdin_kb) for call in self.calls]
        for what, size, most in sizes:
            if size > most * 1024:
                return f"{what} of {size} bytes, limit {most} KB"
        return None if self.partner is None else self.partner.too_large()


@dataclass(frozen=True)
class Isolation:
    """The degree to which a program was kept apart: 3 namespaces, 2 Landlock, 1 seccomp, 0 nothing but limits."""

    level: int
    missing: tuple[str, ...] = ()
    """names of what this machine or backend does not offer"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a program."""

    status: Status
    detail: str = ""
    """one short line, safe to print"""
    stdout: bytes = b""
    stderr: bytes = b""
    truncated: bool = False
    """stdout or stderr was longer than what is kept"""
    results: tuple[bytes, ...] = ()
    """untrusted JSON, one per call that was answered; ``values.decode`` reads it"""
    exit_code: int | None = None
    signal: int | None = None
    cpu_s: float = 0.0
    wall_s: float = 0.0
    max_rss_mb: float = 0.0
    isolation: Isolation = Isolation(0)
    backend: str = ""
    attempt: int = 1


@runtime_checkable
class Backend(Protocol):
    """Runs programs. Nothing here blocks except ``collect`` for as long as it is told to, and ``close`` for some seconds at most."""

    name: str
    isolation: Isolation

    @property
    def room(self) -> int:
        """Return how many more programs ``submit`` takes now."""
        ...

    def submit(self, ticket: int, program: Program) -> None:
        """Set ``program`` going. The ticket comes back with its outcome, exactly once."""
        ...

    def collect(self, timeout: float | None) -> list[tuple[int, Outcome]]:
        """Return what has finished. If nothing has and something is running, wait up to ``timeout`` seconds (None: for ever)."""
        ...

    def fileno(self) -> int:
        """Return a descriptor that is readable when ``collect(0)`` may have something to do."""
        ...

    def alive(self) -> bool:
        """Return True if it can run programs. Never raises."""
        ...

    def close(self) -> None:
        """End everything it started; may be called again."""
        ...


def printable(text: bytes | str, most: int = 200) -> str:
    """Return one line of at most ``most`` characters that no terminal, log or format string takes for anything but text."""
    if isinstance(text, bytes):
        text = text[: 4 * most].decode("utf-8", "replace")
    return "".join(_shown(text[:most])) + ("..." if len(text) > most else "")


def _shown(text: str) -> Iterable[str]:
    for letter in text:
        yield letter if letter.isprintable() else letter.encode("unicode_escape").decode()
