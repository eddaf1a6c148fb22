"""The errors fugu raises. Each message says what was expected, what came, and what to type."""

from __future__ import annotations

import difflib
import linecache
import re
import signal
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

OURS, PYTHONS = f"{Path(__file__).parent}/", f"{Path(traceback.__file__).parent}/"
"""folders of this package and of Python's library"""
_PLACE = re.compile(r'^ *File "(.+)", line (\d+)[^\n]*(?:\n    ([^\n]*))?', re.MULTILINE)


class FuguError(Exception):
    """Parent of every error fugu raises on purpose.

    Code that handles an error reads its fields, never its text, which is made of them for people: ``where`` (the part of a space or
    the column it is about), ``problem`` (what was expected and what came) and ``fix`` (what to do; one that begins with a capital
    stands as a separate sentence). Errors keep all their fields when they are pickled.
    """

    def __init__(self, problem: str = "", *, where: str = "", fix: str = "") -> None:
        self.problem = problem
        self.where = where
        self.fix = fix
        gap = "" if not fix else "\n" if "\n" in problem else ". " if fix[0].isupper() else "; "
        super().__init__(f"{self.complaint}{gap}{fix}")

    @property
    def complaint(self) -> str:
        """The problem and its place: the text without the fix."""
        return f"{self.where}: {self.problem}" if self.where else self.problem

    @property
    def headline(self) -> str:
        """The first line of the complaint, for tables and titles."""
        return self.complaint.partition("\n")[0]

    def add(self, lines: str) -> None:
        """Add lines to the text, for people."""
        self.args = (f"{self.args[0]}\n{lines}",)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)


class SpaceError(FuguError, ValueError):
    """A space cannot be laid out as a row, or a value does not fit the space it was declared with.

    ``agent`` and ``sub_env`` say whose value it was, if an environment has several.
    """

    agent: Any = None
    sub_env: int | None = None

    @property
    def complaint(self) -> str:
        whose = "" if self.sub_env is None else f"sub-env {self.sub_env}: "
        whose += "" if self.agent is None else f"agent {self.agent!r}: "
        return whose + super().complaint

    def of(self, *, agent: Any = None, sub_env: int | None = None) -> SpaceError:
        """Return the same error about the value of one agent or of one environment of several."""
        error = type(self).__new__(type(self))
        error.agent, error.sub_env = agent, sub_env
        error.__init__(self.problem, where=self.where, fix=self.fix)  # type: ignore[misc]
        return error


class ConfigError(FuguError, ValueError):
    """A setting is impossible; raised before any work starts."""


class LoadError(ConfigError, ImportError):
    """A file or module of the user's own raised an error while it was loaded."""

    def __init__(self, what: str, error: BaseException) -> None:
        super().__init__(f"{what} cannot be loaded: {raised(error)}")


class CallOrderError(FuguError, RuntimeError):
    """A method was called in a state in which it has no meaning (``recv`` before ``async_reset``, ...)."""


class GpuError(FuguError, RuntimeError):
    """A GPU, its driver or its compiler is missing or failed."""


class SandboxError(FuguError, RuntimeError):
    """Programs cannot be run as safely as requested, or not at all."""


class NotInstalled(FuguError, ImportError):
    """Something needs a package that is not installed; the message says what to type."""


