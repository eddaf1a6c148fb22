"""MinGRU's gates and scan on the device, one launch forwards and one backwards. ``policy/recurrent.py`` says what is computed.

Shapes: ``gates [T, B, 3H]`` (candidate, gate, highway, before their activations), ``x [T, B, H]``, ``first [T, B]``, states
``[B, H]``. Gates and x are both float32 or both bfloat16, and so is what comes out; states are float32. Time and batch may lie in
memory in either order.
"""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fugu.cuda.module import Kernel
from fugu.cuda.sample import blocks
from fugu.cuda.use import kernel

_SEQUENCE = struct.Struct("=Qqq")
THREADS = 256


def mingru(gates: Tensor, x: Tensor, start: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """``out [T, B, H]`` and the state after the last step; gradients flow to all but ``first``."""
    return _MinGRU.apply(gates, x, start, first)


def mingru_step(gates: Tensor, x: Tensor, start: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """One step without gradients: ``gates [B, 3H]``, ``x [B, H]``, ``first [B]`` -> ``out [B, H]``; the state is written to ``last``.

    ``start`` and ``last`` may be columns of a wider state.
    """
    out = torch.empty_like(x)
    gates, x, first = channels_last(gates.unsqueeze(0)), channels_last(x.unsqueeze(0)), first.unsqueeze(0)
    _forward(gates, x, start, first, out.unsqueeze(0), None, last)
    return out


class _MinGRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, x: Tensor, start: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        gates, x, start = channels_last(gates), channels_last(x), channels_last(start)
        out, last = torch.empty_like(x), start.new_empty(start.shape)
        h = start.new_empty(x.shape) if any(ctx.needs_input_grad) else None
        _forward(gates, x, start, first, out, h, last)
        ctx.save_for_backward(gates, x, start, first, h)
        ctx.set_materialize_grads(False)
        return out, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_last: Tensor | None) -> tuple[Tensor | None, ...]:
        gates, x, start, first, h = ctx.saved_tensors
        d_out = torch.zeros_like(x) if d_out is None else channels_last(d_out)
        d_last = None if d_last is None else d_last.contiguous()
        d_gates, d_x, d_start = torch.empty_like(gates), torch.empty_like(x), start.new_empty(start.shape)
        steps, rows, size = x.shape
        inputs = (boxed(gates), boxed(x), boxed(first), start, start.stride(0), h, boxed(d_out), d_last)
        run = _kernel("mingru_backward", "ssspqpspsspiii", x)
        run(blocks(rows * size, THREADS), THREADS, *inputs, boxed(d_gates), boxed(d_x), d_start, steps, rows, size)
        return d_gates, d_x, d_start, None


def _forward(gates: Tensor, x: Tensor, start: Tensor, first: Tensor, out: Tensor, h: Tensor | None, last: Tensor) -> None:
    steps, rows, size = x.shape
    run = _kernel("mingru_forward", "ssspqsppqiii", x)
    inputs = (boxed(gates), boxed(x), boxed(first), start, start.stride(0))
    run(blocks(rows * size, THREADS), THREADS, *inputs, boxed(out), h, last, last.stride(0), steps, rows, size)


def _kernel(name: str, signature: str, like: Tensor) -> Kernel:
    defines = ("FUGU_BF16 1",) if like.dtype == torch.bfloat16 else ()
    return kernel("mingru.h", name, signature, like.device, *defines)


def channels_last(tensor: Tensor) -> Tensor:
    """As it is, if the numbers of a row are neighbours."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def boxed(tensor: Tensor) -> bytes:
    """``struct Sequence`` over ``[T, B]`` or ``[T, B, channels]``."""
    return _SEQUENCE.pack(tensor.data_ptr(), tensor.stride(0), tensor.stride(1))
