"""Settings of the algorithms that learn from recorded episodes, for data sets of any environment: those of the literature.

In: a data set in the place of an environment. The environment of the config is the one that it was recorded in, which evaluations play.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fugu.policy.config import PolicyConfig
from fugu.rollout.config import DataConfig
from fugu.trainer.config import EvalConfig, OptimizerConfig, TrainConfig
from fugu.trainer.recordings import env_of
from fugu.vector.config import VectorConfig


def offline(
    algorithm: str, env: str, env_kwargs: Mapping[str, Any] | None = None, *, together: int = 16, **changes: Any
) -> TrainConfig:
    """Return the config for ``env``, the path of a data set or the name of an environment."""
    env, kwargs, path = recorded_in(env)
    base: dict[str, Any] = {
        "env": env,
        "env_kwargs": {**kwargs, **(env_kwargs or {})},
        "algorithm": algorithm,
        "steps": 20_000,
        "horizon": 1,
        "minibatch": 256,
        "threads": 1,  # of layers this small several threads get in each other's way
        "data": DataConfig(path=path, together=together),
        "vector": VectorConfig(num_envs=1),
        "policy": PolicyConfig(hidden=(256, 256), activation="relu", normalize_observation=True),
        "eval": EvalConfig(greedy=True, episodes=50),
        "optimizer": OptimizerConfig(learning_rate=3e-4, schedule="constant", max_grad_norm=math.inf, eps=1e-8),
    }
    return TrainConfig(**{**base, **changes})


def decision_transformer(env: str, env_kwargs: Mapping[str, Any] | None = None) -> TrainConfig:
    """Return the config of ``dt``: 20 steps of context, 64 of them to a gradient step."""
    return offline(
        "dt",
        env,
        env_kwargs,
        steps=10_000,
        horizon=20,
        minibatch=1280,
        together=4,
        policy=PolicyConfig(width=128, layers=3, attention_heads=1, normalize_observation=True),
        optimizer=OptimizerConfig(
            learning_rate=1e-3, schedule="constant", warmup=0.05, max_grad_norm=0.25, eps=1e-8, weight_decay=1e-4
        ),
    )


def recorded_in(path: str) -> tuple[str, Mapping[str, Any], str]:
    """Return the environment that the data set at ``path`` was recorded in, its settings, and the whole path of the data
    set; ``path`` itself and no data set if there is none."""
    if not Path(path).exists() or Path(path).suffix in (".py", ".h"):
        return path, {}, ""
    from fugu.data import open

    env, kwargs, _ = env_of(open(path))
    return env, kwargs, str(Path(path).resolve())


GENERAL: dict[str, Callable[[str, Mapping[str, Any] | None], TrainConfig]] = {
    "bc": partial(offline, "bc"),
    "dt": decision_transformer,
    "iql": partial(offline, "iql"),
    "td3bc": partial(offline, "td3bc"),
}
