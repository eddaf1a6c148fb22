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
    if native:
        # Steps cost nothing, so many of them make large batches, and each is used twice.
        num_envs, horizon, passes, epochs = max(16, 1024 // agents), 32, 1, 2
        minibatch = _quarter(num_envs * agents) * horizon
    else:
        # Steps are the slowest part and often few, so small batches follow each other quickly and are used ten times. Segments must be
        # short for a minibatch of 64 rows to hold more than one of them: rows of one segment are much alike. An even number of passes
        # makes an even number of segments, whatever --num-envs is.
        passes = 4 if agents == 1 else 2
        num_envs, horizon, epochs = max(1, 32 // (passes * agents)), 32, 10
        minibatch = 2 * horizon
    return TrainConfig(
        env=env if isinstance(env, str) else spec.name,
        env_kwargs=dict(env_kwargs),
        steps=10_000_000 if native else 1_000_000,
        horizon=horizon,
        passes=passes,
        minibatch=minibatch,
        epochs=epochs,
        vector=VectorConfig(num_envs=num_envs),
        policy=PolicyConfig(
            hidden=(512,) if image else (64, 64),
            activation="relu" if image else "tanh",
            share=image or not continuous,
            normalize_observation=True,
        ),
        # Rewards of any size come to one scale, so that one weight of the value loss and of the entropy bonus does for all.
        ppo=PPOConfig(normalize_reward=True, reward_clip=10.0, entropy_coef=0.0 if continuous else 0.01),
        # The rate falls to 0 over the steps, so it can begin above the usual 3e-4. The networks of images are larger, and the batches of
        # native environments move a deviation of continuous actions far.
        optimizer=OptimizerConfig(learning_rate=3e-4 if image or (native and continuous) else 1e-3),
    )


def _quarter(segments: int) -> int:
    """Return about a quarter of the segments, such that they divide into equal parts."""
    return next((segments // parts for parts in (4, 3, 5, 6, 2) if segments % parts == 0), segments)


def _look(env: Any, env_kwargs: Mapping[str, Any], start_timeout: float) -> EnvSpec:
    one = Serial(factories(env, 1, env_kwargs), VectorConfig(start_timeout=start_timeout))
    one.close()
    return one.spec
