"""Curves of runs as a picture: a panel per metric, a line per run, for a group of runs their mean and its standard error."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fugu.config import fitting
from fugu.errors import ConfigError, FuguError, MissingExtra, did_you_mean, nearest, shown_line
from fugu.run.metrics import METRICS, describe
from fugu.run.overview import seconds_of
from fugu.run.spread import Curve, band
from fugu.run.store import RunFolder

Axis = Literal["steps", "time"]
KINDS = (".png", ".svg", ".pdf")


def plot(
    folders: Sequence[RunFolder],
    path: str | Path | None = None,
    *,
    groups: Mapping[str, Sequence[RunFolder]] | None = None,
    metrics: str | Sequence[str] = (),
    x: Axis = "steps",
    smooth: int = 1,
) -> Path:
    """Draw ``metrics`` of the runs over steps or wall time; returns the file, ``curves.png`` in the run's folder by default.

    ``groups``: runs that are drawn as one line, their mean, by its name. It is as long as the shortest of them; each of them shows
    faintly behind.

    Without ``metrics``: the return, and where episodes cost something, that and the price of it. Costs are drawn with their limit.
    ``smooth``: each point is the mean of this many lines around it; what was logged then shows faintly behind.
    """
    singles, groups = folders, groups or {}
    folders = list({folder.path: folder for folder in (*singles, *itertools.chain(*groups.values()))}.values())
    if not folders:
        raise ConfigError("plot() needs at least one run")
    if x not in ("steps", "time"):
        raise ConfigError(f"x={x!r} must be steps or time.{did_you_mean(str(x), ('steps', 'time'))}")
    smooth = fitting("smooth", smooth, int, 1)
    metrics = (metrics,) if isinstance(metrics, str) else metrics
    target = (
        Path(path) if path is not None else (folders[0].path if len(singles) == 1 and not groups else Path()) / "curves.png"
    )
    if target.suffix.lower() not in KINDS:
        example = target.with_suffix(".png") if target.name.strip(".") else target / "curves.png"
        raise ConfigError(f"a plot is a {', '.join(KINDS)} file, got {str(target)!r}; try {example}")
    drawn = _curves(folders, tuple(dict.fromkeys(metrics or _usual(folders))), x)
    bounds = {metric: _limits(folders, metric) for metric in drawn}
    name = _names(folders)
    inside = {group: [name[folder.path] for folder in members] for group, members in groups.items()}
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("plotting", "plot") from None
    columns = min(len(drawn), 2)
    rows = -(-len(drawn) // columns)
    figure = Figure(figsize=(6.4 * columns, 3.8 * rows + 0.4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)  # draws without a display
    for number, (metric, curves) in enumerate(drawn.items(), 1):
        lines = _lines(curves, [name[folder.path] for folder in singles], inside)
        _draw(figure.add_subplot(rows, columns, number), metric, lines, x, smooth, bounds[metric])
    draft = target.with_name(f".{target.stem}-{os.getpid()}{target.suffix}")  # in a run of somebody else's target may be a link
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        figure.savefig(draft)
        draft.replace(target)
    except OSError as error:
        raise FuguError(f"{target} cannot be written: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    return target


def smoothed(values: np.ndarray, window: int) -> np.ndarray:
    """Return the mean of the ``window`` values around each; fewer at both ends."""
    window = min(window, len(values))
    kernel = np.ones(window)
    return np.convolve(values, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same")


def _curves(folders: Sequence[RunFolder], metrics: Sequence[str], x: Axis) -> dict[str, dict[str, Curve]]:
    """Return metric -> run -> its curve. A metric that no run has is an error that names the existing ones."""
    tables = {folder.path: (folder.read_metrics(), folder.read_timing()) for folder in folders}
    names = _names(folders)
    there = {name for lines in itertools.chain(*tables.values()) for row in lines for name in row}
    if not there:
        raise FuguError(f"{', '.join(names.values())}: no metrics yet")
    out: dict[str, dict[str, Curve]] = {}
    known = sorted(there - {"steps", "updates"})
    for metric in dict.fromkeys(_meant(metric, there) for metric in metrics):
        if metric not in there:
            if metric in METRICS:
                raise FuguError(f"{', '.join(names.values())} did not log {metric!r}; there are: {', '.join(known)}")
            near = nearest(metric, known)
            hint = did_you_mean(metric, near) if near else ""
            raise ConfigError(f"there is no metric {metric!r}.{hint} There are: {', '.join(known)}")
        for path, (lines, timing) in tables.items():
            source = lines if any(metric in row for row in lines) else timing
            clock = dict(zip((row["updates"] for row in timing), np.cumsum(seconds_of(timing)).tolist(), strict=True))
            points = [
                (row["steps"] if x == "steps" else clock.get(row["updates"], np.nan), row[metric])
                for row in source
                if metric in row
            ]
            both = np.array(points, np.float64).reshape(-1, 2)
            both = both[np.isfinite(both).all(axis=1)]
            out.setdefault(metric, {})[names[path]] = (both[:, 0], both[:, 1])
    return out


def _usual(folders: Sequence[RunFolder]) -> list[str]:
    """Return the metrics that are drawn by default."""
    there = {name for folder in folders for row in folder.read_metrics() for name in row}
    return ["episode/return", *sorted(name for name in there if name.startswith(("episode/cost", "safe/lambda")))]


def _limits(folders: Sequence[RunFolder], metric: str) -> list[float]:
    """Return the costs that the runs were not to exceed on average, lowest first; none for a metric without a limit."""
    if not metric.startswith("episode/cost"):
        return []
    name = metric.replace("episode/cost", "safe/limit", 1)
    return sorted({row[name] for folder in folders for row in folder.read_metrics()[-1:] if name in row})


def _meant(metric: str, there: Collection[str]) -> str:
    """Return the metric that a short name means: ``kl`` is ``loss/kl``. Where episodes of the training and of evaluations both have
    it, as ``return``, those of the training are meant."""
    if metric in there:
        return metric
    for known in (there, METRICS):
        ends = sorted(name for name in known if name.endswith(f"/{metric}"))
        trained = [name for name in ends if not name.startswith("eval/")]
        if len(ends) == 1 or len(trained) == 1:
            return trained[0] if trained else ends[0]
        if ends:
            raise ConfigError(f"{metric!r} could be {' or '.join(ends)}; type one of them")
    return metric


def _names(folders: Sequence[RunFolder]) -> dict[Path, str]:
    """Return each run's name in the legend: its own, or its path if two have the same."""
    names = [folder.name for folder in folders]
    return {f.path: shown_line(f.name if names.count(f.name) == 1 else str(f.path)) for f in folders}


