"""The contents of the dashboard: a run's metrics as lines of styled text, for any width and height. Pure: nothing here touches a
terminal.

A line is a list of (text, style) spans, each of plain text: no markup, no control characters.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rich.cells import cell_len, set_cell_size

from fugu.errors import shown_line
from fugu.run.measure import MEASURES, measure
from fugu.run.metrics import METRICS, PHASES

Span = tuple[str, str]
Line = list[Span]

HISTORY = 512
"""points of the return's curve; beyond it neighbours are merged"""
COLORS = {
    "env": "green",
    "inference": "cyan",
    "copy": "yellow",
    "rollout": "cyan",
    "wait_rollout": "yellow",
    "advantage": "magenta",
    "update": "blue",
    "other": "bright_black",
}

_SHORT = {"wait_rollout": "waiting"}
"""names of phases that are too long for the board"""
_ORDER = {name: place for place, name in enumerate(METRICS)}
_LABEL, _VALUE, _DIM, _BIG = "bright_black", "default", "bright_black", "bold"


@dataclass(frozen=True, kw_only=True)
class Header:
    """The facts about a run that do not change."""

    run: str
    env: str
    total_steps: int
    from_step: int = 0
    """steps after which this process took the run up"""
    device: str = "cpu"
    native: bool = False
    """True if native threads step the environments"""
    half: bool = False
    """True if bfloat16 would make the update faster"""


@dataclass(frozen=True)
class Glyphs:
    bar: str
    rest: str
    spark: str
    dot: str


UNICODE = Glyphs("━", "─", "▁▂▃▄▅▆▇█", "·")
ASCII = Glyphs("#", "-", "_.:-=+*#", "|")


@dataclass
class Progress:
    """The figures on the board, kept up to date by the dashboard."""

    metrics: dict[str, float] = field(default_factory=dict)
    history: list[float] = field(default_factory=list)
    """returns since the start; merged in pairs when there are too many"""
    merged: int = 1
    """returns per point of ``history``"""
    rate: float = math.nan
    """steps per second over the last seconds"""
    uptime: float = 0.0
    pending: list[float] = field(default_factory=list)
    """returns that wait to be merged into a point"""

    def remember(self, value: float) -> None:
        self.pending.append(value)
        if len(self.pending) < self.merged:
            return
        self.history.append(sum(self.pending) / len(self.pending))
        self.pending.clear()
        if len(self.history) >= HISTORY:
            pairs = zip(self.history[::2], self.history[1::2], strict=True)
            self.history[:] = [(a + b) / 2 for a, b in pairs]
            self.merged *= 2


