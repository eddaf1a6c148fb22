"""pass@k against counting."""

from __future__ import annotations

import itertools
import math

import pytest

from fugu.coding.score import mean_pass_at_k, pass_at_k
from fugu.errors import ConfigError


def test_it_is_the_share_of_all_subsets_that_hold_a_right_one():
    for tries in range(1, 9):
        for passed in range(tries + 1):
            right = [True] * passed + [False] * (tries - passed)
            for k in range(1, tries + 1):
                subsets = list(itertools.combinations(right, k))
                assert pass_at_k(tries, passed, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_large_numbers_of_tries_are_exact():
    assert pass_at_k(10_000, 1, 100) == pytest.approx(0.01, abs=1e-12)
    assert pass_at_k(200, 0, 100) == 0 and pass_at_k(200, 101, 100) == 1


def test_the_mean_is_over_tasks_and_leaves_out_those_with_too_few_tries():
    counts = {"a": (2, 1), "b": (4, 0), "c": (1, 1)}
    means = mean_pass_at_k(counts, [1, 2, 5])
    assert means[1] == pytest.approx((0.5 + 0 + 1) / 3) and means[2] == pytest.approx(0.5) and math.isnan(means[5])


def test_impossible_numbers_are_refused():
    with pytest.raises(ConfigError, match="pass@3 needs at least 3 completions of a task, got 2"):
        pass_at_k(2, 1, 3)
    with pytest.raises(ConfigError, match="from 0 to tries=2"):
        pass_at_k(2, 3, 1)
