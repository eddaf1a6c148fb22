"""Settings of ``sac``: those of the literature for any environment, and smaller networks for small tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fugu.policy.config import PolicyConfig
from fugu.presets.mujoco import TASKS
from fugu.rollout.config import ReplayConfig
from fugu.trainer.config import OptimizerConfig, TrainConfig
from fugu.vector.config import VectorConfig


def general(env: str, env_kwargs: Mapping[str, Any] | None = None, **changes: Any) -> TrainConfig:
    """Return settings for any environment: a gradient step on 256 rows for each step of one environment, after 1,000 of them."""
    base: dict[str, Any] = {
        "env": env,
        "env_kwargs": env_kwargs or {},
        "algorithm": "sac",
        "steps": 1_000_000,
        "horizon": 1,
        "minibatch": 256,
        "vector": VectorConfig(num_envs=1),
        "policy": PolicyConfig(hidden=(256, 256), activation="relu", std="state"),
        # the policy acts on sixteen steps in a row before it learns from them: that costs no return, and the loop a sixteenth
        "replay": ReplayConfig(size=1_000_000, start=1_000, ratio=256, every=16),
        "optimizer": _optimizer(3e-4),
    }
    return TrainConfig(**{**base, **changes})


def _optimizer(rate: float) -> OptimizerConfig:
    return OptimizerConfig(learning_rate=rate, schedule="constant", max_grad_norm=math.inf, eps=1e-8)


def _small(env: str, **changes: Any) -> TrainConfig:
    """Return settings for a task that is solved in thousands of steps."""
    base: dict[str, Any] = {
        "steps": 20_000,
        "policy": PolicyConfig(hidden=(64, 64), activation="relu", std="state"),
        "replay": ReplayConfig(size=100_000, start=200, ratio=256, every=8),
        "optimizer": _optimizer(1e-3),
    }
    return general(env, **{**base, **changes})


PRESETS: Mapping[str, Callable[[], TrainConfig]] = {
    **{task: partial(general, task, replay=ReplayConfig(start=5_000, every=16)) for task in TASKS},
    "Pendulum-v1": partial(_small, "Pendulum-v1"),
    "pendulum": partial(_small, "pendulum"),
    "CartPole-v1": partial(_small, "CartPole-v1"),
    "cartpole": partial(_small, "cartpole"),
}
