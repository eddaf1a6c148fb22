"""``fugu plot RUN...``: draw the curves of runs as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from fugu.cli.options import console, parse
from fugu.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Options:
    """Draw the curves of one or several runs: a panel per metric, a line per run."""

    run: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN")] = ("latest",)
    """Runs: latest, latest~1, names or paths"""
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
    from fugu.run import store
    from fugu.run.curves import plot

    folders = {folder.path.resolve(): folder for folder in (store.find(text, options.runs) for text in options.run)}
    path = plot(list(folders.values()), options.out or None, metrics=options.metric, x=options.x, smooth=options.smooth)
    console().print(str(path), soft_wrap=True, markup=False, highlight=False)
    return 0
