"""PPO's loss on the device: forward and gradients in one pass, and what comes before it. ``ops/ppo_loss.py`` says what is computed.

Nothing here waits for the device: losses and sums stay there.
"""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fugu.gpu.use import block_of, blocks, kernel
from fugu.ops.sample import words_categorical, words_gaussian

SUMS = ("policy", "value", "entropy", "kl", "clip_fraction", "ratio")
MAX_BLOCKS = 1024
"""of the loss, whatever the card: how the sums are split is part of what is computed"""
MOMENT_BLOCKS = 256
_SETTINGS = struct.Struct("=QQQQQQQfff4x")


def can_take(heads: int, choices: int, reals: int, dims: int) -> bool:
    """Say whether the kernels know a distribution: one categorical head, or real numbers only, of a size that fits a block."""
    if heads == dims == 1:
        return block_of(words_categorical(choices)) is not None
    return reals == dims and block_of(words_gaussian(reals)) is not None


def ppo_loss(
    params: Tensor,
    value: Tensor,
    action: Tensor,
    columns: tuple[Tensor, ...],
    *,
    clip: float,
    value_clip: float,
    value_coef: float,
    entropy_coef: float | Tensor,
    action_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the loss and the sums named by ``SUMS``, of ``params [rows, size]``, ``action`` int64 [rows] or float32 [rows, dims].

    ``columns``: old_logprob, advantage, old_value, value_target and weight, each [rows]. ``entropy_coef`` may be a tensor on the
    device, read when the kernel runs. Gradients flow to ``params`` and ``value``.
    """
    if not isinstance(entropy_coef, Tensor):
        entropy_coef = torch.full((), entropy_coef, device=params.device)
    return _PpoLoss.apply(params, value, action, entropy_coef, action_mask, (clip, value_clip, value_coef), *columns)


class _PpoLoss(torch.autograd.Function):
    """Forward computes the gradients; backward scales them, where the loss is not the end of all."""

    @staticmethod
    def forward(
        ctx: Any,
        params: Tensor,
        value: Tensor,
        action: Tensor,
        entropy_coef: Tensor,
        action_mask: Tensor | None,
        settings: tuple[float, float, float],
        *columns: Tensor,
    ) -> tuple[Tensor, Tensor]:
        device, rows = params.device, params.shape[0]
        params, value, action = params.contiguous(), value.contiguous(), action.contiguous()
        inputs = [value, *(column.contiguous() for column in columns), entropy_coef]  # alive until the kernel is launched
        boxed = _SETTINGS.pack(*(tensor.data_ptr() for tensor in inputs), *settings)
        d_params, d_value = torch.empty_like(params), torch.empty_like(value)
        sums, loss = torch.empty(len(SUMS), device=device), torch.empty((), device=device)
        categorical = not action.is_floating_point()
        words = words_categorical(params.shape[1]) if categorical else words_gaussian(action.shape[1])
        block = block_of(words)
        assert block is not None
        grid = max(1, min(blocks(rows, block), MAX_BLOCKS))
        partial = torch.empty(len(SUMS), grid, device=device)
        if categorical:
            mask = None if action_mask is None else action_mask.contiguous()
            run = kernel("loss.h", "ppo_categorical", "sppppppiq", device)
            outputs = (d_params, d_value, partial, params.shape[1], rows)
            run(grid, block, boxed, params, mask, action, *outputs, shared=4 * block * words)
        else:
            run = kernel("loss.h", "ppo_gaussian", "spppppiq", device)
            outputs = (d_params, d_value, partial, action.shape[1], rows)
            run(grid, block, boxed, params, action, *outputs, shared=4 * block * words)
        finish = kernel("loss.h", "ppo_finish", "ppppfi", device)
        finish(1, 256, partial, entropy_coef, sums, loss, settings[2], grid)
        ctx.mark_non_differentiable(sums)
        ctx.set_materialize_grads(False)
        ctx.gradients, ctx.scaled_by = (d_params, d_value), None
        return loss, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        nothing = [None] * 9
        if grad_loss is None:
            return None, None, *nothing
        d_params, d_value = ctx.gradients
        if ctx.scaled_by is not None:  # the graph was kept: what the first pass made of them is taken back
            again = grad_loss / ctx.scaled_by
            return d_params * again, d_value * again, *nothing
        ctx.scaled_by = grad_loss
        run = kernel("loss.h", "scale_unless_one", "ppqpq", d_params.device)
        run(128, 256, grad_loss.contiguous(), d_params, d_params.numel(), d_value, d_value.numel())
        return d_params, d_value, *nothing


def weighed(advantage: Tensor, mask: Tensor, *, normalize: bool) -> tuple[Tensor, Tensor]:
    """Return ``advantage``, with ``normalize`` of mean 0 and deviation 1 over rows that count, and ``row_weight(mask)``: two launches.

    Both are shaped like ``mask``; the memory order of the two must be the same, or one of them is copied.
    """
    if advantage.stride() != mask.stride() or not _dense(mask):
        advantage, mask = advantage.contiguous(), mask.contiguous()
    rows, device = mask.numel(), mask.device
    weight = torch.empty_like(advantage)
    out = torch.empty_like(advantage) if normalize else None
    if rows:
        grid = min(blocks(rows, 256), MOMENT_BLOCKS)
        partial = torch.empty(grid, 3, device=device)
        kernel("moments.h", "moments", "pppq", device)(grid, 256, advantage, mask, partial, rows)
        weigh = kernel("moments.h", "weigh", "pppippq", device)
        weigh(min(blocks(rows, 256), MAX_BLOCKS), 256, advantage, mask, partial, grid, out, weight, rows)
    return advantage if out is None else out, weight


def _dense(tensor: Tensor) -> bool:
    """Say whether it fills its memory without gaps, in any order of its axes: then the order of rows does not matter to a sum."""
    return tensor.is_contiguous() or tensor.t().is_contiguous() if tensor.dim() == 2 else tensor.is_contiguous()
