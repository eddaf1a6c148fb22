"""The presets learn: every run ends at or above the goal of ``goals.py``, through ``fugu.train`` as a user would call it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from benchmarks.learning import against_random, in_process

import fugu
from tests.learning.goals import GOALS

OUTSIDE = {"CartPole-v1": "gymnasium", "LunarLander-v3": "Box2D", "MiniGrid-Empty-Random-5x5-v0": "minigrid"}
"""environments that come with a package of their own"""
QUICK = ("bandit", "multiagent", "cartpole")
"""one seed of these in the everyday suite"""
SANITY = (
    "bandit",
    "squared",
    "password",
    "memory",
    "stochastic",
    "continuous",
    "spaces",
    "multiagent",
    "knapsack_cmdp",
    "cartpole",
)
"""five seeds of these with ``make test-slow``; the others with ``make test-learning``"""


def train(env: str, seed: int, folder, **changes) -> fugu.Run:
    return fugu.train(env, runs=folder, seed=seed, threads=1, num_workers=1, **{"log.board": "off"}, **changes)


def reached(env: str, seed: int, folder, **changes) -> float:
    goal = GOALS[env]
    run = train(env, seed, folder, **goal.changes, **changes)
    return run.evaluate(goal.episodes, seed=100 + seed).mean


def five_seeds(env: str) -> list[float]:
    """The same, one process per core at a time."""
    goal = GOALS[env]
    jobs = [(env, seed, goal.changes, goal.episodes) for seed in range(5)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(in_process, jobs))
    assert not [r["error"] for r in results if "error" in r]
    return [float(r["mean_return"]) for r in results]


@pytest.mark.parametrize("env", QUICK)
def test_a_preset_reaches_its_goal(env, tmp_path):
    assert reached(env, 0, tmp_path) >= GOALS[env].goal


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("env", SANITY)
def test_five_seeds_of_a_sanity_environment_reach_their_goal(env):
    scores = five_seeds(env)
    assert min(scores) >= GOALS[env].goal, scores


@pytest.mark.learning
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("env", [name for name in GOALS if name not in SANITY])
def test_five_seeds_reach_their_goal(env):
    pytest.importorskip(OUTSIDE.get(env, "gymnasium"))
    scores = five_seeds(env)
    assert min(scores) >= GOALS[env].goal, scores


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_without_memory_the_memory_task_stays_at_chance(tmp_path):
    assert reached("memory", 0, tmp_path, core="none") <= 0.55


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_deterministic_policy_cannot_do_the_stochastic_task(tmp_path):
    run = train("stochastic", 0, tmp_path)
    assert run.evaluate(200, greedy=True).mean <= 0.67 < 0.88 <= run.evaluate(1000).mean


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_connect4_learned_against_itself_beats_random_play(tmp_path):
    """Self-play pays 0 on average whatever is learned, so the policy is measured against a player who drops stones at random."""
    run = train("connect4", 0, tmp_path, steps=3_000_000)
    wins, losses = against_random(run, games=400)
    assert wins >= 0.8 and losses <= 0.2, (wins, losses)


@pytest.mark.extras
@pytest.mark.timeout(900)
def test_simple_spread_improves(tmp_path):
    run = train("mpe2.simple_spread_v3:parallel_env", 0, tmp_path, steps=400_000)
    assert improvement([row["episode/return"] for row in run.metrics() if "episode/return" in row]) > 0.15


def improvement(curve: list[float]) -> float:
    """Of the last fifth over the first, as a share of that."""
    fifth = max(1, len(curve) // 5)
    start, end = np.mean(curve[:fifth]), np.mean(curve[-fifth:])
    return float((end - start) / abs(start))


@pytest.mark.learning
@pytest.mark.timeout(3600)
def test_five_seeds_of_simple_spread_improve():
    pytest.importorskip("mpe2")
    jobs = [("mpe2.simple_spread_v3:parallel_env", seed, {}, 100) for seed in range(5)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        curves = [result["curve"] for result in pool.map(in_process, jobs)]
    assert min(improvement(curve) for curve in curves) > 0.15


@pytest.mark.extras
@pytest.mark.timeout(900)
def test_a_minigrid_task_is_solved(tmp_path):
    run = train("MiniGrid-Empty-Random-5x5-v0", 0, tmp_path, steps=100_000)
    assert run.evaluate(100).mean >= 0.9


@pytest.mark.learning
@pytest.mark.timeout(3600)
def test_a_mujoco_task_reaches_the_published_level_of_stable_baselines(tmp_path):
    """RL Baselines3 Zoo, benchmark.md: PPO on Walker2d-v3 after one million steps, 3479 over 171 episodes."""
    pytest.importorskip("mujoco")
    scores = [train("Walker2d-v5", seed, tmp_path).evaluate(50).mean for seed in range(5)]
    assert np.mean(scores) >= 3479, scores


@pytest.mark.learning
@pytest.mark.timeout(1800)
def test_self_play_gets_stronger_than_what_it_was(tmp_path):
    run = train("connect4", 0, tmp_path, algorithm="self_play")
    ratings = [row["self_play/rating"] for row in run.metrics()]
    quarters = [np.mean(part) for part in np.array_split(ratings, 4)]
    assert quarters[-1] > quarters[0] + 5, quarters
    assert against_random(run, games=400)[0] >= 0.95
