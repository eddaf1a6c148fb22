"""Hold what a check found: facts, and findings that each name a place, a problem and a fix."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fugu.errors import FuguError

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


class CheckFailed(FuguError):
    """``check_env`` found errors."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or worth knowing."""

    severity: Severity
    """error: fugu or the env cannot work like this; warning: it works, but learning or speed suffers; note: good to know"""
    where: str
    """the leaf or method: ``obs/map``, ``reward``, ``reset()``, ``action_space``"""
    problem: str
    """what was expected and what came"""
    fix: str
    """what to do about it"""

    def __str__(self) -> str:
        end = "" if self.problem.endswith((".", "!", "?")) or "\n" in self.problem else "."
        gap = "\n  " if "\n" in self.problem else " "
        return f"{self.where}: {self.problem}{end}{gap}Fix: {self.fix}"


@dataclass
class Report:
    """All findings about one environment, and what was measured on the way."""

    name: str = ""
    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """measured numbers and spaces as text, by name; ``steps_per_second``, ``reset_ms``, ``obs_bytes``, ..."""

    @property
    def ok(self) -> bool:
        """Return True if there are no errors; there may be warnings and notes."""
        return not self.of("error")

    def of(self, severity: Severity) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == severity]

    @property
    def sorted(self) -> list[Finding]:
        """Return errors first, then warnings, then notes; within each in the order found."""
        return sorted(self.findings, key=lambda finding: SEVERITIES.index(finding.severity))

    @property
    def summary(self) -> str:
        """Return ``2 errors, 1 note``, or ``no findings``."""
        counts = [(len(self.of(severity)), severity) for severity in SEVERITIES]
        return ", ".join(f"{n} {word}{'s' if n > 1 else ''}" for n, word in counts if n) or "no findings"

    def raise_if_failed(self) -> None:
        """Raise ``CheckFailed`` with the whole report if there are errors."""
        if not self.ok:
            raise CheckFailed(str(self))

    def __str__(self) -> str:
        width = max((len(name) for name in self.facts), default=0)
        lines = [f"{self.name}: {self.summary}"]
        lines += [f"  {name:{width}}  {fact_text(name, value)}" for name, value in self.facts.items()]
        lines += [f"{finding.severity}: {finding}" for finding in self.sorted]
        return "\n".join(lines)

    # --- used by the checks ---

    def add(self, severity: Severity, where: str, problem: str, fix: str) -> None:
        """Note a finding, once."""
        finding = Finding(severity, where, problem, fix)
        if finding not in self.findings:
            self.findings.append(finding)

    def add_error(self, error: FuguError, where: str, problem: str | None = None) -> None:
        """Add a fugu error as a finding. ``problem`` says it in other words than the error itself, which may name a place as well."""
        fix = error.fix[:1].lower() + error.fix[1:]
        advice = fix or "return what the space declares, or declare what is returned"
        self.add("error", where, error.complaint if problem is None else problem, advice)

    def add_crash(self, error: BaseException, where: str, what: str) -> None:
        """Add an exception of the environment, with the last lines of its traceback."""
        self.add(
            "error",
            where,
            f"{what} raised {describe(error)}",
            "make the environment handle this case; the lines above say where",
        )

    def has(self, where: str, severity: Severity = "error") -> bool:
        """Return True if something was found at ``where`` or below it."""
        return any(f.severity == severity and (f.where == where or f.where.startswith(where + "/")) for f in self.findings)

    @contextmanager
    def guard(self, where: str, what: str) -> Iterator[None]:
        """Run one check: what it raises becomes a finding, and the next check goes on."""
        try:
            yield
        except FuguError as error:
            self.add_error(error, where)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.add_crash(error, where, what)


def describe(error: BaseException, frames: int = 3) -> str:
    """Return ``ZeroDivisionError: division by zero`` and the innermost places of its traceback, one per line."""
    ours = tuple(str(Path(__file__).parents[1] / name) for name in ("check", "emulation"))  # not what went wrong
    try:
        text = f"{type(error).__name__}: {error}".rstrip(": ")
    except BaseException:
        text = type(error).__name__  # an error that cannot even be printed
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    lines = [f"\n  {Path(p.filename).name}:{p.lineno} in {p.name}: {p.line}" for p in places[-frames:]]
    return text + "".join(lines)


def fact_text(name: str, value: Any) -> str:
    """Write a fact for people to read."""
    if name.endswith("_share"):
        return f"{100 * value:.1f}%"
    if isinstance(value, str):
        return value if len(value) <= 300 else value[:297] + "..."
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
