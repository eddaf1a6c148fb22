"""Safe PPO keeps its limit and earns what is possible under it, through ``fugu.train`` as a user would call it.

``knapsack_cmdp`` has a known optimum: 20 at a cost of 10. Without a limit 25 at a cost of 20; careless caution gets 12.5 at 10.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from benchmarks.learning import in_process

import fugu


def played(algorithm: str, seed: int, folder, **changes) -> tuple[float, float]:
    """Mean return and cost of 1,000 episodes of the final policy."""
    run = fugu.train("knapsack_cmdp", algorithm=algorithm, runs=folder, seed=seed, threads=1, **{"log.board": "off"}, **changes)
    evaluation = run.evaluate(1000, seed=100 + seed)
    return evaluation.mean, evaluation.mean_costs["cost"]


def five_seeds(**changes) -> list[tuple[float, float]]:
    jobs = [("knapsack_cmdp", seed, changes, 1000) for seed in range(5)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(in_process, jobs))
    assert not [r["error"] for r in results if "error" in r]
    return [(float(r["mean_return"]), float(r["mean_costs"]["cost"])) for r in results]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_five_seeds_keep_the_limit_and_earn_what_it_allows():
    results = five_seeds(algorithm="safe_ppo")
    assert all(9 <= cost <= 10.5 and mean >= 18 for mean, cost in results), results


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_five_seeds_without_a_limit_take_everything():
    results = five_seeds(algorithm="ppo", steps=400_000)
    assert all(cost >= 19 and mean >= 24 for mean, cost in results), results


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("multiplier", ["sgd", "adam"])
def test_other_rules_for_the_price_keep_the_limit_too(multiplier, tmp_path):
    mean, cost = played("safe_ppo", 0, tmp_path, multiplier=multiplier)
    assert 9 <= cost <= 10.5 and mean >= 18


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_limit_of_zero_makes_it_leave_everything(tmp_path):
    mean, cost = played("safe_ppo", 0, tmp_path, limit=(0.0,))
    assert cost <= 0.5 and mean <= 1


@pytest.mark.learning
@pytest.mark.timeout(1800)
def test_a_point_goes_round_hazards_and_hardly_loses_by_it(tmp_path):
    """PPO takes 21.6 at a cost of 35; the limit is 10."""
    settings = {"runs": tmp_path, "threads": 1, "log.board": "off"}
    rows = fugu.train("safe_point", algorithm="safe_ppo", **settings).metrics()
    late = [row for row in rows if row["steps"] > 0.8 * rows[-1]["steps"] and "episode/cost" in row]
    cost, mean = (sum(row[name] for row in late) / len(late) for name in ("episode/cost", "episode/return"))
    assert 7 <= cost <= 11 and mean >= 15, (cost, mean)