def board(header: Header, progress: Progress, width: int, height: int, glyphs: Glyphs = UNICODE) -> list[Line]:
    """Return the lines of the board, none wider than ``width`` and no more than ``height``."""
    inner = width - 2
    metrics = progress.metrics
    top = _top(header, progress, inner, glyphs)
    results = _results(progress, inner, glyphs)
    limit = _limit(metrics, header, inner)
    time_split = _time_split(metrics, min(inner, 36 if inner >= 66 else inner), glyphs)
    losses = _named(metrics, "loss/", 28)
    logged = _named(metrics, "eval/", 36) + _named(metrics, "env/", 36)
    columns = [part for part in (time_split, losses) if part]
    if inner >= 66:
        middle = beside(columns, inner)
        logged = (
            beside([logged[: (len(logged) + 1) // 2], logged[(len(logged) + 1) // 2 :]], inner) if len(logged) > 1 else logged
        )
    else:
        middle = [line for part in columns for line in part]
    sections = [top, results, logged, middle, _system(metrics), limit]
    # what matters most is kept when the window is low: progress, results, the limit, then the split, the rest last
    for dropped in (None, 2, 4, 3, 5, 1):
        if dropped is not None:
            sections[dropped] = []
        shown = [section for section in sections if section]
        spaced = [line for section in shown for line in [*section, []]][:-1]
        if len(spaced) <= height:
            break
        tight = [line for section in shown for line in section]
        if len(tight) <= height:
            spaced = tight
            break
    else:
        spaced = top[: max(1, height)]
    return [crop([(" ", ""), *line], width) for line in spaced]


def limits(metrics: Mapping[str, float], header: Header) -> str:
    """Say in one line which phase takes the time, and what would help."""
    shares = {phase: metrics.get(f"time/{phase}", 0.0) for phase in PHASES}
    phase = max(shares, key=shares.__getitem__)
    if shares[phase] < 0.4:
        second = sorted(shares, key=shares.__getitem__)[-2]
        return f"nothing alone: {phase} {shares[phase]:.0%}, {second} {shares[second]:.0%} of the time"
    env = (
        "more threads, or a simpler env"
        if header.native
        else f"more workers (fugu autotune {shown_line(header.env)}) or a native env"
    )
    advice = {
        "env": env,
        "inference": "more environments per batch, or a smaller network",
        "copy": "smaller observations (uint8 instead of float), fewer environments per batch",
        "rollout": "more environments, or a smaller network",
        "advantage": "larger batches",
        "update": ("--precision bf16, " if header.half else "")
        + "fewer epochs, larger minibatches, a smaller network"
        + (" or a GPU" if header.device == "cpu" else ""),
        "other": "log, evaluate or save less often",
    }
    return f"{phase} {shares[phase]:.0%} of the time: {advice[phase]}"


def plain(header: Header, progress: Progress) -> str:
    """Return the board's figures in one line, for a log file."""
    metrics = progress.metrics
    steps = metrics.get("steps", header.from_step)
    parts = [f"{duration(progress.uptime)} {number(steps)}/{number(header.total_steps)} steps"]
    parts += [] if metrics else [shown_line(header.run)]
    if math.isfinite(progress.rate):
        parts.append(f"{number(progress.rate)} steps/s")
        parts.append(f"ETA {_eta(header, progress)}")
    for name in (
        "self_play/rating",
        *(("score",) if "self_play/rating" not in metrics else ()),  # there returns say nothing
        "episode/return",
        "episode/length",
        "eval/return",
        *(name for cost in _costs(metrics) for name in (f"episode/cost{cost}", f"safe/lambda{cost}")),
        *sorted(n for n in metrics if n.startswith("env/"))[:4],
        "loss/kl",
        "loss/entropy",
    ):
        if math.isfinite(metrics.get(name, math.nan)):
            parts.append(
                f"{shown_line(name.removeprefix('episode/').removeprefix('safe/').removeprefix('self_play/'))} {number(metrics[name])}"
            )
    busy = sorted(((metrics.get(f"time/{phase}", 0.0), phase) for phase in PHASES), reverse=True)[:2]
    parts += [f"{phase} {share:.0%}" for share, phase in busy if share > 0]
    return "  ".join(parts)


def sparkline(values: Sequence[float], width: int, glyphs: str) -> str:
    """Return at most ``width`` columns, each the mean of its part of ``values``, from the lowest glyph to the highest."""
    values = [value for value in values if math.isfinite(value)]
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if not high > low:
        return glyphs[len(glyphs) // 2] * count
    scale = len(glyphs) / (high - low) * (1 - 1e-9)
    return "".join(glyphs[int((mean - low) * scale)] for mean in means)


def beside(columns: Sequence[list[Line]], width: int, gap: int = 3) -> list[Line]:
    """Put blocks of lines next to each other, each as wide as its widest line."""
    widths = [max((_length(line) for line in block), default=0) for block in columns]
    out: list[Line] = []
    for row in range(max(map(len, columns), default=0)):
        line: Line = []
        for block, wide in zip(columns, widths, strict=True):
            here = block[row] if row < len(block) else []
            line += [*here, (" " * (wide + gap - _length(here)), "")]
        out.append(line)
    return out


def crop(line: Line, width: int) -> Line:
    out: Line = []
    left = width
    for text, style in line:
        size = cell_len(text)
        if size > left:
            out.append((set_cell_size(text, left), style))
            break
        out.append((text, style))
        left -= size
    return out


def number(value: float) -> str:
    """Return about four characters: 0.0123, 1.23, 475.3, 12.3k, 4.56M."""
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    if size >= 1e15:
        return f"{value:.1e}"
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= (limit if unit == "k" else limit * (1 - 5e-5)):  # 999,999 is 1.00M, not 1000.0k
            scaled = value / (1e3 if unit == "k" else limit)
            return f"{scaled:.{2 if abs(scaled) < 10 else 1}f}{unit}"
    if value == int(value):
        return str(int(value))
    if size >= 100:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.4f}" if size >= 1e-3 else f"{value:.1e}"


def duration(seconds: float) -> str:
    """Return 0:07, 12:34, 3:04:05 or 2d 03:04."""
    if not math.isfinite(seconds):
        return "-"
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d {hours:02d}:{minutes:02d}"
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def _top(header: Header, progress: Progress, width: int, glyphs: Glyphs) -> list[Line]:
    metrics = progress.metrics
    steps = metrics.get("steps", header.from_step)
    share = min(1.0, steps / header.total_steps) if header.total_steps > 0 else 0.0
    right = f"{shown_line(header.env)} {glyphs.dot} {header.device}"
    left = f"fugu {glyphs.dot} {shown_line(header.run)}"
    gap = width - cell_len(left) - cell_len(right)
    title: Line = [(left, _BIG)] + ([(" " * gap + right, _DIM)] if gap > 0 else [])
    tail = f" {share:4.0%}  {number(steps)} of {number(header.total_steps)} steps"
    room = max(0, width - len(tail))
    done = round(share * room)
    bar: Line = [(glyphs.bar * done, "green"), (glyphs.rest * (room - done), _DIM), (tail, _VALUE)]
    facts = [
        (number(progress.rate), "steps/s"),
        ("ETA", _eta(header, progress)),
        ("up", duration(progress.uptime)),
        (number(metrics.get("updates", 0)), "updates"),
        (number(metrics.get("episodes", 0)), "episodes"),
    ]
    speed: Line = []
    for first, second in facts:
        if _length(speed) + len(first) + 1 + len(second) > width:
            break
        loud = first not in ("ETA", "up")
        speed += [(first, _BIG if loud else _LABEL), (" " + second + "   ", _LABEL if loud else _BIG)]
    return [title, bar, speed]


def _results(progress: Progress, width: int, glyphs: Glyphs) -> list[Line]:
    metrics = progress.metrics
    name = measure([metrics])
    if name is None:
        return [[("return ", _LABEL), ("no episode has ended yet", _DIM)]]
    label = f"{MEASURES[name][0]} "
    tail = f"  length {number(metrics.get('episode/length', math.nan))}"
    if name != "episode/return":
        tail = f"  return {number(metrics.get('episode/return', math.nan))}{tail}"
    line: Line = [(label, _LABEL), (f"{number(metrics[name]):<8}", "bold green")]
    room = min(60, width - len(label) - 8 - len(tail))
    if room >= 4 and len(progress.history) > 1:
        line.append((sparkline(progress.history, room, glyphs.spark), "green"))
    return [[*line, (tail, _VALUE)], *(_cost(metrics, cost) for cost in _costs(metrics))]


def _costs(metrics: Mapping[str, float]) -> list[str]:
    """Return the ending after ``episode/cost`` in the metric names of each cost: empty if there is only one."""
    return sorted(name.removeprefix("episode/cost") for name in metrics if f"{name}/".startswith("episode/cost/"))


def _cost(metrics: Mapping[str, float], cost: str) -> Line:
    """Return the line on the cost of episodes, against its limit if there is one."""
    paid, limit = metrics[f"episode/cost{cost}"], metrics.get(f"safe/limit{cost}", math.nan)
    line: Line = [
        (f"{shown_line(cost.removeprefix('/') or 'cost'):<6} ", _LABEL),
        (f"{number(paid):<8}", "bold red" if paid > limit else "bold green"),
    ]
    if not math.isfinite(limit):
        return line
    over = metrics.get(f"safe/over_limit{cost}", math.nan)
    return [
        *line,
        (f"limit {number(limit)}   lambda {number(metrics.get(f'safe/lambda{cost}', math.nan))}", _VALUE),
        (f"   over it {over:.0%}" if math.isfinite(over) else "", _VALUE),
    ]


def _time_split(metrics: Mapping[str, float], width: int, glyphs: Glyphs) -> list[Line]:
    if not _has_time(metrics):
        return []
    room = max(0, width - 16)
    lines: list[Line] = []
    # environments are stepped either on the GPU, all in one phase, or in these
    apart = ("env", "inference", "copy") if metrics.get("time/rollout", 0.0) > 0 else ("rollout",)
    for phase in PHASES:
        share = min(1.0, max(0.0, metrics.get(f"time/{phase}", 0.0)))
        if f"time/{phase}" not in metrics or (phase in apart and share == 0):
            continue
        done = round(share * room)
        lines.append(
            [
                (f"{_SHORT.get(phase, phase):<10}", _LABEL),
                (glyphs.bar * done, COLORS[phase]),
                (glyphs.rest * (room - done), _DIM),
                (f" {share:4.0%}", _VALUE),
            ]
        )
    return lines


def _named(metrics: Mapping[str, float], prefix: str, width: int, most: int = 12) -> list[Line]:
    names = sorted(
        (name for name in metrics if name.startswith(prefix)), key=lambda name: (_ORDER.get(name, len(_ORDER)), name)
    )
    room = min(width - 9, max((cell_len(shown_line(name.removeprefix(prefix))) for name in names), default=0))
    lines: list[Line] = [
        [(set_cell_size(shown_line(name.removeprefix(prefix)), room), _LABEL), (f" {number(metrics[name]):>8}", _VALUE)]
        for name in names[:most]
    ]
    if len(names) > most:
        lines[-1] = [(f"and {len(names) - most + 1} more", _DIM)]
    return lines


def _limit(metrics: Mapping[str, float], header: Header, width: int) -> list[Line]:
    if not _has_time(metrics):
        return []
    first, *more = textwrap.wrap(limits(metrics, header), max(20, width - 7))
    return [[("limit  ", _LABEL), (first, "yellow")], *([("       " + line, "yellow")] for line in more)]


def _system(metrics: Mapping[str, float]) -> list[Line]:
    line: Line = []
    for name, label, show in (
        ("system/cpu", "cpu", "{:.0%}".format),
        ("system/memory", "memory", _memory),
        ("system/gpu", "gpu", "{:.0%}".format),
        ("system/gpu_memory", "gpu memory", _memory),
        ("learning_rate", "learning rate", number),
    ):
        if math.isfinite(metrics.get(name, math.nan)):
            line += [(label + " ", _LABEL), (show(metrics[name]) + "   ", _VALUE)]
    return [line] if line else []


def _memory(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _has_time(metrics: Mapping[str, float]) -> bool:
    return any(f"time/{phase}" in metrics for phase in PHASES)


def _eta(header: Header, progress: Progress) -> str:
    left = header.total_steps - progress.metrics.get("steps", header.from_step)
    return duration(max(0.0, left) / progress.rate) if progress.rate > 0 else "-"


def _length(line: Line) -> int:
    return sum(cell_len(text) for text, _ in line)
