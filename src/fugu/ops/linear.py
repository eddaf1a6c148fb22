"""A fully connected layer, ``x @ weight.T + bias``: torch's, or on a GPU under autocast kernels of our own beside torch's product.

In bfloat16 torch multiplies, with sums in float32. What is done here is what would otherwise cost as much as the product: rows and
weights get as many numbers as the fast kernels for products want (a multiple of ``ALIGNED``, with zeros), the activation's gradient
and the bias's are one pass over memory, and in a rollout weights are rounded once (``half.py``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fugu.gpu import use
from fugu.ops.half import dtype_of_products, kept
from fugu.ops.sequence import boxed, wide

ALIGNED = 8
"""numbers of bfloat16 that make 16 bytes"""
ACTIVATIONS = {"none": 0, "relu": 1, "tanh": 2}
"""the numbers are those of columns.h"""
THREADS, SUM_BLOCKS = 256, 512
"""of a sum over rows, whatever the card: how it is split is part of what is computed"""


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return ``x [*rows, inputs]`` through the layer, ``[*rows, outputs]``."""
    if (x.is_cuda or use.emulated) and takes_half(x, weight, bias):
        return half_linear(x, weight, bias)
    return F.linear(x, weight, bias)


def takes_half(x: Tensor, *parameters: Tensor) -> bool:
    """Say whether ``half_linear`` is to be used: under autocast to bfloat16, on a device with our kernels."""
    return (
        x.is_floating_point()
        and use.ready(x, half=True)
        and dtype_of_products(x) == torch.bfloat16
        and x.dim() in (2, 3)
        and x.numel() > 0
        and use.ready(*parameters)
    )


def half_linear(x: Tensor, weight: Tensor, bias: Tensor, activation: str = "none") -> Tensor:
    """Return bfloat16 ``[rows, outputs]`` or ``[steps, rows, outputs]``, wherever the rows of ``x`` lie in memory."""
    return _Linear.apply(x, weight, bias, activation)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
        outputs, inputs = weight.shape
        rows = half_rows(x)
        half_weight = kept((id(weight), "padded"), lambda: padded(weight))
        half_bias = kept((id(bias), "padded"), lambda: padded(bias))
        if activation == "relu":
            y = torch._addmm_activation(half_bias, rows, half_weight.t())
        else:
            y = torch.addmm(half_bias, rows, half_weight.t())
        if activation == "tanh":
            y.tanh_()
        ctx.save_for_backward(rows, half_weight, None if activation == "none" else y)
        ctx.activation, ctx.shape, ctx.given = ACTIVATIONS[activation], (outputs, inputs), (x.shape, x.dtype)
        return y[:, :outputs].unflatten(0, x.shape[:-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, y = ctx.saved_tensors
        (outputs, inputs), (shape, dtype) = ctx.shape, ctx.given
        d = d_y.flatten(0, -2)
        d = d.contiguous() if len(weight) == outputs else F.pad(d, (0, len(weight) - outputs))
        d, d_bias = summed(d, y, ctx.activation)
        d_x = (d @ weight)[:, :inputs].to(dtype).unflatten(0, shape[:-1]) if ctx.needs_input_grad[0] else None
        return d_x, (d.t() @ rows)[:outputs, :inputs].float(), d_bias[:outputs], None


def half_rows(x: Tensor) -> Tensor:
    """Return ``[rows, inputs]``, or ``[steps, rows, inputs]`` one after the other, as bfloat16 with inputs padded."""
    width = x.shape[-1]
    if x.dtype == torch.bfloat16 and width % ALIGNED == 0 and x.is_contiguous():
        return x.flatten(0, -2)
    x = x if x.stride(-1) == 1 else x.contiguous()
    x = x if x.dim() == 3 else x.unsqueeze(0)
    outer, inner, size = x.shape[0], x.shape[1], _up(width)
    out = x.new_empty(outer * inner, size, dtype=torch.bfloat16)
    run = use.kernel("columns.h", "half_rows", "spiiii", x.device, *wide(x, size=width))
    run(use.blocks(out.numel() // 4, THREADS), THREADS, boxed(x), out, inner, len(out), width, size)
    return out


def padded(weight: Tensor) -> Tensor:
    """Return a weight or bias in bfloat16, with zeros so that every axis is a multiple of ``ALIGNED``."""
    missing = [pad for size in reversed(weight.shape) for pad in (0, _up(size) - size)]
    half = weight.to(torch.bfloat16)
    return F.pad(half, missing) if any(missing) else half.contiguous()


def summed(d: Tensor, y: Tensor | None = None, activation: int = 0) -> tuple[Tensor, Tensor]:
    """Return ``d [rows, size]``, a gradient, and its sum over rows in float32; with ``y``, what ``activation`` put out, before that."""
    rows, size = d.shape
    total = torch.empty(size, dtype=torch.float32, device=d.device)
    before = d if y is None else torch.empty_like(d)
    given = wide(d, *([] if y is None else [y]), size=size)
    across = size // 4 if "FUGU_WIDE 4" in given else size
    grid = min(use.blocks(rows, max(1, THREADS // across)), SUM_BLOCKS)
    partial = torch.empty(grid, size, dtype=torch.float32, device=d.device)
    first = use.kernel("columns.h", "column_sums", "ppippii", d.device, *given)
    first((grid, use.blocks(across, THREADS)), THREADS, d, y, activation, None if y is None else before, partial, rows, size)
    use.kernel("columns.h", "add_partials", "ppii", d.device)(use.blocks(size, 32), THREADS, partial, total, grid, size)
    return before, total


def _up(size: int) -> int:
    return (size + ALIGNED - 1) // ALIGNED * ALIGNED
