"""Atari through ale-py, in the settings every paper uses (Machado et al. 2018, arXiv:1709.06009): frames of 84 x 84 grey pixels,
four of them stacked, each action held for four frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from fugu.algorithm.config import PPOConfig
from fugu.policy.config import PolicyConfig
from fugu.trainer.config import OptimizerConfig, TrainConfig
from fugu.vector.config import VectorConfig


def game(env: str, steps: int = 5_000_000) -> TrainConfig:
    """Return the config of any game; ``env`` is a Gymnasium id such as ``ALE/Pong-v5``."""
    return TrainConfig(
        env="fugu.envs.atari:make",
        env_kwargs={"game": env},
        steps=steps,
        horizon=64,
        minibatch=256,
        epochs=4,
        vector=VectorConfig(num_envs=64),
        policy=PolicyConfig(hidden=(512,), activation="relu"),
        ppo=PPOConfig(clip=0.1, entropy_coef=0.01, reward_clip=1.0),
        optimizer=OptimizerConfig(learning_rate=5e-4),
    )


PRESETS: Mapping[str, Callable[[], TrainConfig]] = {
    "ALE/Pong-v5": partial(game, "ALE/Pong-v5"),
    "ALE/MsPacman-v5": partial(game, "ALE/MsPacman-v5"),
    "ALE/SpaceInvaders-v5": partial(game, "ALE/SpaceInvaders-v5"),
    "ALE/Breakout-v5": partial(game, "ALE/Breakout-v5", 10_000_000),  # its curve rises that long
}
"""configs of the games that were trained to the end; all others get the same settings"""
