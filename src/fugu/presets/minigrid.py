"""MiniGrid: small rooms seen through a window of 7 x 7 symbols. The ``mission`` text is part of the observation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fugu.algorithm.config import PPOConfig
from fugu.policy.config import PolicyConfig
from fugu.trainer.config import OptimizerConfig, TrainConfig
from fugu.vector.config import VectorConfig


def _minigrid(env: str, **changes: Any) -> TrainConfig:
    base: dict[str, Any] = {
        "env": env,
        "steps": 500_000,
        "horizon": 64,
        "minibatch": 512,
        "epochs": 4,
        "vector": VectorConfig(num_envs=32),
        "policy": PolicyConfig(hidden=(128,), activation="relu"),
        # most minibatches hold no success at all: brought to deviation 1, their advantages would be noise
        "ppo": PPOConfig(entropy_coef=0.005, normalize_advantage="none"),
        "optimizer": OptimizerConfig(learning_rate=1e-3),
    }
    return TrainConfig(**{**base, **changes})


TASKS = (
    *("MiniGrid-Empty-5x5-v0", "MiniGrid-Empty-8x8-v0", "MiniGrid-Empty-Random-5x5-v0", "MiniGrid-FourRooms-v0"),
    *("MiniGrid-DoorKey-5x5-v0", "MiniGrid-DoorKey-6x6-v0", "MiniGrid-GoToDoor-5x5-v0", "MiniGrid-LavaGapS5-v0"),
)

PRESETS: Mapping[str, Callable[[], TrainConfig]] = {
    **{task: partial(_minigrid, task) for task in TASKS},
    # A random walk succeeds in one episode of ten: enough to normalise by. One sees a part of a room, and has to know where one has
    # been: a memory, and segments as long as an episode.
    "MiniGrid-FourRooms-v0": lambda: _minigrid(
        "MiniGrid-FourRooms-v0",
        steps=4_000_000,
        horizon=128,
        minibatch=1024,
        policy=PolicyConfig(hidden=(128,), activation="relu", core="mingru", core_size=256),
        ppo=PPOConfig(entropy_coef=0.01, entropy_final=0.001),
        optimizer=OptimizerConfig(learning_rate=5e-4),
    ),
    # a random walk seldom finds the key, the door and the goal
    "MiniGrid-DoorKey-6x6-v0": lambda: _minigrid("MiniGrid-DoorKey-6x6-v0", steps=1_000_000),
}
