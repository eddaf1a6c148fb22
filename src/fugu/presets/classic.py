"""Classic control: the native environments, and Gymnasium's own where steps cost more and are used more often."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fugu.algorithm.config import PPOConfig
from fugu.policy.config import PolicyConfig
from fugu.trainer.config import OptimizerConfig, TrainConfig
from fugu.vector.config import VectorConfig


def _cartpole(env: str, **changes: Any) -> TrainConfig:
    """Return the config of a cartpole. Values are large (up to 1 / (1 - gamma) = 100), so their loss gets a small weight instead of
    drowning the policy's."""
    base: dict[str, Any] = {
        "env": env,
        "steps": 500_000,
        "horizon": 32,
        "minibatch": 1024,
        "epochs": 4,
        "vector": VectorConfig(num_envs=64),
        "ppo": PPOConfig(entropy_coef=0.0, value_coef=0.01),
        "optimizer": OptimizerConfig(learning_rate=5e-3, max_grad_norm=1.0),
    }
    return TrainConfig(**{**base, **changes})


def _classic(env: str, **changes: Any) -> TrainConfig:
    base: dict[str, Any] = {
        "env": env,
        "steps": 2_000_000,
        "horizon": 32,
        "minibatch": 2048,
        "epochs": 4,
        "vector": VectorConfig(num_envs=256),
        "policy": PolicyConfig(normalize_observation=True),
        "ppo": PPOConfig(gamma=0.99, lam=0.95, entropy_coef=0.0, normalize_reward=True, normalize_value=True),
        "optimizer": OptimizerConfig(learning_rate=2e-3),
    }
    return TrainConfig(**{**base, **changes})


PYTHON: dict[str, Any] = {
    "vector": VectorConfig(num_envs=32),
    "horizon": 64,
    "minibatch": 512,
    "epochs": 4,
}
"""an environment in Python steps slowly: fewer of them, and their steps are used more often"""

LANDER = PPOConfig(gamma=0.999, lam=0.98, entropy_coef=0.01, normalize_reward=True, normalize_value=True)
PENDULUM = PPOConfig(gamma=0.9, lam=0.95, entropy_coef=0.0, normalize_reward=True, normalize_value=True)

PRESETS: Mapping[str, Callable[[], TrainConfig]] = {
    # Not normalised, advantages fade as it is solved: one run in twenty ended between 400 and 475 otherwise.
    "cartpole": lambda: _cartpole("cartpole", ppo=PPOConfig(entropy_coef=0.0, value_coef=0.01, normalize_advantage="none")),
    "acrobot": lambda: _classic("acrobot"),
    "mountain_car": lambda: _classic("mountain_car", steps=4_000_000),
    "pendulum": lambda: _classic("pendulum", ppo=PENDULUM),
    "CartPole-v1": lambda: _cartpole("CartPole-v1", minibatch=256, steps=300_000),
    "Acrobot-v1": lambda: _classic("Acrobot-v1", **PYTHON, steps=500_000),
    "MountainCar-v0": lambda: _classic("MountainCar-v0", **PYTHON, steps=1_500_000),
    "Pendulum-v1": lambda: _classic("Pendulum-v1", **PYTHON, steps=500_000, ppo=PENDULUM),
    "LunarLander-v3": lambda: _classic("LunarLander-v3", **PYTHON, steps=1_500_000, ppo=LANDER),
}
