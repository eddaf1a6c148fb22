"""Learning from examples before learning from rewards: making shown actions more probable (supervised warm-up).

In: a policy and rows of what it would see, with what it should do. Out: the same policy, changed. ``save_weights`` writes it for
``--policy.start``, which gives a run its first weights. An environment that has ``examples(count, seed)``, which returns such rows,
can be learned from at the start of a run (``ImitationConfig``).
"""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fugu.errors import ConfigError, FuguError
from fugu.policy.choices import Chooser
from fugu.trainer.config import ImitationConfig, OptimizerConfig
from fugu.trainer.optimizer import Optimizer
from fugu.vector.device import DeviceVec
from fugu.vector.vecenv import VecEnv


def learn_examples(policy: nn.Module, vec: VecEnv | DeviceVec, config: ImitationConfig, *, seed: int) -> list[float]:
    """Imitate the examples of ``vec``'s environments, as ``config`` says: the same for the same seed. Returns the losses."""
    shown = None
    if isinstance(vec, VecEnv):
        with contextlib.suppress(ConfigError):  # environments that cannot even be asked
            shown = vec.access("apply", "examples", (_shown, config.examples, seed), {}, [0])[0]
    if shown is None:
        raise ConfigError(
            f"imitation.examples={config.examples}, but {vec.spec.name} has no examples(count, seed); leave it out, or give weights: "
            "--policy.start FILE"
        )
    device = next(policy.parameters()).device
    obs, action = (torch.from_numpy(np.ascontiguousarray(rows)).to(device) for rows in shown)
    settings = {"steps": config.example_steps, "batch": config.example_batch, "learning_rate": config.example_rate}
    return imitate(policy, obs, action.flatten(1) if action.ndim > 1 else action[:, None], seed=seed, **settings)  # type: ignore[arg-type]


def _shown(env: Any, count: int, seed: int) -> Any:
    return env.examples(count, seed) if hasattr(env, "examples") else None


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
    """Return the mean negative log-probability over all choices that were made; ``obs [rows, *row]``, ``action [rows, dims]``."""
    first = torch.ones((len(obs), 1), dtype=torch.bool, device=obs.device)
    state = torch.zeros((len(obs), policy.state_size), device=obs.device) if policy.state_size else None
    logprob = policy.judge(obs[:, None], state, first, action[:, None], None).logprob[:, 0]
    counts = policy.counts(action)
    return -torch.where(counts, logprob, 0.0).sum() / counts.sum().clamp(min=1)


def save_weights(policy: nn.Module, path: str | Path) -> None:
    """Write the weights as one safetensors file."""
    save_file({name: tensor.contiguous() for name, tensor in policy.state_dict().items()}, str(path))
