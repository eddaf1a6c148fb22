"""GAE and V-trace on the device, in one launch. ``ops/advantage.py`` says what is computed.

In: columns ``[segments, horizon]`` that may lie in memory segment by segment or step by step. Out: what a learner needs of them.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import torch
from torch import Tensor

from fugu.errors import SpaceError
from fugu.gpu.use import kernel

SEGMENTS, THREADS = 32, 256
"""of a block, as in trace.h"""
_COLUMN = struct.Struct("=Qqq")


class Trace(NamedTuple):
    """``[segments, horizon]``, in memory as ``value`` is."""

    advantage: Tensor
    """0 where masked"""
    target: Tensor | None
    """advantage + value"""
    surrogate: Tensor | None
    """what PPO multiplies with the ratio: the row's own error before V-trace weighs it, plus the corrected future; 0 where masked"""


def trace(
    value: Tensor,
    reward: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    bootstrap: Tensor,
    weights: tuple[float, float, float, float],
    *,
    ratio: Tensor | None = None,
    mask: Tensor | None = None,
    advantage: Tensor | None = None,
    target: bool = False,
    surrogate: bool = False,
) -> Trace:
    """Launch the kernel.

    ``weights``: gamma, gamma * lambda, rho_clip, c_clip. ``advantage`` is written if given; it may be ``reward`` or ``ratio``.
    """
    value = value.detach()
    if value.dim() != 2:
        raise SpaceError(f"value: expected [segments, horizon], got {list(value.shape)}")
    segments, horizon = value.shape
    out = Trace(
        torch.empty_like(value) if advantage is None else advantage,
        torch.empty_like(value) if target else None,
        torch.empty_like(value) if surrogate else None,
    )
    boxes = [
        _box("value", value, value),
        _box("reward", reward, value),
        _box("terminated", terminated, value, torch.bool),
        _box("truncated", truncated, value, torch.bool),
        _box("mask", mask, value, torch.bool),
        _box("ratio", ratio, value),
    ]
    outputs = [_box("out", tensor, value) for tensor in out]
    if bootstrap.shape != (segments,) or bootstrap.dtype != torch.float32 or bootstrap.device != value.device:
        raise SpaceError(f"bootstrap: expected float32[{segments}] on {value.device}, got {_described(bootstrap)}")
    if segments and horizon:
        run = kernel("trace.h", "trace", "sssssspsssiiiffff", value.device)
        sizes = (segments, horizon, int(value.stride(1) <= value.stride(0)))
        run((segments + SEGMENTS - 1) // SEGMENTS, THREADS, *boxes, bootstrap.detach().contiguous(), *outputs, *sizes, *weights)
    return out


def estimate_cuda(
    columns: tuple[Tensor, ...], ratio: Tensor | None, mask: Tensor, weights: tuple[float, float, float, float]
) -> tuple[Tensor, Tensor]:
    """Compute ``estimate`` of ``ops/advantage.py``."""
    value, reward, terminated, truncated, bootstrap = columns
    with_ratio = ratio is not None
    out = trace(
        value, reward, terminated, truncated, bootstrap, weights, ratio=ratio, mask=mask, target=True, surrogate=with_ratio
    )
    advantage = out.surrogate if with_ratio else out.advantage
    assert advantage is not None and out.target is not None
    return advantage, out.target


def _box(name: str, column: Tensor | None, like: Tensor, dtype: torch.dtype = torch.float32) -> bytes:
    if column is None:
        return _COLUMN.pack(0, 0, 0)
    if column.shape != like.shape or column.dtype != dtype or column.device != like.device:
        what = str(dtype).removeprefix("torch.")
        raise SpaceError(f"{name}: expected {what}{list(like.shape)} on {like.device}, got {_described(column)}")
    return _COLUMN.pack(column.data_ptr(), *column.stride())


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {tensor.device}"
