"""Is there room in memory for what a replay plays and learns from at once? Asked before any of it is allocated."""

from __future__ import annotations

import psutil
import torch

from fugu.emulation.columns import present
from fugu.emulation.env import EnvSpec
from fugu.errors import ConfigError
from fugu.rollout.acting import Forms
from fugu.rollout.config import ReplayConfig
from fugu.rollout.ring import row_bytes
from fugu.spaces.views import TORCH_DTYPES
from fugu.vector.device import DeviceVec
from fugu.vector.vecenv import VecEnv


def check_batches(
    vec: VecEnv | DeviceVec, config: ReplayConfig, minibatch: int | None, kept: Forms, device: torch.device
) -> None:
    """Raise a ConfigError if what is played or learned from at once needs more memory than is free. ``kept``: columns of a policy."""
    row, free = row_bytes(rows_of(vec.spec) | dict(kept)), free_on(device)
    asked = (vec.num_agents * config.every, f"replay.every={config.every}"), (minibatch or 0, f"minibatch={minibatch}")
    for rows, setting in asked:
        if rows * row > free:
            raise ConfigError(
                f"{setting} with {vec.num_agents} agents make batches of {shown(rows * row)}, and {shown(free)} of memory are free; "
                "choose smaller numbers"
            )


def rows_of(spec: EnvSpec) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return the columns of environments that a replay always keeps."""
    return {form.name: (form.shape, TORCH_DTYPES[form.dtype]) for form in present(spec, choices=0)}


def free_on(device: torch.device) -> int:
    """Return the bytes of memory that are free on a device."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available


def shown(size: float) -> str:
    """Return a number of bytes as people read it."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
