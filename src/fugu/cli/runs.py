"""``fugu runs``: list the runs and groups of runs, newest first, and how far they got."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fugu.cli.options import console, parse
from fugu.errors import shown_line
from fugu.run.measure import MEASURES, shared

if TYPE_CHECKING:
    from fugu.run.overview import Overview

STYLES = {
    "running": "cyan",
    "done": "green",
    "ended": "green",
    "interrupted": "yellow",
    "failed": "red",
    "diverged": "red",
    "damaged": "red",
}
LEFT_OUT = ("tags", "best", "steps/s", "of", "env", "age", "steps", "score")
"""columns that a narrow terminal leaves out, in this order"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """List the runs, newest first: how far they got, their scores (mean return of the last 100 episodes, or what is named beside the
    number), their speed and how they ended.

    A group of runs that differ in their seed has one line: the sum of their steps, the mean of their scores with its standard error,
    and how many seeds are done.
    """

    runs: str = "runs"
    """Folder of the runs"""
    tag: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """List only runs with this tag; give it again for those that have several"""
    all: bool = False
    """List the runs of a group as well, below its line"""
    json: bool = False
    """Print a JSON list of all runs instead of a table"""


def main(argv: list[str]) -> int:
    options = parse(Options, "runs", argv)
    from fugu.run import store
    from fugu.run.overview import overview, overviews

    if options.tag:
        found = [overview(folder) for folder in reversed(store.tagged(options.tag, options.runs))]
    else:
        found = overviews(options.runs)
    if options.json:
        print(json.dumps([dataclasses.asdict(one) for one in found], indent=1))
        return 0
    out = console()
    if not found:
        out.print(Text(f"there is no run in {options.runs} yet: fugu train ENV makes one"))
        return 0
    rows = []
    for group in grouped(found):
        if group[0].group is None:
            rows.append(_row(group[0]))
            continue
        rows.append(_group_row(group))
        if options.all:
            rows += [{**_row(one), "name": Text(f"  {shown_line(one.name)}")} for one in group]
    if not any(row["tags"] for row in rows):
        rows = [{title: text for title, text in row.items() if title != "tags"} for row in rows]
    _print_table(out, rows)
    for one in found:
        if one.problem is not None:
            out.print(Text(shown_line(f"{one.name}: {one.problem}"), style="red"), soft_wrap=True)
    return 0


def grouped(found: list[Overview]) -> list[list[Overview]]:
    """Return the runs of each group, in the order of their seeds, where the newest of them stands; other runs alone."""
    groups: dict[tuple[str | None, str], list[Overview]] = {}
    for one in found:
        groups.setdefault((one.group, "" if one.group is not None else one.name), []).append(one)
    return [sorted(group, key=lambda one: -1 if one.seed is None else one.seed) for group in groups.values()]


def _group_row(group: list[Overview]) -> dict[str, Text]:
    """Return the line of a group: sums of steps, means of scores, and how its runs are."""
    from fugu.run.spread import error, mean

    states = [one.state for one in group]
    total = max(len(group), len(group[0].group_seeds))
    others = [each for each in STYLES if each in states and each != "done"]
    state = ", ".join([f"{states.count('done')}/{total} done", *(f"{states.count(each)} {each}" for each in others)])
    kind = shared([one.latest for one in group if one.latest])
    scores = [one.latest[kind] for one in group if kind in one.latest] if kind is not None else []
    best = [one.best_score for one in group if one.best_score is not None and one.measure == kind]
    speeds = [one.steps_per_second for one in group if one.steps_per_second is not None]
    asked = [one.steps_asked for one in group if one.steps_asked is not None]
    spread = f" +- {_number(error(scores))}" if len(scores) > 1 else ""
    return {
        "name": Text(shown_line(str(group[0].group))),
        "tags": Text(" ".join(dict.fromkeys(tag for one in group for tag in one.tags))),
        "env": Text(shown_line(group[0].env or "?")),
        "steps": Text(_count(sum(one.steps for one in group))),
        "of": Text(_count(mean(asked) * total if asked else None)),
        "score": Text(_number(mean(scores) if scores else None) + spread + _measure(kind)),
        "best": Text(_number(mean(best) if best else None)),
        "steps/s": Text(_count(mean(speeds) if speeds else None)),
        "state": Text(state, style=STYLES[others[-1] if others else "done"]),
        "age": Text(_span(max(one.age for one in group))),
    }


def _row(one: Overview) -> dict[str, Text]:
    return {
        "name": Text(shown_line(one.name)),
        "tags": Text(" ".join(one.tags)),
        "env": Text(shown_line(one.env or "?")),
        "steps": Text(_count(one.steps)),
        "of": Text(_count(one.steps_asked)),
        "score": Text(_number(one.score) + _measure(one.measure)),
        "best": Text(_number(one.best_score)),
        "steps/s": Text(_count(one.steps_per_second)),
        "state": Text(one.state, style=STYLES[one.state]),
        "age": Text(_span(one.age)),
    }


def _measure(name: str | None) -> str:
    """Return the name of what a run is judged by, if that is not its score."""
    return "" if name in (None, "score") else f" {MEASURES[name][0]}"


def _print_table(out: Console, rows: list[dict[str, Text]]) -> None:
    """Print as many columns as the terminal has room for, each of them whole."""
    titles = list(rows[0])
    widths = {title: max(len(title), *(row[title].cell_len for row in rows)) + 2 for title in titles}  # and two spaces
    for title in LEFT_OUT:
        if title in titles and out.is_terminal and sum(widths[t] for t in titles) - 2 > out.width:
            titles.remove(title)
    out.width = max(out.width, sum(widths[t] for t in titles))  # a name that is longer goes on in the next line
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, justify="left" if title in ("name", "tags", "env", "state") else "right", no_wrap=True)
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
