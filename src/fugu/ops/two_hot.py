"""Numbers as classes of ``bins [count]``: an odd number of them, in ascending order and symmetric around 0.

A target is put between the two bins around it, in proportion (two-hot). torch takes a dozen passes over the logits for what the
native kernels do in one, and one for the gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fugu import native as core
from fugu.ops.stack import array, threads


def two_hot_mean(logits: Tensor, bins: Tensor) -> Tensor:
    """Return the mean ``[*batch]`` of ``logits [*batch, count]``; that of equal logits is exactly 0."""
    if not _takes(logits, bins) or (torch.is_grad_enabled() and logits.requires_grad):
        return two_hot_mean_reference(logits, bins)
    mean = logits.new_empty(logits.shape[:-1])
    core.native.two_hot_mean(array(_rows(logits)), array(bins), array(mean.view(-1)), threads())
    return mean


def two_hot_mean_reference(logits: Tensor, bins: Tensor) -> Tensor:
    chance, half = logits.softmax(-1), len(bins) // 2
    return ((chance[..., half + 1 :] - chance[..., :half].flip(-1)) * bins[half + 1 :]).sum(-1)


def two_hot_loss(logits: Tensor, bins: Tensor, targets: Tensor) -> Tensor:
    """Return the sum ``[*batch]`` of the cross entropies of ``logits [*batch, count]`` and each of ``targets [*batch, n]``."""
    if not (_takes(logits, bins) and targets.is_cpu and targets.dtype is torch.float32) or targets.requires_grad:
        return two_hot_loss_reference(logits, bins, targets)
    return _Loss.apply(logits, bins, targets)


def two_hot_loss_reference(logits: Tensor, bins: Tensor, targets: Tensor) -> Tensor:
    above, share = between(bins, targets)
    picked = torch.lerp(logits.gather(-1, above - 1), logits.gather(-1, above), share)
    return targets.shape[-1] * logits.logsumexp(-1) - picked.sum(-1)


def between(bins: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bin above ``y``, and its share of the two around it."""
    y = y.clamp(bins[0], bins[-1]).contiguous()
    above = torch.searchsorted(bins, y, right=True).clamp(1, len(bins) - 1)
    low, high = bins[above - 1], bins[above]
    return above, (y - low) / (high - low)


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, bins: Tensor, targets: Tensor) -> Tensor:
        rows, targets = _rows(logits), _rows(targets)
        log_sum, loss = rows.new_empty(len(rows)), logits.new_empty(logits.shape[:-1])
        core.native.two_hot_loss(array(rows), array(bins), array(targets), array(log_sum), array(loss.view(-1)), threads())
        ctx.save_for_backward(rows, bins, targets, log_sum)
        ctx.shape = logits.shape
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, bins, targets, log_sum = ctx.saved_tensors
        grad_logits = torch.empty_like(rows)
        core.native.two_hot_backward(
            array(rows), array(bins), array(targets), array(log_sum), array(grad.reshape(-1)), array(grad_logits), threads()
        )
        return grad_logits.view(ctx.shape), None, None


def _takes(logits: Tensor, bins: Tensor) -> bool:
    return core.native is not None and logits.is_cpu and logits.dtype is bins.dtype is torch.float32


def _rows(x: Tensor) -> Tensor:
    return x.contiguous().view(-1, x.shape[-1])
