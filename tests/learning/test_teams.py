"""Teams learn: five seeds each, through ``fugu.train``."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from benchmarks.learning import in_process

import fugu
from fugu.algorithm.config import MAPPOConfig, PPOConfig
from fugu.policy.config import PolicyConfig
from fugu.trainer.config import OptimizerConfig, TrainConfig
from fugu.trainer.config_parts import LogConfig
from fugu.vector.config import VectorConfig

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


@pytest.mark.learning
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("critic", ["agent", "own"])
def test_foragers_gather_most_of_the_food_with_either_critic(critic):
    jobs = [("foraging", seed, {"algorithm": "mappo", "critic": critic}, 2000) for seed in SEEDS]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(in_process, jobs))
    scores = [result.get("mean_return", result.get("error")) for result in results]
    assert min(scores) >= 0.8, scores


LANGUAGE = TrainConfig(
    env="tests.learning.signals:Signals",
    algorithm="mappo",
    steps=60_000,
    horizon=12,
    epochs=4,
    threads=1,
    vector=VectorConfig(num_envs=64, backend="serial"),
    policy=PolicyConfig(hidden=(64,)),
    ppo=PPOConfig(gamma=0.95, entropy_coef=0.05, entropy_final=0.0, value_coef=1.0),
    mappo=MAPPOConfig(networks="per_agent"),
    optimizer=OptimizerConfig(learning_rate=5e-3, max_grad_norm=10.0),
    log=LogConfig(board="off"),
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_speaker_and_a_listener_of_different_kinds_agree_on_a_language(tmp_path):
    runs = [fugu.train(config=LANGUAGE, runs=tmp_path, seed=seed) for seed in SEEDS]
    scores = [run.evaluate(400).mean for run in runs]
    assert min(scores) >= 0.9, scores


@pytest.mark.learning
@pytest.mark.timeout(1800)
def test_simple_spread_and_speaker_listener_improve(tmp_path):
    pytest.importorskip("mpe2")
    for env in ("simple_spread_v3", "simple_speaker_listener_v4"):
        run = train(f"mpe2.{env}:parallel_env", 0, tmp_path, steps=400_000)
        curve = [row["episode/return"] for row in run.metrics() if "episode/return" in row]
        start, end = np.mean(curve[:3]), np.mean(curve[-len(curve) // 5 :])
        assert end > start + 0.15 * abs(start), (env, start, end)