class MissingExtra(NotInstalled):
    """An optional dependency is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f'{feature} needs an extra: pip install "fugu-rl[{extra}]"')


class EnvError(FuguError, RuntimeError):
    """An environment raised, or returned something that does not fit its spaces.

    Attributes name the place: ``node`` (of a cluster; None: this machine), ``worker`` (None: the calling process), ``envs``
    (indices), ``seeds`` (what each was last seeded with, None if unknown), ``phase`` (``make``, ``reset``, ``step``, ``call``,
    ``close``), ``remote_traceback`` (the env's own traceback as text; ``str`` shows only its places in the user's files). ``cause`` is
    the class of what the environment raised: the nearest one that every process knows, built in or of this module; None where it
    raised nothing.
    """

    def __init__(
        self,
        message: str,
        *,
        worker: int | None = None,
        envs: Sequence[int] = (),
        seeds: Sequence[int | None] = (),
        phase: str = "step",
        remote_traceback: str = "",
        cause: type[BaseException] | None = None,
        node: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.node = node
        self.worker = worker
        self.envs = tuple(envs)
        self.seeds = tuple(seeds)
        self.phase = phase
        self.remote_traceback = remote_traceback
        self.cause = cause
        place = "the calling process" if worker is None else f"worker {worker}"
        if node is not None:
            place = f"node {node}" if worker is None else f"node {node}, {place}"
        text = f"{message}{''.join(places_in(remote_traceback)[-5:])}\n  where: {place}, {_plural('env', self.envs)}, during {phase}"
        if self.seeds:
            text += f"\n  {_plural('seed', self.seeds)}"
        self.args = (text,)

    def caused_by(self, *kinds: type[BaseException]) -> bool:
        """Return whether the environment raised one of ``kinds``, also if in a process of its own."""
        return self.cause is not None and issubclass(self.cause, kinds)

    def fields(self) -> dict[str, object]:
        """Return the arguments this error was made with, as plain values that can travel between processes."""
        names = ("message", "worker", "envs", "seeds", "phase", "remote_traceback", "cause", "node")
        return {name: getattr(self, name) for name in names}


class WorkerDied(EnvError):
    """A worker process ended without being asked to. ``signal`` or ``exitcode`` says how."""

    def __init__(self, message: str, *, signal: int | None = None, exitcode: int | None = None, **place: object) -> None:
        self.signal = signal
        self.exitcode = exitcode
        super().__init__(message, **place)  # type: ignore[arg-type]


class EnvTimeout(EnvError):
    """An environment did not finish within the stated timeout."""


def shared_class(error: BaseException) -> type[BaseException]:
    """Return the nearest class of ``error`` that every process knows, whatever modules it has: built in, or one of these."""
    return next(kind for kind in type(error).__mro__ if kind.__module__ in ("builtins", __name__))


def shown(text: str, *, most: int = 0) -> str:
    """Return ``text`` as it can be printed, whoever it came from: nothing in it steers the terminal, or turns its letters round.
    Line ends stay. Of more than ``most`` characters, if that is given, it is the beginning."""
    if most and len(text) > most:
        text = f"{text[:most]} ... ({len(text) - most} characters more)"
    return text if text.isprintable() else "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)


def shown_line(text: str) -> str:
    """Return the same where there is room for one line: line ends too are shown as what they are."""
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def signal_name(number: int) -> str:
    """Return what a signal is called: ``SIGKILL``, or ``SIGRTMIN+3`` for one that has no name of its own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        low = getattr(signal, "SIGRTMIN", number + 1)
        return f"SIGRTMIN+{number - low}" if low <= number <= signal.SIGRTMAX else f"signal {number}"


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three of the known names that look like ``name``, the best first."""
    return difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.5)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the known names nearest to ``name``, or else the list of known names."""
    names = sorted(known)
    near = nearest(name, names)
    if near:
        return f" Did you mean {' or '.join(repr(n) for n in near)}?"
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return f" Known: {', '.join(names[:12])}{more}." if names else ""


def raised(error: BaseException) -> str:
    """Return ``ZeroDivisionError: division by zero``, and a line for each of the last places in the user's files that it came
    through."""
    words = error.msg if isinstance(error, SyntaxError) else error
    return "".join([f"{type(error).__name__}: {words}", *places(error)[-5:]])


def places(error: BaseException) -> list[str]:
    """Return the places in the user's files that the error came through: file, line and source, outermost first; none of ours, of a
    package or of Python."""
    if isinstance(error, SyntaxError):
        found = [(error.filename, error.lineno, error.text)]
    else:
        frames = traceback.extract_tb(error.__traceback__)
        found = [(frame.filename, frame.lineno, frame.line) for frame in frames]
    return [_place(name, line, text) for name, line, text in found if name is not None and _is_users(name)]


def places_in(text: str) -> list[str]:
    """Return the same from a traceback as text, Python's or faulthandler's. If it names no file of the user's, return the innermost
    place outside of fugu, if any."""
    text = text.rpartition("Current thread")[2]
    found = _PLACE.findall(text)
    if "(most recent call first)" in text:
        found = [place for place in reversed(found) if place[0] != "<string>"]  # what a worker is started with
    own = [place for place in found if _is_users(place[0])]
    own = own or [place for place in found if not place[0].startswith(("<", OURS))][-1:]
    return [_place(name, int(line), source or linecache.getline(name, int(line))) for name, line, source in own]


def whole(error: BaseException) -> str:
    """Return all that is known of an error: its traceback, and the environment's own if that was in another process."""
    text = "".join(traceback.format_exception(error))
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, EnvError) and link.__cause__ is None and link.remote_traceback:
            text += f"\nIn the environment's process:\n\n{link.remote_traceback.rstrip()}\n"
        link = link.__cause__ or link.__context__
    return text


def _place(name: str, line: int | None, source: str | None) -> str:
    return f"\n  {name}, line {line}: {(source or '').strip()}".removesuffix(": ")


def _is_users(name: str) -> bool:
    return not name.startswith(("<frozen", OURS, PYTHONS)) and "-packages" not in name


def _restored(kind: type[FuguError], args: tuple[Any, ...], fields: dict[str, Any]) -> FuguError:
    """Rebuild an error from its pickle, whatever arguments its class takes."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


def _plural(word: str, items: Sequence[object]) -> str:
    """Return ``env 3``, ``envs 3..5`` or ``seeds 1, 7, 9 and 5 more``: short even for thousands of items."""
    if not items:
        return f"no {word}"
    if len(items) == 1:
        return f"{word} {items[0]}"
    numbers = [item for item in items if isinstance(item, int)]
    if len(numbers) == len(items) and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{word}s {numbers[0]}..{numbers[-1]}"
    shown = ", ".join(str(i) for i in items[:8])
    return f"{word}s {shown}" + (f" and {len(items) - 8} more" if len(items) > 8 else "")
