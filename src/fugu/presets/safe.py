"""Tasks with costs, learned under limits on them (``--algorithm safe_ppo``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fugu.algorithm.config import PPOConfig, SafeConfig
from fugu.policy.config import PolicyConfig
from fugu.trainer.config import OptimizerConfig, TrainConfig
from fugu.vector.config import VectorConfig

PRESETS: Mapping[str, Callable[[], TrainConfig]] = {
    "knapsack_cmdp": lambda: TrainConfig(
        env="knapsack_cmdp",
        algorithm="safe_ppo",
        steps=400_000,
        horizon=32,
        minibatch=1024,
        epochs=4,
        vector=VectorConfig(num_envs=128, num_workers=1),
        policy=PolicyConfig(hidden=(32,)),
        ppo=PPOConfig(entropy_final=0.0),
        safe=SafeConfig(limit=(10.0,)),
        optimizer=OptimizerConfig(learning_rate=3e-3),
    ),
}
