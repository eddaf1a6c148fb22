"""An LSTM on the device: matrix products by torch, the rest of a step in one launch. ``policy/recurrent.py`` says what is meant.

Shapes: ``x [T, B, I]``, ``state [B, 2H]`` (h and c), ``first [T, B]``, weights as ``LSTM`` has them. Products are in float32 (or in
tf32, where torch is told so), or under autocast in bfloat16; cells and states are float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fugu.cuda.sample import blocks
from fugu.cuda.use import kernel

THREADS = 256


def lstm(
    x: Tensor, state: Tensor, first: Tensor, weight_in: Tensor, weight_state: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """``out [T, B, H]`` and the state after the last step; gradients flow to all but ``first``."""
    return _LSTM.apply(x, state, first, weight_in, weight_state, bias)


def lstm_step(
    x: Tensor, state: Tensor, first: Tensor, weight_in: Tensor, weight_state: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """One step without gradients: ``x [B, I]``, ``first [B]`` -> ``out [B, H]`` and the new state. Two products, two launches."""
    dtype = dtype_of_products(x)
    state = state.contiguous()
    gates = F.linear(x.to(dtype), weight_in.to(dtype), bias.to(dtype))
    size = weight_state.shape[1]
    h, out, after = gates.new_empty(len(x), size), gates.new_empty(len(x), size), torch.empty_like(state)
    _launch("lstm_enter", "pqpqpii", h, state, 2 * size, first, first.stride(0), h, *h.shape)
    gates.addmm_(h, weight_state.to(dtype).t())
    cell = (gates, state[:, size:], 2 * size, first, None, first.stride(0), out, None, None, after)
    _launch("lstm_forward", "ppqppqppppii", h, *cell, *h.shape)
    return out, after


def dtype_of_products(x: Tensor) -> torch.dtype:
    kind = x.device.type
    return (
        torch.bfloat16
        if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16
        else torch.float32
    )


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, state: Tensor, first: Tensor, weight_in: Tensor, weight_state: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        dtype, ctx.given = dtype_of_products(x), x.dtype
        x, weight_in, weight_state, bias = (tensor.to(dtype) for tensor in (x, weight_in, weight_state, bias))
        x, state = x.contiguous(), state.contiguous()
        gates = F.linear(x, weight_in, bias)  # [T, B, 4H]: the input's part of all rows in one product
        (steps, rows), size = x.shape[:2], weight_state.shape[1]
        h_in = gates.new_empty(steps, rows, size)  # h as each step takes it
        out, cells, last = torch.empty_like(h_in), state.new_empty(steps, rows, size), torch.empty_like(state)
        stride = first.stride(1)
        _launch("lstm_enter", "pqpqpii", x, state, 2 * size, first[0], stride, h_in[0], rows, size)
        for t in range(steps):
            gates[t].addmm_(h_in[t], weight_state.t())
            before, row = (cells[t - 1], size) if t else (state[:, size:], 2 * size)
            end = t + 1 == steps
            flags = (first[t], None if end else first[t + 1], stride)
            outputs = (out[t], None if end else h_in[t + 1], cells[t], last if end else None)
            _launch("lstm_forward", "ppqppqppppii", x, gates[t], before, row, *flags, *outputs, rows, size)
        ctx.save_for_backward(x, state, first, weight_in, weight_state, gates, cells, h_in)
        ctx.set_materialize_grads(False)
        return out, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_last: Tensor | None) -> tuple[Tensor | None, ...]:
        x, state, first, weight_in, weight_state, gates, cells, h_in = ctx.saved_tensors
        (steps, rows), size = x.shape[:2], weight_state.shape[1]
        d_out = None if d_out is None else d_out.contiguous()
        d_last = None if d_last is None else d_last.contiguous()
        d_gates, dc = torch.empty_like(gates), torch.empty_like(cells[0])
        dh: Tensor | None = None
        stride, wants_state = first.stride(1), ctx.needs_input_grad[1]
        for t in reversed(range(steps)):
            before, row = (cells[t - 1], size) if t else (state[:, size:], 2 * size)
            end = t + 1 == steps
            flags = (first[t], None if end else first[t + 1], stride)
            inputs = (gates[t], cells[t], before, row, *flags, None if d_out is None else d_out[t], size)
            outputs = (dh, d_last if end else None, dc, d_gates[t])
            _launch("lstm_backward", "pppqppqpqppppii", x, *inputs, *outputs, rows, size)
            if t or wants_state:
                dh = torch.mm(d_gates[t], weight_state)
        d_state = None
        if wants_state:
            d_state = torch.empty_like(state)
            _launch("lstm_leave", "pppqpii", x, dh, dc, first[0], stride, d_state, rows, size)
        flat = d_gates.flatten(0, 1)
        full = torch.float32  # of parameters, whatever the products are in
        return (
            (flat @ weight_in).view(x.shape).to(ctx.given) if ctx.needs_input_grad[0] else None,
            d_state,
            None,
            (flat.t() @ x.flatten(0, 1)).to(full),
            (flat.t() @ h_in.flatten(0, 1)).to(full),
            flat.sum(0, dtype=full),
        )


def _launch(name: str, signature: str, like: Tensor, *arguments: Any) -> None:
    """``like`` tells the device and the type of numbers; the last two arguments are rows and size."""
    defines = ("FUGU_BF16 1",) if like.dtype == torch.bfloat16 else ()
    rows, size = arguments[-2:]
    kernel("lstm.h", name, signature, like.device, *defines)(blocks(rows * size, THREADS), THREADS, *arguments)
