"""Gymnasium's MuJoCo tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fugu.algorithm.config import PPOConfig
from fugu.policy.config import PolicyConfig
from fugu.trainer.config import OptimizerConfig, TrainConfig
from fugu.vector.config import VectorConfig


def _mujoco(env: str, **changes: Any) -> TrainConfig:
    base: dict[str, Any] = {
        "env": env,
        "steps": 1_000_000,
        "horizon": 128,
        "minibatch": 512,
        "epochs": 10,
        "vector": VectorConfig(num_envs=16),
        "policy": PolicyConfig(hidden=(64, 64), share=False, normalize_observation=True),
        "ppo": PPOConfig(entropy_coef=0.0, normalize_reward=True, reward_clip=10.0),
        "optimizer": OptimizerConfig(learning_rate=1e-3),
    }
    return TrainConfig(**{**base, **changes})


def _humanoid(env: str, steps: int) -> TrainConfig:
    """Return the config of a humanoid, with seventeen joints: batches twice as large, and small moves at the start."""
    return _mujoco(
        env,
        steps=steps,
        minibatch=1024,
        epochs=5,
        vector=VectorConfig(num_envs=32),
        policy=PolicyConfig(hidden=(256, 256), activation="relu", initial_std=0.3, share=False, normalize_observation=True),
        ppo=PPOConfig(lam=0.9, entropy_coef=0.0, normalize_reward=True, reward_clip=10.0),
        optimizer=OptimizerConfig(learning_rate=3e-4),
    )


TASKS = (
    *("Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "HumanoidStandup-v5", "InvertedDoublePendulum-v5"),
    *("InvertedPendulum-v5", "Pusher-v5", "Reacher-v5", "Swimmer-v5", "Walker2d-v5"),
)

PRESETS: Mapping[str, Callable[[], TrainConfig]] = {
    **{task: partial(_mujoco, task) for task in TASKS},
    "Walker2d-v5": lambda: _mujoco(
        "Walker2d-v5",
        policy=PolicyConfig(hidden=(64, 64), initial_std=0.5, share=False, normalize_observation=True),
    ),
    # Some seeds need more than a million steps to find out how to hop.
    "Hopper-v5": lambda: _mujoco("Hopper-v5", steps=2_000_000),
    # Slow strokes pay late: next to no discount, advantages that reach as far as the segments, which are whole episodes, and values
    # in units of their own.
    "Swimmer-v5": lambda: _mujoco(
        "Swimmer-v5",
        horizon=1000,
        minibatch=1000,
        vector=VectorConfig(num_envs=8),
        ppo=PPOConfig(gamma=0.9999, lam=0.998, entropy_coef=0.0, normalize_reward=True, reward_clip=10.0, normalize_value=True),
        optimizer=OptimizerConfig(learning_rate=6e-4, schedule="constant"),
    ),
    # Once it balances there is little left in the advantages but noise: brought to deviation 1, they would make it fall again.
    "InvertedDoublePendulum-v5": lambda: _mujoco(
        "InvertedDoublePendulum-v5",
        policy=PolicyConfig(hidden=(64, 64), initial_std=0.5, share=False, normalize_observation=True),
        ppo=PPOConfig(
            entropy_coef=0.0, normalize_reward=True, reward_clip=10.0, normalize_value=True, normalize_advantage="none"
        ),
        optimizer=OptimizerConfig(learning_rate=5e-4),
    ),
    "Ant-v5": lambda: _mujoco(
        "Ant-v5",
        policy=PolicyConfig(hidden=(64, 64), initial_std=0.4, share=False, normalize_observation=True),
        optimizer=OptimizerConfig(learning_rate=5e-4),
    ),
    "HalfCheetah-v5": lambda: _mujoco(
        "HalfCheetah-v5",
        policy=PolicyConfig(hidden=(256, 256), activation="relu", initial_std=0.15, share=False, normalize_observation=True),
        ppo=PPOConfig(gamma=0.98, lam=0.92, entropy_coef=0.0, normalize_reward=True, reward_clip=10.0),
        optimizer=OptimizerConfig(learning_rate=3e-4),
    ),
    "Humanoid-v5": lambda: _humanoid("Humanoid-v5", 3_000_000),
    "HumanoidStandup-v5": lambda: _humanoid("HumanoidStandup-v5", 2_000_000),
}
