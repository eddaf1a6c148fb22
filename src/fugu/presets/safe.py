"""Tasks with costs, learned under limits on them (``--algorithm safe_ppo``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fugu.algorithm.config import PPOConfig, SafeConfig
from fugu.policy.config import PolicyConfig
from fugu.presets import mujoco
from fugu.trainer.config import OptimizerConfig, TrainConfig, with_algorithm
from fugu.vector.config import VectorConfig

VELOCITY = {
    f"fugu/{body}Velocity-v5": f"{body}-v5" for body in ("Ant", "HalfCheetah", "Hopper", "Humanoid", "Swimmer", "Walker2d")
}
"""tasks of ``envs/velocity.py`` -> Gymnasium's task behind each"""


def _knapsack() -> TrainConfig:
    return TrainConfig(
        env="knapsack_cmdp",
        algorithm="safe_ppo",
        steps=400_000,
        horizon=32,
        minibatch=1024,
        epochs=4,
        vector=VectorConfig(num_envs=128, num_workers=1),
        policy=PolicyConfig(hidden=(32,)),
        ppo=PPOConfig(entropy_final=0.0),
        safe=SafeConfig(limit=(10.0,)),
        optimizer=OptimizerConfig(learning_rate=3e-3),
    )


def _point(algorithm: str) -> TrainConfig:
    """Return the config of a point task. Episodes are 250 steps long and all begin together: with this horizon some end in every
    second batch."""
    safe = algorithm == "safe_ppo"
    return TrainConfig(
        env="safe_point",
        algorithm="safe_ppo" if safe else "ppo",
        steps=2_000_000 if safe else 1_000_000,
        horizon=125,
        minibatch=1000,
        epochs=4,
        vector=VectorConfig(num_envs=64, num_workers=1),
        # normalised: the way to the nearest hazard is short, and would be a small number among large ones
        policy=PolicyConfig(hidden=(64, 64), share=False, initial_std=0.5, normalize_observation=True),
        ppo=PPOConfig(gamma=0.95, lam=0.9, entropy_coef=0.003, normalize_reward=True),
        **({"safe": SafeConfig(limit=(10.0,), ki=0.1, multiplier_start=1.0, cost_gamma=0.95, cost_lam=0.9)} if safe else {}),
        optimizer=OptimizerConfig(learning_rate=2e-3, final_rate=0.3),
    )


def _body(task: str) -> TrainConfig:
    """Return the settings of the body without a limit."""
    return dataclasses.replace(mujoco.PRESETS[VELOCITY[task]](), env=task)


def _velocity(task: str) -> TrainConfig:
    """Return the settings without a limit, except that learning goes on to the end: a policy that no longer moves cannot follow the
    price. And a batch is as long as an episode, so that the price follows the policy in every one; episodes of 1,000 steps that
    begin together end together."""
    base = with_algorithm(_body(task), "safe_ppo")
    changes: dict[str, Any] = {
        "horizon": 125,
        "passes": 8,
        "minibatch": 500,
        "vector": VectorConfig(num_envs=8),
        "policy": dataclasses.replace(base.policy, hidden=(64, 64)),
        "safe": SafeConfig(limit=(25.0,), ki=0.1),
        "optimizer": dataclasses.replace(base.optimizer, final_rate=0.2),
    }
    return dataclasses.replace(base, **changes)


FREE: Mapping[str, Callable[[], TrainConfig]] = {
    "safe_point": partial(_point, "ppo"),
    **{task: partial(_body, task) for task in VELOCITY},
}
"""the same tasks for PPO, which ignores costs"""

PRESETS: Mapping[str, Callable[[], TrainConfig]] = {
    "knapsack_cmdp": _knapsack,
    "safe_point": partial(_point, "safe_ppo"),
    **{task: partial(_velocity, task) for task in VELOCITY},
}
