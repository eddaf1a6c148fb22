"""The number a run is judged by: one definition for the board, the end of a training and the list of runs.

It is what ``target`` and the best checkpoint follow: the rating in self-play, evaluations where there are any, else the score. A run
with fewer than a hundred episodes has none of these yet, nor has one of an earlier version; then it is the latest return.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

MEASURES = {
    "self_play/rating": ("rating", "of the learner, among all versions"),
    "eval/return": ("eval/return", "mean return of the last evaluation"),
    "score": ("score", "mean return of the last 100 episodes"),
    "episode/return": ("return", "mean of the last episodes"),
}
"""metric -> its short name, and what it is; the first that a run has counts"""

Rows = Sequence[Mapping[str, float]]


def measure(rows: Rows, *, evaluated: bool = True) -> str | None:
    """Return the metric that a run with these metrics is judged by; None if no episode has ended. ``evaluated``: evaluations
    count."""
    there = {name for row in rows for name in row if name in MEASURES and math.isfinite(row[name])}
    return next((name for name in MEASURES if name in there and (evaluated or name != "eval/return")), None)


def shared(runs: Sequence[Mapping[str, float]]) -> str | None:
    """Return the metric by which several runs can be compared, whose latest values these are: the first that all of them have."""
    return next((name for name in MEASURES if runs and all(name in latest for latest in runs)), None)


def values(rows: Rows, metric: str) -> list[float]:
    """Return all values of a metric, oldest first."""
    return [row[metric] for row in rows if metric in row and math.isfinite(row[metric])]


def costs(rows: Rows) -> dict[str, tuple[float, float | None]]:
    """Return the latest cost of each kind and the limit on it, by the ending of its metric: empty if there is only one."""
    found: dict[str, tuple[float, float | None]] = {}
    for row in rows:
        for name, value in row.items():
            if f"{name}/".startswith("episode/cost/") and math.isfinite(value):
                kind = name.removeprefix("episode/cost")
                found[kind] = value, row.get(f"safe/limit{kind}")
    return found
