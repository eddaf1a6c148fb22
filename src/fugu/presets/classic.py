"""Classic control, native and Gymnasium's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fugu.algorithm.config import PPOConfig
from fugu.policy.config import PolicyConfig
from fugu.trainer.config import OptimizerConfig, TrainConfig
from fugu.vector.config import VectorConfig


def cartpole() -> TrainConfig:
    return TrainConfig(
        env="cartpole",
        steps=1_000_000,
        horizon=32,
        minibatch=4096,
        epochs=2,
        vector=VectorConfig(num_envs=256),
        ppo=PPOConfig(gamma=0.98, lam=0.9, entropy_coef=0.0, value_coef=0.01),
        optimizer=OptimizerConfig(learning_rate=1e-2, max_grad_norm=10.0),
    )


PRESETS: Mapping[str, Callable[[], TrainConfig]] = {"cartpole": cartpole}
