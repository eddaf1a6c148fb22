"""A layer of MinGRU on the device. ``policy/recurrent.py`` says what is computed.

Shapes: ``x [T, B, H]``, ``weight [3H, H]`` and ``bias`` of the gates (candidate, gate, highway), ``first [T, B]``, states ``[B, H]``.
torch multiplies, in float32 or under autocast in bfloat16; activations and the walk through time are one launch forwards and one
backwards. ``x`` and what comes out are in the type of the products, states in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fugu.gpu.use import blocks, kernel
from fugu.ops.half import dtype_of_products, rounded
from fugu.ops.linear import summed
from fugu.ops.sequence import boxed, channels_last, wide

THREADS = 256
STEPS = 4
"""between states that are kept for the way back, as in mingru.h"""


def mingru(x: Tensor, weight: Tensor, bias: Tensor, start: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """``out [T, B, H]`` and the state after the last step; gradients flow to all but ``first``."""
    return _MinGRU.apply(x, weight, bias, start, first)


def mingru_step(x: Tensor, weight: Tensor, bias: Tensor, start: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """One step without gradients: ``x [B, H]``, ``first [B]`` -> ``out [B, H]``; the state is written to ``last``.

    ``start`` and ``last`` may be columns of a wider state.
    """
    dtype = dtype_of_products(x)
    x = x.to(dtype)
    gates = F.linear(x, rounded(weight, dtype), rounded(bias, dtype))
    out = torch.empty_like(x)
    _forward(gates.unsqueeze(0), channels_last(x.unsqueeze(0)), start, first.unsqueeze(0), out.unsqueeze(0), None, last)
    return out


class _MinGRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, start: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        dtype, ctx.given = dtype_of_products(x), x.dtype
        x, weight, bias, start = x.to(dtype).contiguous(), weight.to(dtype), bias.to(dtype), channels_last(start)
        gates = F.linear(x, weight, bias)  # [T, B, 3H]
        (steps, rows), size = x.shape[:2], x.shape[2]
        out, last = torch.empty_like(x), start.new_empty(start.shape)
        kept = start.new_empty(blocks(steps, STEPS), rows, size) if any(ctx.needs_input_grad) else None
        _forward(gates, x, start, first, out, kept, last)
        ctx.save_for_backward(gates, x, weight, first, kept)
        ctx.set_materialize_grads(False)
        return out, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_last: Tensor | None) -> tuple[Tensor | None, ...]:
        gates, x, weight, first, kept = ctx.saved_tensors
        d_out = torch.zeros_like(x) if d_out is None else channels_last(d_out)
        d_last = None if d_last is None else d_last.contiguous()
        d_gates, d_x, d_start = torch.empty_like(gates), torch.empty_like(x), torch.empty_like(kept[0])
        steps, rows, size = x.shape
        d_bias = kept.new_empty(rows, 3 * size)
        given = wide(gates, x, kept, d_out, d_x, size=size)
        run = kernel("mingru.h", "mingru_backward", "ssspspssppiii", x.device, *given)
        inputs = (boxed(gates), boxed(x), boxed(first), kept, boxed(d_out), d_last)
        outputs = (boxed(d_gates), boxed(d_x), d_start, d_bias)
        run(_grid(rows, size, given), THREADS, *inputs, *outputs, steps, rows, size)
        flat = d_gates.flatten(0, 1)
        if ctx.needs_input_grad[0]:  # what flows to x through the gates is added to what flows past them
            d_x.flatten(0, 1).addmm_(flat, weight)
        d_weight = (flat.t() @ x.flatten(0, 1)).float()
        return d_x.to(ctx.given), d_weight, summed(d_bias)[1], d_start, None


def _forward(gates: Tensor, x: Tensor, start: Tensor, first: Tensor, out: Tensor, kept: Tensor | None, last: Tensor) -> None:
    steps, rows, size = x.shape
    given = wide(gates, x, start, out, last, size=size)
    run = kernel("mingru.h", "mingru_forward", "ssspqsppqiii", x.device, *given)
    inputs = (boxed(gates), boxed(x), boxed(first), start, start.stride(0))
    run(_grid(rows, size, given), THREADS, *inputs, boxed(out), kept, last, last.stride(0), steps, rows, size)


def _grid(rows: int, size: int, given: tuple[str, ...]) -> int:
    return blocks(rows * size // (4 if "FUGU_WIDE 4" in given else 1), THREADS)
