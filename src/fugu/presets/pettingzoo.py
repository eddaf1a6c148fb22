"""PettingZoo environments, by the function that makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fugu.algorithm.config import PPOConfig
from fugu.policy.config import PolicyConfig
from fugu.trainer.config import OptimizerConfig, TrainConfig
from fugu.vector.config import VectorConfig


def simple_spread() -> TrainConfig:
    """Return the config of three agents with one network; an episode is 25 steps."""
    return TrainConfig(
        env="mpe2.simple_spread_v3:parallel_env",
        steps=1_000_000,
        horizon=25,
        minibatch=600,
        epochs=4,
        vector=VectorConfig(num_envs=32),
        policy=PolicyConfig(normalize_observation=True),
        ppo=PPOConfig(gamma=0.95, normalize_reward=True, reward_clip=10.0),
        optimizer=OptimizerConfig(learning_rate=7e-4),
    )


PRESETS: Mapping[str, Callable[[], TrainConfig]] = {"mpe2.simple_spread_v3:parallel_env": simple_spread}
