"""Native arcade games, the maze and the board game."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fugu.algorithm.config import PPOConfig, SelfPlayConfig
from fugu.policy.config import PolicyConfig
from fugu.trainer.config import OptimizerConfig, TrainConfig
from fugu.vector.config import VectorConfig


def _arcade(env: str, **changes: Any) -> TrainConfig:
    base: dict[str, Any] = {
        "env": env,
        "steps": 10_000_000,
        "horizon": 64,
        "minibatch": 8192,
        "epochs": 2,
        "vector": VectorConfig(num_envs=512),
        "policy": PolicyConfig(hidden=(128, 128), activation="relu"),
        "ppo": PPOConfig(normalize_value=True),
        "optimizer": OptimizerConfig(learning_rate=2e-3),
    }
    return TrainConfig(**{**base, **changes})


SELF_PLAY: Mapping[str, Callable[[], TrainConfig]] = {
    "connect4": lambda: _arcade(
        "connect4",
        algorithm="self_play",
        steps=8_500_000,
        horizon=16,
        epochs=4,
        vector=VectorConfig(num_envs=1024),
        policy=PolicyConfig(hidden=(256, 128), activation="relu", kinds=3),
        ppo=PPOConfig(normalize_value=True, entropy_final=0.0),
        # opponents that stray lead to boards that good players never see, and threats on them must be blocked as well
        self_play=SelfPlayConfig(past=0.8, noise=0.5),
        optimizer=OptimizerConfig(learning_rate=1e-3),
    ),
}

PRESETS: Mapping[str, Callable[[], TrainConfig]] = {
    "breakout": lambda: _arcade(
        "breakout",
        steps=40_000_000,
        minibatch=16384,
        vector=VectorConfig(num_envs=1024),
        # Updates that move the policy far make play collapse, at times below random play. Slower steps alone do not prevent that;
        # giving up the rest of a batch does.
        ppo=PPOConfig(normalize_value=True, entropy_coef=0.003, target_kl=0.01),
        optimizer=OptimizerConfig(learning_rate=1e-3),
    ),
    "pong": lambda: _arcade("pong", steps=5_000_000),
    "snake": lambda: _arcade("snake", vector=VectorConfig(num_envs=64)),
    "tetris": lambda: _arcade("tetris"),
    "maze": lambda: _arcade("maze", policy=PolicyConfig(hidden=(128,), activation="relu", core="mingru", core_size=128)),
    # Many games at once, and play that stays varied for long: two who know each other see few boards, and strangers lead to others.
    "connect4": lambda: _arcade(
        "connect4",
        steps=3_000_000,
        horizon=16,
        vector=VectorConfig(num_envs=1024),
        ppo=PPOConfig(normalize_value=True, entropy_coef=0.03, entropy_final=0.0),
        optimizer=OptimizerConfig(learning_rate=1e-3),
    ),
}
