"""Learn from examples before learning from rewards: make what was shown more probable (supervised warm-up).

In: a policy and rows of what it would see, with what it should do. Out: the same policy, changed. ``save_weights`` writes it where
``--policy.start`` finds it, for a run to begin with.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fugu.errors import ConfigError, FuguError
from fugu.policy.choices import Chooser
from fugu.trainer.config import OptimizerConfig
from fugu.trainer.optimizer import Optimizer


def imitate(
    policy: nn.Module,
    obs: Tensor,
    action: Tensor,
    *,
    steps: int,
    batch: int = 128,
    learning_rate: float = 1e-3,
    seed: int = 0,
    optimizer: OptimizerConfig | None = None,
) -> list[float]:
    """Take ``steps`` gradient steps on random rows of ``obs [rows, *row]`` and ``action [rows, dims]``; returns the loss of each, in
    nats per choice. ``optimizer`` is for settings other than a constant ``learning_rate``."""
    if len(obs) != len(action) or len(obs) == 0:
        raise ConfigError(f"imitate: expected as many observations as actions, and some; got {len(obs)} and {len(action)}")
    config = optimizer or OptimizerConfig(learning_rate=learning_rate, schedule="constant", max_grad_norm=1.0)
    follow = Optimizer({"policy": policy}, config)
    generator = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    for step in range(steps):
        follow.set_progress(step / steps)
        rows = torch.randint(len(obs), (batch,), generator=generator).to(obs.device)
        loss = imitation_loss(cast(Chooser, policy), obs[rows], action[rows])
        norm = follow.step(loss)
        losses.append(loss.item())
        if not (math.isfinite(losses[-1]) and math.isfinite(norm.item())):
            raise FuguError(
                f"imitate: the loss was {losses[-1]} at step {step}; try a smaller learning_rate than {learning_rate}"
            )
    return losses


def imitation_loss(policy: Chooser, obs: Tensor, action: Tensor) -> Tensor:
    """Mean over all choices that were made of their negative log-probability; ``obs [rows, *row]``, ``action [rows, dims]``."""
    first = torch.ones((len(obs), 1), dtype=torch.bool, device=obs.device)
    state = torch.zeros((len(obs), policy.state_size), device=obs.device) if policy.state_size else None
    logprob = policy.judge(obs[:, None], state, first, action[:, None], None).logprob[:, 0]
    counts = policy.counts(action)
    return -torch.where(counts, logprob, 0.0).sum() / counts.sum().clamp(min=1)


def save_weights(policy: nn.Module, path: str | Path) -> None:
    """Write the weights as one safetensors file."""
    save_file({name: tensor.contiguous() for name, tensor in policy.state_dict().items()}, str(path))
