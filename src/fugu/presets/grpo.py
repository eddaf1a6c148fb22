"""Learning from whole episodes, in groups that begin alike (GRPO) or by tokens. The horizon is the longest episode there can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from fugu.algorithm.config_episodes import GRPOConfig
from fugu.policy.config import PolicyConfig
from fugu.trainer.config import OptimizerConfig, TrainConfig
from fugu.vector.config import VectorConfig


def _grpo(env: str, **changes: Any) -> TrainConfig:
    return TrainConfig(env=env, algorithm="grpo", **changes)


def _reverse(algorithm: Literal["grpo", "token_ppo"]) -> TrainConfig:
    """Return a config with 32 prompts x 8 answers and two gradient steps. An untrained policy is hardly ever right, so parts of an
    answer are rewarded as well; with weights to begin with (--policy.start) --env.partial 0 is enough."""
    return TrainConfig(
        env="reverse",
        algorithm=algorithm,
        env_kwargs={"partial": 1.0},
        steps=50_000,
        horizon=1,
        minibatch=128,
        threads=1,
        vector=VectorConfig(num_envs=256, num_workers=1),
        policy=PolicyConfig(net="transformer"),
        **({"grpo": GRPOConfig(group_size=8)} if algorithm == "grpo" else {}),
        optimizer=OptimizerConfig(learning_rate=1e-3, schedule="constant", max_grad_norm=1.0),
    )


PRESETS: Mapping[str, Callable[[], TrainConfig]] = {
    "cartpole": lambda: _grpo(
        "cartpole",
        steps=600_000,
        horizon=500,
        minibatch=32 * 500,
        epochs=2,
        vector=VectorConfig(num_envs=64, num_workers=1),
        policy=PolicyConfig(hidden=(64, 64)),
        optimizer=OptimizerConfig(learning_rate=3e-3),
    ),
    "reverse": lambda: _reverse("grpo"),
}

TOKEN_PPO: Mapping[str, Callable[[], TrainConfig]] = {"reverse": lambda: _reverse("token_ppo")}
