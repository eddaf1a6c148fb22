"""``fugu runs``: list the runs, newest first, and how far they got."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fugu.cli.options import console, parse
from fugu.run.measure import MEASURES

if TYPE_CHECKING:
    from fugu.run.overview import Overview

STYLES = {"running": "cyan", "done": "green", "interrupted": "yellow", "failed": "red", "diverged": "red", "damaged": "red"}
LEFT_OUT = ("best", "steps/s", "of", "env", "age", "steps", "score")
"""columns that a narrow terminal leaves out, in this order"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """List the runs, newest first: how far they got, their scores (mean return of the last 100 episodes, or what is named beside the
    number), their speed and how they ended."""

    runs: str = "runs"
    """Folder of the runs"""
    json: bool = False
    """Print a JSON list instead of a table"""


def main(argv: list[str]) -> int:
    options = parse(Options, "runs", argv)
    from fugu.run.overview import overviews

    found = overviews(options.runs)
    if options.json:
        print(json.dumps([dataclasses.asdict(one) for one in found], indent=1))
        return 0
    out = console()
    if not found:
        out.print(Text(f"there is no run in {options.runs} yet: fugu train ENV makes one"))
        return 0
    _print_table(out, [_row(one) for one in found])
    for one in found:
        if one.problem is not None:
            out.print(Text(f"{one.name}: {one.problem}", style="red"), soft_wrap=True)
    return 0


def _row(one: Overview) -> dict[str, Text]:
    return {
        "name": Text(one.name),
        "env": Text(one.env or "?"),
        "steps": Text(_count(one.steps)),
        "of": Text(_count(one.steps_asked)),
        "score": Text(_number(one.score) + _measure(one)),
        "best": Text(_number(one.best_score)),
        "steps/s": Text(_count(one.steps_per_second)),
        "state": Text(one.state, style=STYLES[one.state]),
        "age": Text(_span(one.age)),
    }


def _measure(one: Overview) -> str:
    """Return the name of what a run is judged by, if that is not its score."""
    return "" if one.measure in (None, "score") else f" {MEASURES[one.measure][0]}"


def _print_table(out: Console, rows: list[dict[str, Text]]) -> None:
    """Print as many columns as the terminal has room for, each of them whole."""
    titles = list(rows[0])
    widths = {title: max(len(title), *(row[title].cell_len for row in rows)) + 2 for title in titles}  # and two spaces
    for title in LEFT_OUT:
        if out.is_terminal and sum(widths[t] for t in titles) - 2 > out.width:
            titles.remove(title)
    out.width = max(out.width, sum(widths[t] for t in titles))  # a name that is longer goes on in the next line
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, justify="left" if title in ("name", "env", "state") else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(row[title] for title in titles))
    out.print(table)


def _count(value: float | None) -> str:
    """Return ``1.23k`` for ``1234``: three digits are enough in a table."""
    if value is None:
        return "-"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}" if value < 999.5 * size else f"{value / size:.0f}{unit}"
    return f"{value:.0f}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if abs(value) < 1000 else f"{value:.0f}" if abs(value) < 1e9 else f"{value:.3g}"


def _span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
