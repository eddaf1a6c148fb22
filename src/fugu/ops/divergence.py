"""The divergence of a world model's observed states from expected ones, and whom it moves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fugu import native as core
from fugu.ops.stack import array, arrays, threads


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """Return ``KL(p || q) [*batch]`` of probabilities ``[*batch, variables, classes]``, summed over the variables."""
    return (p * (p.log() - q.log())).sum((-2, -1))


def divergences(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``KL(p || q)`` twice: with a gradient of ``q`` alone, and with one of ``p`` alone."""
    if core.native is None or not (p.is_cpu and q.is_cpu and p.dtype is q.dtype is torch.float32):
        return divergences_reference(p, q)
    return _Native.apply(p, q)


def divergences_reference(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    return divergence(p.detach(), q), divergence(p, q.detach())


class _Native(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        found = p.new_empty(p.shape[:-2])
        core.native.divergence(
            array(p.flatten(0, -3).flatten(1)), array(q.flatten(0, -3).flatten(1)), array(found.view(-1)), threads()
        )
        ctx.save_for_backward(p, q)
        return found, found.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight_q: Tensor, weight_p: Tensor) -> tuple[Tensor, Tensor]:
        p, q = (x.flatten(0, -3).flatten(1) for x in ctx.saved_tensors)
        grads = torch.empty_like(p), torch.empty_like(q)
        weights = weight_p.reshape(-1), weight_q.reshape(-1)
        core.native.divergence_backward(*arrays((p, q, *weights)), *arrays(grads), threads())
        shape = ctx.saved_tensors[0].shape
        return grads[0].view(shape), grads[1].view(shape)
