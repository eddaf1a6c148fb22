"""Means over seeds and of their curves, against numpy and known quantiles."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fugu.run.spread import band, error, interval, student


def test_the_band_is_mean_and_standard_error_of_straight_lines_between_points() -> None:
    rng = np.random.default_rng(0)
    curves = [(np.sort(rng.choice(1000, size, replace=False)).astype(float), rng.normal(size=size)) for size in (40, 25, 7)]
    grid, mean, spread = band(curves)
    points = np.concatenate([at for at, _ in curves])
    assert grid[0] == max(at[0] for at, _ in curves) and grid[-1] == min(at[-1] for at, _ in curves)
    assert set(grid) == {x for x in points if grid[0] <= x <= grid[-1]} and (np.diff(grid) > 0).all()
    for x, m, s in zip(grid, mean, spread, strict=True):
        values = []
        for at, value in curves:  # by hand: the two points around x
            after = int(np.searchsorted(at, x))
            before = max(after - 1, 0)
            share = 1.0 if at[after] == at[before] else (x - at[before]) / (at[after] - at[before])
            values.append(value[before] + share * (value[after] - value[before]))
        assert m == pytest.approx(np.mean(values)) and s == pytest.approx(np.std(values, ddof=1) / math.sqrt(3))


def test_curves_of_the_same_steps_are_averaged_point_by_point() -> None:
    at = np.array([1.0, 2.0, 4.0])
    grid, mean, spread = band([(at, np.array([0.0, 2.0, 4.0])), (at, np.array([2.0, 2.0, 8.0]))])
    assert grid.tolist() == at.tolist() and mean.tolist() == [1.0, 2.0, 6.0] and spread.tolist() == [1.0, 0.0, 2.0]


def test_curves_that_have_no_steps_in_common_have_no_band() -> None:
    grid, mean, spread = band([(np.array([1.0, 2.0]), np.zeros(2)), (np.array([5.0]), np.zeros(1))])
    assert len(grid) == len(mean) == len(spread) == 0


def test_the_interval_is_that_of_students_t() -> None:
    values = [3.0, 5.0, 10.0]
    half = 4.303 * np.std(values, ddof=1) / math.sqrt(3)
    assert interval(values) == pytest.approx((6.0 - half, 6.0 + half))
    assert math.isnan(error([1.0])) and all(map(math.isnan, interval([1.0])))
    known = {1: 12.706, 30: 2.042, 31: 2.0395, 40: 2.0211, 120: 1.9799, 10**6: 1.95997}
    assert {freedom: student(freedom) for freedom in known} == pytest.approx(known, abs=1e-4)
