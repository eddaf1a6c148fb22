"""Teams: MAPPO on environments of several agents. Independent PPO is the same with ``--mappo.critic own``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fugu.algorithm.config import MAPPOConfig, PPOConfig
from fugu.policy.config import PolicyConfig
from fugu.trainer.config import OptimizerConfig, TrainConfig
from fugu.vector.config import VectorConfig


def hidden_bonus() -> TrainConfig:
    """Return a config whose batch has 128 rows that count, so that 40 batches tell a critic that sees the context from one that
    does not."""
    return TrainConfig(
        env="hidden_bonus",
        algorithm="mappo",
        steps=128 * 60,
        horizon=2,
        epochs=4,
        vector=VectorConfig(num_envs=32, num_workers=1),
        policy=PolicyConfig(hidden=(64,)),
        ppo=PPOConfig(gamma=0.9, entropy_coef=0.0, value_coef=1.0),
        optimizer=OptimizerConfig(learning_rate=1e-2, schedule="constant", max_grad_norm=10.0),
    )


def foraging() -> TrainConfig:
    return TrainConfig(
        env="foraging",
        algorithm="mappo",
        steps=1_000_000,
        horizon=32,
        minibatch=256 * 32,
        epochs=3,
        vector=VectorConfig(num_envs=128, num_workers=1),
        policy=PolicyConfig(hidden=(128, 128)),
        ppo=PPOConfig(gamma=0.98, entropy_coef=0.01, entropy_final=0.0, value_coef=1.0),
        mappo=MAPPOConfig(critic="agent"),
        optimizer=OptimizerConfig(learning_rate=2e-3, max_grad_norm=10.0),
    )


def _particles(env: str, **changes: Any) -> TrainConfig:
    """Return a config of the multi-particle environments. Episodes are cut off after 25 steps, so values are those of going on for
    ever: with the paper's gamma of 0.99 the critic lags behind them for longer than the training lasts, and what was learned is
    lost again."""
    base: dict[str, Any] = {
        "env": f"mpe2.{env}:parallel_env",
        "algorithm": "mappo",
        "steps": 1_000_000,
        "horizon": 25,
        "epochs": 10,
        "vector": VectorConfig(num_envs=64),
        "policy": PolicyConfig(normalize_observation=True),
        "ppo": PPOConfig(gamma=0.95, entropy_coef=0.01, value_coef=1.0, value_huber=10.0, value_clip=0.2),
        "optimizer": OptimizerConfig(learning_rate=7e-4, max_grad_norm=10.0),
    }
    return TrainConfig(**{**base, **changes})


def simple_spread() -> TrainConfig:
    """Return the config of three agents of one kind."""
    return _particles("simple_spread_v3")


def speaker_listener() -> TrainConfig:
    """Return the config of two agents of different kinds, with separate networks."""
    return _particles("simple_speaker_listener_v4", mappo=MAPPOConfig(networks="per_agent"))


PRESETS: Mapping[str, Callable[[], TrainConfig]] = {
    "hidden_bonus": hidden_bonus,
    "foraging": foraging,
    "mpe2.simple_spread_v3:parallel_env": simple_spread,
    "mpe2.simple_speaker_listener_v4:parallel_env": speaker_listener,
}
