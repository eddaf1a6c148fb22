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
    horizon = 32
    if native:
        # Steps cost nothing, so many of them make large batches, and each is used twice.
        num_envs, passes, epochs = max(16, 1024 // agents), 1, 2
        minibatch = _quarter(num_envs * agents) * horizon
    else:
        # Steps are the slowest part and often few: small batches follow each other quickly. Segments are short, so that a small
        # minibatch holds several of them: rows of one segment are much alike. Minibatches divide the batch for any --num-envs.
        num_envs, passes = 8, 4
        if agents == 1:
            minibatch, epochs = 2 * horizon, 10
        else:
            # Agents of one environment share moments, often rewards, and each is noise to the others: learned from as often as the
            # rows of one agent alone, that noise makes them worse than they began.
            minibatch, epochs = 4 * agents * horizon, 2
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
        # Where all rewards are costs, a network that begins at 0 expects the most of what nobody has seen yet, and agents that can
        # leave for there do. In units of mean 0 it expects the usual.
        ppo=PPOConfig(
            normalize_reward=True,
            reward_clip=10.0,
            entropy_coef=0.0 if continuous else 0.01,
            normalize_value=not native and agents > 1,
        ),
        # The rate falls to 0 over the steps, so it can begin above the usual 3e-4, at which images stay.
        optimizer=OptimizerConfig(learning_rate=3e-4 if image or (native and continuous) else 1e-3),
    )


def _quarter(segments: int) -> int:
    """Return about a quarter of the segments, such that they divide into equal parts."""
    return next((segments // parts for parts in (4, 3, 5, 6, 2) if segments % parts == 0), segments)


def _look(env: Any, env_kwargs: Mapping[str, Any], start_timeout: float) -> EnvSpec:
    one = Serial(factories(env, 1, env_kwargs), VectorConfig(start_timeout=start_timeout))
    one.close()
    return one.spec
