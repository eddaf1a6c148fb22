"""Dreamer solves CartPole in a few thousand steps, with its preset. What it took is in ``benchmarks/results/dreamer.json``."""

from __future__ import annotations

import pytest

import fugu


@pytest.mark.learning
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(5))
def test_cartpole_is_solved_within_8000_steps(seed, tmp_path):
    run = fugu.train("CartPole-v1", algorithm="dreamer", seed=seed, runs=tmp_path, board="off")
    assert run.metrics()[-1]["steps"] <= 8_100
    assert run.evaluate(50, greedy=True, seed=5000 + seed).mean >= 450  # 475 ends the training, by 20 episodes
