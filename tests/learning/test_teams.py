"""Teams learn: five seeds each, through ``fugu.train``."""

from __future__ import annotations

import numpy as np
import pytest

import fugu

SEEDS = range(5)


def train(env: str, seed: int, folder, **changes) -> fugu.Run:
    settings = {"log.board": "off", **changes}
    return fugu.train(env, runs=folder, seed=seed, threads=1, num_workers=1, algorithm="mappo", **settings)


def score_at(run: fugu.Run, update: int) -> float:
    """Mean of the five batches up to this one."""
    return float(np.mean([row["env/score"] for row in run.metrics()[update - 5 : update]]))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_only_a_critic_that_sees_the_context_learns_under_a_hidden_bonus(tmp_path):
    central = [score_at(train("hidden_bonus", seed, tmp_path), 40) for seed in SEEDS]
    independent = [score_at(train("hidden_bonus", seed, tmp_path, critic="own"), 40) for seed in SEEDS]
    assert min(central) >= 0.97 and max(independent) <= 0.85, (central, independent)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_without_the_bonus_both_learn(tmp_path):
    for critic in ("state", "own"):
        scores = [
            score_at(train("hidden_bonus", seed, tmp_path, critic=critic, env_kwargs={"bonus": 0.0}), 40) for seed in SEEDS
        ]
        assert min(scores) >= 0.97, (critic, scores)
