"""The sanity suite: small environments that each test one thing, solved in seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fugu.algorithm.config import PPOConfig
from fugu.policy.config import PolicyConfig
from fugu.trainer.config import OptimizerConfig, TrainConfig
from fugu.vector.config import VectorConfig


def _sanity(env: str, **changes: Any) -> TrainConfig:
    base: dict[str, Any] = {
        "env": env,
        "steps": 300_000,
        "horizon": 16,
        "minibatch": 1024,
        "epochs": 2,
        "vector": VectorConfig(num_envs=256, num_workers=1),
        "policy": PolicyConfig(hidden=(64,)),
        "ppo": PPOConfig(),
        "optimizer": OptimizerConfig(learning_rate=3e-3),
    }
    return TrainConfig(**{**base, **changes})


PRESETS: Mapping[str, Callable[[], TrainConfig]] = {
    "bandit": lambda: _sanity("bandit"),
    "squared": lambda: _sanity("squared", steps=1_000_000),
    "password": lambda: _sanity("password"),
    "memory": lambda: _sanity(
        "memory",
        steps=1_000_000,
        epochs=3,
        policy=PolicyConfig(hidden=(64,), core="lstm", core_size=64),
        # Most rows ask for nothing: normalised, their noise would drown the few that do, and the policy must stay undecided until
        # it has learned what to remember.
        ppo=PPOConfig(gamma=0.9, entropy_coef=0.1, entropy_final=0.0, normalize_advantage="none"),
    ),
    "stochastic": lambda: _sanity("stochastic", horizon=32, minibatch=2048),
    "continuous": lambda: _sanity("continuous", steps=500_000, ppo=PPOConfig(gamma=0.95, entropy_coef=0.0)),
    "spaces": lambda: _sanity("spaces", steps=1_000_000),
    "multiagent": lambda: _sanity("multiagent"),
    "knapsack_cmdp": lambda: _sanity("knapsack_cmdp", horizon=32, minibatch=2048),
}
