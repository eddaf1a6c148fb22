"""A coding task: what is asked for, and the tests that say whether an answer is right. Read from and written to JSONL.

Tests come in three styles, the safest first: ``StdioTest`` (what a program prints for an input), ``CallTest`` (what a function
returns for arguments) and ``AssertTest`` (test code that calls ``candidate``). Expected values never enter the process that runs the
agent's code. ``visible`` tests may be shown to the agent, ``hidden`` ones decide.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from fugu.coding.compare import Match, Types
from fugu.coding.sandbox.contract import Limits
from fugu.coding.sandbox.values import from_plain, to_plain
from fugu.errors import FuguError, did_you_mean

LONGEST = 1 << 28
"""bytes of a line in a file of tasks"""


class TaskError(FuguError, ValueError):
    """A task, or a file of tasks, is not what it should be."""


@dataclass(frozen=True, kw_only=True)
class StdioTest:
    """The program reads ``stdin`` and must print ``stdout``."""

    stdin: str
    stdout: str
    match: Match = "lines"
    tolerance: float = 1e-6
    """absolute and relative, with match="numbers\""""


@dataclass(frozen=True, kw_only=True)
class CallTest:
    """``function(*args)`` must return ``expected``. Values are those of JSON, and tuple, set, frozenset, bytes and complex."""

    function: str
    args: tuple[Any, ...]
    expected: Any
    alternatives: tuple[Any, ...] = ()
    """other results that are right as well"""
    types: Types = "strict"
    tolerance: float = 0.0
    """absolute and relative, of floats; 0: exactly equal"""


@dataclass(frozen=True, kw_only=True)
class AssertTest:
    """Python that calls ``candidate(...)``, or the entry point by its name, and raises where the answer is wrong."""

    code: str


Test = StdioTest | CallTest | AssertTest
_STYLES: dict[str, type] = {"stdio": StdioTest, "call": CallTest, "assert": AssertTest}


@dataclass(frozen=True, kw_only=True)
class Task:
    id: str
    prompt: str
    entry_point: str = ""
    """name of the function to write; empty: a program that reads and prints"""
    visible: tuple[Test, ...] = ()
    hidden: tuple[Test, ...] = ()
    before: str = ""
    """source that a completion goes on from, such as the head of a function"""
    after: str = ""
    """source that comes after it"""
    limits: Limits = field(default_factory=Limits)
    solution: str = ""
    """a completion that is right; never shown to the agent"""

    def __post_init__(self) -> None:
        for name in ("visible", "hidden"):
            for k, test in enumerate(getattr(self, name)):
                if isinstance(test, AssertTest) and not self.entry_point:
                    raise TaskError(f"task {self.id!r}: {name} test {k} calls a candidate, but entry_point is empty")
        if self.entry_point and not self.entry_point.isidentifier():
            raise TaskError(f"task {self.id!r}: entry_point {self.entry_point!r} is no name of a function")

    def source(self, completion: str) -> str:
        """Return the program that a completion makes."""
        return self.before + completion + self.after

    def tests(self, which: Literal["visible", "hidden", "all"] = "hidden") -> tuple[Test, ...]:
        return {"visible": self.visible, "hidden": self.hidden, "all": self.visible + self.hidden}[which]


def to_json(task: Task) -> dict[str, Any]:
    """Return the task as one line of a file holds it. What stands at its default is left out."""
    out: dict[str, Any] = {"id": task.id, "prompt": task.prompt}
    for name in ("entry_point", "before", "after", "solution"):
        if getattr(task, name):
            out[name] = getattr(task, name)
    limits = {f.name: getattr(task.limits, f.name) for f in dataclasses.fields(Limits)}
    changed = {name: value for name, value in limits.items() if value != getattr(Limits(), name)}
    if changed:
        out["limits"] = changed
    for name in ("visible", "hidden"):
        if getattr(task, name):
            out[name] = [_test_to_json(test) for test in getattr(task, name)]
    return out


def from_json(data: Any) -> Task:
    """Return a task, or raise a TaskError that names the field."""
    fields = _fields(data, {f.name for f in dataclasses.fields(Task)}, "a task")
    for name in ("id", "prompt"):
        if name not in fields:
            raise TaskError(f"a task needs the field {name!r}")
    for name in ("id", "prompt", "entry_point", "before", "after", "solution"):
        if not isinstance(fields.get(name, ""), str):
            raise TaskError(f"{name} must be text, not {short(fields[name])}")
    if "limits" in fields:
        limits = _fields(fields["limits"], {f.name for f in dataclasses.fields(Limits)}, "limits")
        try:
            fields["limits"] = Limits(**limits)
        except (TypeError, ValueError) as error:
            raise TaskError(f"limits: {error}") from None
    for name in ("visible", "hidden"):
        tests = fields.get(name, [])
        if not isinstance(tests, list):
            raise TaskError(f"{name} must be a list of tests, not {short(tests)}")
        fields[name] = tuple(_test_from_json(test, f"{name} test {k}") for k, test in enumerate(tests))
    return Task(**fields)


