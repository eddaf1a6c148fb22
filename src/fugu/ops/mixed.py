"""Probabilities of which a share is spread evenly over the classes. torch's softmax of a few classes takes longer than all the rest."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fugu import native as core
from fugu.ops.stack import array, threads


def mixed(logits: Tensor, classes: int, even: float) -> Tensor:
    """Return the probabilities ``[*batch, variables, classes]`` of ``logits [*batch, variables * classes]``."""
    if core.native is None or not (logits.is_cpu and logits.dtype is torch.float32) or even >= 1:
        return mixed_reference(logits, classes, even)
    return _Native.apply(logits, classes, even)


def mixed_reference(logits: Tensor, classes: int, even: float) -> Tensor:
    return (1 - even) * logits.unflatten(-1, (-1, classes)).softmax(-1) + even / classes


class _Native(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, classes: int, even: float) -> Tensor:
        chance = torch.empty(logits.shape)
        core.native.mixed(array(_rows(logits)), classes, even, array(_rows(chance)), threads())
        chance = chance.unflatten(-1, (-1, classes))
        ctx.save_for_backward(chance)
        ctx.shape, ctx.even = logits.shape, even
        return chance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (chance,) = ctx.saved_tensors
        grad_logits = torch.empty(ctx.shape)
        columns = (chance.flatten(-2), grad.flatten(-2), grad_logits)
        core.native.mixed_backward(*(array(_rows(x)) for x in columns), chance.shape[-1], ctx.even, threads())
        return grad_logits, None, None


def _rows(x: Tensor) -> Tensor:
    return x.contiguous().view(-1, x.shape[-1])
