"""Settings for an environment without a preset, chosen from its kind (native or Python), its action space and its observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gs

from fugu.algorithm.config import PPOConfig
from fugu.emulation.build import build, is_built, load
from fugu.emulation.env import EnvSpec
from fugu.emulation.factory import factories
from fugu.emulation.native import is_name, native_spec
from fugu.policy.config import PolicyConfig
from fugu.spaces import Layout
from fugu.trainer.config import OptimizerConfig, TrainConfig
from fugu.vector.config import VectorConfig
from fugu.vector.serial import Serial


def general(env: Any, env_kwargs: Mapping[str, Any], start_timeout: float) -> TrainConfig:
    """Build one copy of ``env`` within ``start_timeout`` seconds, inspect it, and return a config for it."""
    name = load(build(env)) if is_built(env) else env
    native = is_name(name)
    spec = native_spec(name, env_kwargs) if native else _look(env, env_kwargs, start_timeout)
    continuous = any(isinstance(leaf.space, gs.Box) for leaf in Layout(spec.action_space).leaves)
    image = any(leaf.dtype == np.uint8 and len(leaf.shape) >= 2 for leaf in Layout(spec.observation_space).leaves)
    agents = spec.num_agents
    # A native environment costs nothing, so many of them make large batches; a Python one is the slowest part, so its steps are
    # used several times.
    num_envs = max(16, 1024 // agents) if native else 16
    horizon = 32 if native else 128
    return TrainConfig(
        env=env if isinstance(env, str) else spec.name,
        env_kwargs=dict(env_kwargs),
        steps=10_000_000 if native else 1_000_000,
        horizon=horizon,
        minibatch=_quarter(num_envs * agents) * horizon,
        epochs=2 if native else 4,
        vector=VectorConfig(num_envs=num_envs),
        policy=PolicyConfig(
            hidden=(512,) if image else (64, 64),
            activation="relu" if image else "tanh",
            share=image or not continuous,
            normalize_observation=True,
        ),
        ppo=PPOConfig(normalize_reward=True, reward_clip=10.0, entropy_coef=0.0 if continuous else 0.01),
        optimizer=OptimizerConfig(learning_rate=3e-4 if continuous or image else 1e-3),
    )


def _quarter(segments: int) -> int:
    """Return about a quarter of the segments, such that they divide into equal parts."""
    return next((segments // parts for parts in (4, 3, 5, 6, 2) if segments % parts == 0), segments)


def _look(env: Any, env_kwargs: Mapping[str, Any], start_timeout: float) -> EnvSpec:
    one = Serial(factories(env, 1, env_kwargs), VectorConfig(start_timeout=start_timeout))
    one.close()
    return one.spec