def _lines(curves: dict[str, Curve], singles: Sequence[str], groups: Mapping[str, Sequence[str]]) -> dict[str, list[Curve]]:
    """Return line -> the curves it is made of: one for a run, for a group those of its runs that have this metric."""
    lines = {name: [curves[name]] for name in singles}
    return lines | {group: [curves[name] for name in names if len(curves[name][0])] for group, names in groups.items()}


def _draw(axes: Any, metric: str, lines: dict[str, list[Curve]], x: Axis, smooth: int, limits: Sequence[float]) -> None:
    from matplotlib.ticker import EngFormatter

    for number, (name, curves) in enumerate(lines.items()):
        colour = f"C{number % 10}"
        if not curves:
            continue
        if len(curves) > 1:
            _draw_group(axes, name, [(at, smoothed(values, smooth)) for at, values in curves], colour)
            continue
        ((at, values),) = curves
        style = {"color": colour, "marker": "o" if len(at) == 1 else None}
        if smooth > 1 and len(at) > 1:
            axes.plot(at, values, color=colour, alpha=0.25, linewidth=0.8)
            values = smoothed(values, smooth)
        axes.plot(at, values, label=name, linewidth=1.6, **style)
    for limit in limits:
        axes.axhline(limit, color="black", linestyle="--", linewidth=1.0, label=f"limit {limit:g}")
    unit = describe(metric).unit
    axes.set_title(shown_line(metric), parse_math=False)
    axes.set_ylabel(unit)
    axes.set_xlabel("steps" if x == "steps" else "seconds of training")
    if x == "steps":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    for text in axes.legend(fontsize="small", frameon=False).get_texts():
        text.set_parse_math(False)  # a $ in a name is one


def _draw_group(axes: Any, name: str, curves: list[Curve], colour: str) -> None:
    for at, values in curves:
        axes.plot(at, values, color=colour, alpha=0.25, linewidth=0.8)
    grid, mean, error = band(curves)
    label = f"{name}: mean and standard error of {len(curves)} seeds"
    axes.plot(grid, mean, label=label, color=colour, linewidth=1.6, marker="o" if len(grid) == 1 else None)
    axes.fill_between(grid, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
