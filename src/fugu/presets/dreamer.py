"""Dreamer (``--algorithm dreamer``), for few steps of slow environments: settings for any, and those of some it was tried on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from fugu.algorithm.config_dreamer import DreamerConfig
from fugu.policy.config import PolicyConfig
from fugu.rollout.config import ReplayConfig
from fugu.trainer.config import CheckpointConfig, EvalConfig, OptimizerConfig, TrainConfig
from fugu.vector.config import VectorConfig


def dreamer(env: str, env_kwargs: Mapping[str, Any] | None = None, **changes: Any) -> TrainConfig:
    """Return the config of an environment. Segments of 32 rows, 16 of them to a gradient step; with a ratio of 128 that is a step for
    every 4 rows played."""
    config = TrainConfig(
        env=env,
        env_kwargs=env_kwargs or {},
        algorithm="dreamer",
        steps=100_000,
        horizon=32,
        minibatch=512,
        threads=1,  # of layers this small several threads get in each other's way
        vector=VectorConfig(num_envs=4, num_workers=1),
        policy=PolicyConfig(normalize_observation=True),
        replay=ReplayConfig(start=400, ratio=128),
        dreamer=DreamerConfig(),
        optimizer=OptimizerConfig(
            name="laprop", learning_rate=3e-4, schedule="constant", warmup=0.01, max_grad_norm=1000.0, eps=1e-20
        ),
        checkpoint=CheckpointConfig(every=1000),
    )
    return dataclasses.replace(config, **changes)


def _cartpole() -> TrainConfig:
    return dreamer(
        "CartPole-v1",
        steps=8_000,
        target=475.0,
        replay=ReplayConfig(size=100_000, start=400, ratio=256),
        eval=EvalConfig(every=250, episodes=20, greedy=True),
    )


PRESETS: Mapping[str, Callable[[], TrainConfig]] = {"CartPole-v1": _cartpole}
