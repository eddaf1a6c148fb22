"""Mean and certainty over a few seeds, and of their curves over steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

# Quantile 0.975 of Student's t, for 1 to 30 degrees of freedom.
_T = (
    (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
    + (2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)
    + (2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)
)

Curve = tuple[np.ndarray, np.ndarray]
"""x and y, of one length"""


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def error(values: Sequence[float]) -> float:
    """Return the standard error of the mean; nan for one value, which says nothing about it."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95% confidence interval of the mean of a few values; nan for one."""
    half = student(len(values) - 1) * error(values)
    return mean(values) - half, mean(values) + half


def student(freedom: int) -> float:
    """Return the quantile 0.975 of Student's t; beyond the table by its expansion in 1 / freedom."""
    if freedom < 1:
        return math.nan
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def band(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x, mean and standard error of several curves, where all of them have values.

    Between its points a curve is the straight line. x has every point of every curve, so that nothing of a curve is lost.
    """
    first = max(at[0] for at, _ in curves)
    last = min(at[-1] for at, _ in curves)
    grid = np.unique(np.concatenate([at for at, _ in curves]))
    grid = grid[(grid >= first) & (grid <= last)]
    values = np.stack([np.interp(grid, at, value) for at, value in curves])  # [curves, points]
    return grid, values.mean(0), values.std(0, ddof=1) / math.sqrt(len(curves))
