"""Layers of a world model: linear, RMS norm, SiLU, one after the other, and perhaps a linear one after them.

``params`` are weight ``[out, in]``, bias and scale of each layer, and weight and bias of the last one if that is only linear.

The native kernel takes a few rows at a time through all layers and back, so that what is between them never leaves the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fugu import native as core
from fugu.ops.norm import EPSILON, norm_silu

WIDEST = 1024
"""numbers of a layer's input or output; the native kernels are for small layers"""


def stack(x: Tensor, params: Sequence[Tensor]) -> Tensor:
    """Return ``[*rows, out]`` of ``x [*rows, in]``."""
    if not takes(x, params):
        return stack_reference(x, params)
    if torch.is_grad_enabled() and (x.requires_grad or any(p.requires_grad for p in params)):
        return _Native.apply(x, *params)
    rows, y = _rows(x), x.new_empty(*x.shape[:-1], params[-1].shape[0])
    core.native.stack_forward(array(rows), arrays(params), EPSILON, array(_rows(y)), [], None, threads())
    return y


def stack_reference(x: Tensor, params: Sequence[Tensor]) -> Tensor:
    """Compute ``stack`` layer by layer."""
    for i in range(0, len(params), 3):
        x = F.linear(x, params[i], params[i + 1])
        x = norm_silu(x, params[i + 2]) if i + 2 < len(params) else x
    return x


def takes(x: Tensor, params: Sequence[Tensor]) -> bool:
    """Say whether the native kernels compute with these parameters, which are all of one kind."""
    if core.native is None or torch.is_autocast_enabled(x.device.type):
        return False
    return plain(x) and plain(params[0]) and max(p.shape[-1] for p in params) <= WIDEST


def plain(x: Tensor) -> bool:
    return x.is_cpu and x.dtype is torch.float32


class _Native(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *params: Tensor) -> Tensor:
        rows, layers = _rows(x), -(-len(params) // 3)
        y = x.new_empty(*x.shape[:-1], params[-1].shape[0])
        kept = [x.new_empty(len(rows), len(scale)) for scale in params[2::3]]
        inverse = x.new_empty(layers, len(rows))
        core.native.stack_forward(
            array(rows), arrays(params), EPSILON, array(_rows(y)), arrays(kept), array(inverse), threads()
        )
        ctx.save_for_backward(rows, inverse, *kept, *params)
        ctx.count, ctx.shape = len(kept), x.shape
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        rows, inverse, *rest = ctx.saved_tensors
        kept, params = rest[: ctx.count], rest[ctx.count :]
        grad_x = torch.empty_like(rows) if ctx.needs_input_grad[0] else None
        grads = [torch.empty_like(p, memory_format=torch.contiguous_format) for p in params]
        core.native.stack_backward(
            array(rows),
            arrays(params),
            EPSILON,
            arrays(kept),
            array(inverse),
            array(_rows(grad_y)),
            None if grad_x is None else array(grad_x),
            arrays(grads),
            threads(),
        )
        return (None if grad_x is None else grad_x.view(ctx.shape), *grads)


def _rows(x: Tensor) -> Tensor:
    return x.contiguous().view(-1, x.shape[-1])


def array(tensor: Tensor) -> np.ndarray:
    """Return a view of a contiguous tensor's memory, else of a copy."""
    return tensor.detach().contiguous().numpy()


def arrays(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    return [array(tensor) for tensor in tensors]


def threads() -> int:
    return core.threads or torch.get_num_threads()
