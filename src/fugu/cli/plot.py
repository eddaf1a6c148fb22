"""``fugu plot RUN...``: draw the curves of runs as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fugu.cli.options import console, parse
from fugu.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Options:
    """Draw the curves of runs: a panel per metric, a line per run. Of a group of runs, the mean over its seeds and its standard
    error."""

    run: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN")] = ()
    """Runs or groups: latest, latest~1, names or paths; none: the latest run"""
    tag: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Draw all runs and groups with this tag instead; give it again for those that have several"""
    out: Annotated[str, tyro.conf.arg(aliases=["-o"])] = ""
    """File to write: .png, .svg or .pdf; empty: curves.png in the run's folder, for several runs in the current one"""
    metric: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Metric to draw, also by the end of its name (return, kl); give it again for more panels. Default: episode/return, and costs with
    their limits if there are any"""
    x: Literal["steps", "time"] = "steps"
    """Axis of the curves: steps of the environments, or time (seconds of training)"""
    smooth: int = 1
    """Lines of which each point is the mean; 1: as logged"""
    runs: str = "runs"
    """Folder in which runs are looked for"""


def main(argv: list[str]) -> int:
    options = parse(Options, "plot", argv)
    if options.smooth < 1:
        raise ConfigError(f"--smooth {options.smooth} must be at least 1")
    if options.run and options.tag:
        raise ConfigError(f"fugu plot {options.run[0]} --tag {options.tag[0]}: name runs or give a tag, not both")
    from fugu.run import store
    from fugu.run.curves import plot

    singles: dict[Path, store.RunFolder] = {}
    groups: dict[str, list[store.RunFolder]] = {}
    if options.tag:
        for folder in store.tagged(options.tag, options.runs):
            label = folder.label
            if label.group is None:
                singles[folder.path.resolve()] = folder
            else:
                groups.setdefault(label.group, []).append(folder)
    for text in options.run or (() if options.tag else ("latest",)):
        if members := store.members(text, options.runs):
            groups[str(members[0].label.group)] = members
        else:
            folder = store.find(text, options.runs)
            singles[folder.path.resolve()] = folder
    path = plot(
        [*singles.values()], options.out or None, groups=groups, metrics=options.metric, x=options.x, smooth=options.smooth
    )
    console().print(str(path), soft_wrap=True, markup=False, highlight=False)
    return 0
