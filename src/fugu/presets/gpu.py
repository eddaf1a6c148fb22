"""Settings that change if environments and policy are on one GPU: a hundred times as many environments, every step used once.

A GPU takes as long for ten thousand environments as for one, so batches are large, and new steps cost less than using old ones
again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fugu.algorithm.config import PPOConfig
from fugu.policy.config import PolicyConfig
from fugu.trainer.config import OptimizerConfig, TrainConfig
from fugu.vector.config import VectorConfig


def _cartpole() -> TrainConfig:
    return TrainConfig(
        env="cartpole",
        steps=100_000_000,
        horizon=32,
        minibatch=65536,
        epochs=1,
        device="cuda",
        vector=VectorConfig(num_envs=16384),
        ppo=PPOConfig(entropy_coef=0.0, value_coef=0.01),
        optimizer=OptimizerConfig(learning_rate=1e-2, max_grad_norm=1.0),
    )


def _breakout() -> TrainConfig:
    return TrainConfig(
        env="breakout",
        steps=800_000_000,
        horizon=64,
        minibatch=32768,
        epochs=1,
        device="cuda",
        vector=VectorConfig(num_envs=8192),
        policy=PolicyConfig(hidden=(128, 128), activation="relu"),
        ppo=PPOConfig(normalize_value=True, entropy_coef=0.003),
        optimizer=OptimizerConfig(learning_rate=3e-3),
    )


PRESETS: Mapping[str, Callable[[], TrainConfig]] = {"cartpole": _cartpole, "breakout": _breakout}
