"""``fugu check``: report everything that is wrong with an environment, each finding with its fix."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fugu.check import Report, check_env
from fugu.check.report import fact_text
from fugu.cli.apart import Ended, apart
from fugu.cli.options import console, parse, take_env_kwargs
from fugu.errors import ConfigError

DAY = 86400.0
COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Find everything that is wrong with an environment, each finding with its fix.

    --env.NAME VALUE goes to the environment's constructor. Exit code 1 if there are errors.
    """

    env: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """Environment: a native one by name, a Gymnasium id, module:Class, file.py:Class or my_env.h"""
    steps: int = 500
    """Random steps in each part of the check"""
    seed: int = 0
    """Seed of the environment and of the actions"""
    timeout: float = 120.0
    """Longest time for the whole check, in seconds; beyond it the environment counts as hanging"""
    json: bool = False
    """Print the report as JSON"""

    def __post_init__(self) -> None:
        if not 0 < self.timeout <= DAY:
            raise ConfigError(f"--timeout {self.timeout:g} must be above 0, and at most a day ({DAY:g} seconds)")


def main(argv: list[str]) -> int:
    argv, env_kwargs = take_env_kwargs(argv)
    options = parse(Options, "check", argv)
    report = report_on(options, env_kwargs)
    if options.json:
        findings = [dataclasses.asdict(finding) for finding in report.sorted]
        print(json.dumps({"env": report.name, "ok": report.ok, "facts": report.facts, "findings": findings}, indent=2))
    else:
        show(report)
    return 0 if report.ok else 1


def report_on(options: Options, env_kwargs: dict[str, Any]) -> Report:
    """Return the report of a check in another process, or one that says how that process ended."""
    start = time.perf_counter()
    try:
        return apart(check_quietly, options, env_kwargs, timeout=options.timeout)
    except Ended as ended:
        report = Report(name=options.env, facts={"check_seconds": time.perf_counter() - start})
        report.add("error", "process", "\n".join([f"{ended.what} while it was being checked", *ended.lines]), ended.fix)
        return report


def check_quietly(options: Options, env_kwargs: dict[str, Any]) -> Report:
    with contextlib.redirect_stdout(sys.stderr):  # an environment that prints must not end up in the report
        return check_env(options.env, steps=options.steps, seed=options.seed, env_kwargs=env_kwargs)


def show(report: Report) -> None:
    """Print the report in colours."""
    out = console()
    worst = next((severity for severity in COLOURS if report.of(severity)), "")  # type: ignore[arg-type]
    out.print(Text.assemble((report.name, "bold"), ": ", (report.summary, COLOURS.get(worst, "green"))))
    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    for name, value in report.facts.items():
        facts.add_row(Text(name.replace("_", " "), style="dim"), Text(fact_text(name, value)))
    out.print(facts)
    for finding in report.sorted:
        out.print()
        head = Text.assemble(
            (finding.severity, COLOURS[finding.severity]), "  ", (finding.where, "bold"), f": {finding.problem}"
        )
        out.print(head)
        fix = Text.assemble(("fix: ", "green"), finding.fix)
        whole = out.soft_wrap  # padding would cut what is longer than the width
        out.print(Text("  ").append_text(fix) if whole else Padding(fix, (0, 0, 0, 2), expand=False))