def read_tasks(path: str | os.PathLike[str]) -> list[Task]:
    """Read the tasks of a JSONL file in the format of ``write_tasks``; errors name the file and the line."""
    tasks: dict[str, Task] = {}
    for line, data in read_lines(path):
        try:
            task = from_json(data)
        except TaskError as error:
            raise TaskError(f"{path}, line {line}: {error}") from None
        if task.id in tasks:
            raise TaskError(f"{path}, line {line}: a second task with the id {task.id!r}")
        tasks[task.id] = task
    return list(tasks.values())


def write_tasks(path: str | os.PathLike[str], tasks: Iterable[Task]) -> None:
    lines = [json.dumps(to_json(task), ensure_ascii=False, allow_nan=True) for task in tasks]
    Path(path).write_text("".join(line + "\n" for line in lines), encoding="utf-8", errors="surrogatepass")


def read_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, Any]]:
    """Yield ``(number, value)`` of every line of a JSONL file that is not empty; also gzipped (``.gz``)."""
    import gzip

    try:
        with gzip.open(path, "rb") if str(path).endswith(".gz") else open(path, "rb") as file:
            for number, raw in enumerate(iter(lambda: file.readline(LONGEST), b""), 1):
                if len(raw) == LONGEST:
                    raise TaskError(f"{path}, line {number}: it is longer than {LONGEST >> 20} MiB")
                if not raw.strip():
                    continue
                try:
                    yield number, json.loads(raw.decode("utf-8", "surrogatepass"))
                except (ValueError, RecursionError) as error:
                    raise TaskError(f"{path}, line {number}: not JSON: {error}") from None
    except (OSError, EOFError) as error:
        raise TaskError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def plain(value: Any) -> Any:
    """Return ``value`` as JSON holds it, other types tagged (see ``sandbox.values``)."""
    try:
        return to_plain(value)
    except ValueError as error:
        raise TaskError(f"{short(value)}: {error}") from None


def _test_to_json(test: Test) -> dict[str, Any]:
    out: dict[str, Any] = {"style": next(name for name, kind in _STYLES.items() if isinstance(test, kind))}
    for f in dataclasses.fields(test):
        value = getattr(test, f.name)
        if f.default is dataclasses.MISSING or value != f.default:
            out[f.name] = value
    if isinstance(test, CallTest):
        out |= {"args": plain(list(test.args)), "expected": plain(test.expected)}
        if test.alternatives:
            out["alternatives"] = plain(list(test.alternatives))
    return out


def _test_from_json(data: Any, place: str) -> Test:
    if not isinstance(data, dict) or data.get("style") not in _STYLES:
        raise TaskError(f"{place}: needs style {' or '.join(map(repr, _STYLES))}, got {short(data)}")
    kind = _STYLES[data["style"]]
    fields = _fields(data, {"style", *(f.name for f in dataclasses.fields(kind))}, place)
    del fields["style"]
    for f in dataclasses.fields(kind):
        if f.name not in fields and f.default is dataclasses.MISSING:
            raise TaskError(f"{place}: the field {f.name!r} is missing")
    for name in ("stdin", "stdout", "function", "code"):
        if not isinstance(fields.get(name, ""), str):
            raise TaskError(f"{place}: {name} must be text, not {short(fields[name])}")
    if fields.get("match", "lines") not in get_args(Match):
        raise TaskError(f"{place}: match={fields['match']!r}.{did_you_mean(str(fields['match']), get_args(Match))}")
    if not isinstance(fields.get("tolerance", 0.0), int | float) or not 0 <= fields.get("tolerance", 0.0) < 1:
        raise TaskError(f"{place}: tolerance={fields['tolerance']!r} must be at least 0 and less than 1")
    if kind is AssertTest:
        try:
            ast.parse(fields["code"])
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise TaskError(f"{place}: code is not Python: {error}") from None
    if kind is CallTest:
        if fields.get("types", "strict") not in get_args(Types):
            raise TaskError(f"{place}: types={fields['types']!r}.{did_you_mean(str(fields['types']), get_args(Types))}")
        for name in ("args", "alternatives"):
            if not isinstance(fields.get(name, []), list):
                raise TaskError(f"{place}: {name} must be a list, not {short(fields[name])}")
        for name in ("args", "expected", "alternatives"):
            try:
                value = from_plain(fields.get(name, []))
            except ValueError as error:
                raise TaskError(f"{place}: {name}: {error}") from None
            fields[name] = value if name == "expected" else tuple(value)
    return kind(**fields)


def _fields(data: Any, known: set[str], what: str) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise TaskError(f"{what} must be a JSON object, not {short(data)}")
    for name in data:
        if name not in known:
            raise TaskError(f"{what} has no field {name!r}.{did_you_mean(name, known)}")
    return dict(data)


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
