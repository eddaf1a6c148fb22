"""``fugu runs``: the runs there are, newest first, and how far they got."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from fugu.cli.options import console, parse

STYLES = {"running": "cyan", "done": "green", "interrupted": "yellow", "diverged": "red", "damaged": "red"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The runs there are, newest first: how far they got, their returns, their speed and how they ended."""

    runs: str = "runs"
    """the folder they are in"""
    json: bool = False
    """print a JSON list instead of a table"""


def main(argv: list[str]) -> int:
    options = parse(Options, "runs", argv)
    from fugu.run.overview import overviews

    found = overviews(options.runs)
    if options.json:
        print(json.dumps([dataclasses.asdict(one) for one in found], indent=1))
        return 0
    out = console()
    if not found:
        out.print(f"there is no run in {options.runs} yet: fugu train ENV makes one")
        return 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", no_wrap=True)
    table.add_column("env", no_wrap=True)
    for title in ("steps", "of", "last return", "best", "steps/s"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("state")
    table.add_column("age", justify="right")
    for one in found:
        table.add_row(
            one.name,
            one.env or "?",
            _count(one.steps),
            _count(one.steps_asked),
            _number(one.last_return),
            _number(one.best_return),
            _count(one.steps_per_second),
            Text(one.state, style=STYLES[one.state]),
            _span(one.age),
        )
    out.print(table)
    for one in found:
        if one.problem is not None:
            out.print(Text(f"{one.name}: {one.problem}", style="red"), soft_wrap=True)
    return 0


def _count(value: float | None) -> str:
    """``1234`` -> ``1.23k``: three digits say enough in a table."""
    if value is None:
        return "-"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}" if value < 999.5 * size else f"{value / size:.0f}{unit}"
    return f"{value:.0f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if abs(value) < 1000 else f"{value:.0f}"


def _span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
