"""Precisions of matrix products: on a GPU those its generation supports, on a CPU float32, or bfloat16 if it has instructions for
that and torch does the work. Weights, optimizer, advantages and losses are float32 everywhere."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import nn

from fugu.errors import ConfigError
from fugu.gpu.use import has_tensor_cores
from fugu.policy.encoder import Image

CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""names of instructions on bfloat16, as Linux gives them for x86 and ARM"""


def check_precision(precision: str, device: torch.device) -> None:
    """Raise a ConfigError, before anything is built, if ``device`` cannot compute in this precision."""
    if device.type == "cpu" and precision == "bf16" and not cpu_multiplies_bf16():
        raise ConfigError("precision=bf16: this CPU has no instructions for it and would be slower; leave it at auto")
    if precision in ("tf32", "bf16") and not has_tensor_cores(device):
        raise ConfigError(
            f"precision={precision} needs a GPU of compute capability 8.0 (Ampere) or newer, {device} is older; leave it at auto"
        )


def check_policy(precision: str, policy: nn.Module) -> None:
    """Raise a ConfigError if ``precision`` would change nothing for this policy."""
    if precision == "bf16" and getattr(policy, "computed_natively", False):
        raise ConfigError(
            "precision=bf16: this network is computed by fugu's own kernels, which are float32; it is for networks that see images "
            "and for your own. Leave it at auto"
        )


def would_gain(precision: str, policy: nn.Module) -> bool:
    """Return whether bfloat16 would make learning on this CPU much faster."""
    on_cpu = all(parameter.is_cpu for parameter in policy.parameters())
    return precision != "bf16" and on_cpu and any(isinstance(m, Image) for m in policy.modules()) and cpu_multiplies_bf16()


@cache
def cpu_multiplies_bf16() -> bool:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return bool(CPU_FLAGS & set(flags.split()))
