"""Writing programs: a small transformer that imitates a few solutions first, and then learns from the rewards of its own programs.

With level 2 the held-out tasks are combinations of two operations that it never saw together. A batch is 32 tasks with 8 answers
each; while the sandbox runs those of one quarter, the policy writes the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fugu.algorithm.config_episodes import GRPOConfig
from fugu.policy.config import PolicyConfig
from fugu.trainer.config import ImitationConfig, OptimizerConfig, TrainConfig
from fugu.vector.config import VectorConfig


def _coding(**changes: Any) -> TrainConfig:
    base: dict[str, Any] = {
        "env": "coding",
        "env_kwargs": {"level": 2, "share_process": True},
        "steps": 256 * 400,
        "horizon": 1,
        "minibatch": 128,
        "threads": 1,  # the sandbox has use for the other cores
        "vector": VectorConfig(num_envs=256, batch_size=64),
        "policy": PolicyConfig(net="transformer"),
        "optimizer": OptimizerConfig(learning_rate=1e-3, schedule="linear", max_grad_norm=1.0),
        "imitation": ImitationConfig(examples=128, example_steps=100, example_rate=2e-3),
    }
    return TrainConfig(**{**base, **changes})


GRPO: Mapping[str, Callable[[], TrainConfig]] = {"coding": lambda: _coding(algorithm="grpo", grpo=GRPOConfig(group_size=8))}

TOKEN_PPO: Mapping[str, Callable[[], TrainConfig]] = {"coding": lambda: _coding(algorithm="token_ppo")}
