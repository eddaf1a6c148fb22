"""An LSTM on the device. ``ops/lstm.py`` says what is computed.

Shapes: ``x [T, B, I]``, ``state [B, 2H]`` (h and c), ``first [T, B]``, weights as ``LSTM`` has them. Cells and states are float32.
Products are in float32 (tf32, where torch is told so): torch multiplies, and the rest of a step is one launch. Under autocast they
are in bfloat16, and a sequence whose size fits (``can_scan``) takes one launch each way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fugu.gpu import use
from fugu.ops.half import dtype_of_products, kept, rounded
from fugu.ops.linear import summed
from fugu.ops.sequence import boxed, channels_last, wide

THREADS = 256


def lstm(
    x: Tensor, state: Tensor, first: Tensor, weight_in: Tensor, weight_state: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ``out [T, B, H]`` and the state after the last step; gradients flow to all but ``first``."""
    return _LSTM.apply(x, state, first, weight_in, weight_state, bias)


def lstm_step(
    x: Tensor, state: Tensor, first: Tensor, weight_in: Tensor, weight_state: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ``out [B, H]`` of one row ``x [B, I]``, without gradients, and the new state: one product, two launches."""
    dtype, size = dtype_of_products(x), weight_state.shape[1]
    x, state = channels_last(x.to(dtype)), state.contiguous()
    rows, inputs = x.shape
    weight = kept(
        (id(weight_in), id(weight_state), dtype), lambda: torch.cat([weight_in, weight_state], 1).to(dtype)
    )  # [4H, I + H]
    joined = x.new_empty(rows, inputs + size)
    given = wide(x, state, size=inputs | size)  # multiples of 4 both, or not
    fours = 4 if "FUGU_WIDE 4" in given else 1
    join = use.kernel("lstm_step.h", "lstm_join", "pqpqpqpiii", x.device, *given)
    sources = (x, x.stride(0), state, 2 * size, first, first.stride(0))
    join(use.blocks(rows * (inputs + size) // fours, THREADS), THREADS, *sources, joined, rows, inputs, size)
    gates = F.linear(joined, weight, rounded(bias, dtype))
    out, after = x.new_empty(rows, size), torch.empty_like(state)
    cell = use.kernel("lstm_step.h", "lstm_cell", "ppqpqppii", x.device, *given)
    before = (state[:, size:], 2 * size, first, first.stride(0))
    cell(use.blocks(rows * size // fours, THREADS), THREADS, gates, *before, out, after, rows, size)
    return out, after


def can_scan(size: int) -> bool:
    """Say whether the recurrent weights fit the registers of a block."""
    return size % 16 == 0 and size <= 128


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
        ctx.set_materialize_grads(False)
        if dtype == torch.bfloat16 and can_scan(size):
            out, last, kept = _scan_forward(gates, state, first, weight_state, keeps=any(ctx.needs_input_grad))
            ctx.save_for_backward(x, state, first, weight_in, weight_state, *kept)
            return out, last
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
        return out, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_last: Tensor | None) -> tuple[Tensor | None, ...]:
        x, state, first, weight_in, weight_state, gates, cells, h_in = ctx.saved_tensors
        d_out = None if d_out is None else d_out.contiguous()
        d_last = None if d_last is None else d_last.contiguous()
        steps_back = _scan_backward if gates.dtype == torch.bfloat16 and can_scan(weight_state.shape[1]) else _loop_backward
        d_gates, d_state = steps_back(gates, cells, state, weight_state, first, d_out, d_last, ctx.needs_input_grad[1])
        flat = d_gates.flatten(0, 1)
        full = torch.float32  # of parameters, whatever the products are in
        return (
            (flat @ weight_in).view(x.shape).to(ctx.given) if ctx.needs_input_grad[0] else None,
            d_state,
            None,
            (flat.t() @ x.flatten(0, 1)).to(full),
            (flat.t() @ h_in.flatten(0, 1)).to(full),
            summed(flat)[1],
        )


def _loop_backward(
    gates: Tensor,
    cells: Tensor,
    state: Tensor,
    weight_state: Tensor,
    first: Tensor,
    d_out: Tensor | None,
    d_last: Tensor | None,
    wants_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of the gates and of the state at the start."""
    steps, rows, size = cells.shape
    d_gates, dc, stride = torch.empty_like(gates), torch.empty_like(cells[0]), first.stride(1)
    dh: Tensor | None = None
    for t in reversed(range(steps)):
        before, row = (cells[t - 1], size) if t else (state[:, size:], 2 * size)
        end = t + 1 == steps
        flags = (first[t], None if end else first[t + 1], stride)
        inputs = (gates[t], cells[t], before, row, *flags, None if d_out is None else d_out[t], size)
        outputs = (dh, d_last if end else None, dc, d_gates[t])
        _launch("lstm_backward", "pppqppqpqppppii", gates, *inputs, *outputs, rows, size)
        if t or wants_state:
            dh = torch.mm(d_gates[t], weight_state)
    if not wants_state:
        return d_gates, None
    d_state = torch.empty_like(state)
    _launch("lstm_leave", "pppqpii", gates, dh, dc, first[0], stride, d_state, rows, size)
    return d_gates, d_state


def _scan_forward(
    gates: Tensor, state: Tensor, first: Tensor, weight_state: Tensor, *, keeps: bool
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Return ``out``, the last state, and for the way back ``gates`` (written over), cells and h as each step takes it."""
    (steps, rows), size = gates.shape[:2], weight_state.shape[1]
    out, last = gates.new_empty(steps, rows, size), torch.empty_like(state)
    h_in, cells = (torch.empty_like(out), state.new_empty(steps, rows, size)) if keeps else (None, None)
    run = use.kernel("lstm_scan.h", "lstm_scan_forward", "pppsppppiii", gates.device, f"FUGU_SIZE {size}")
    inputs = (gates, weight_state.contiguous(), state, boxed(first))
    run(_scan_grid(rows, gates.device), 2 * size, *inputs, out, h_in, cells, last, int(keeps), steps, rows)
    return out, last, (gates, cells, h_in) if cells is not None and h_in is not None else ()


def _scan_backward(
    gates: Tensor,
    cells: Tensor,
    state: Tensor,
    weight_state: Tensor,
    first: Tensor,
    d_out: Tensor | None,
    d_last: Tensor | None,
    wants_state: bool,
) -> tuple[Tensor, Tensor | None]:
    steps, rows, size = cells.shape
    d_gates, d_state = torch.empty_like(gates), torch.empty_like(state) if wants_state else None
    run = use.kernel("lstm_scan.h", "lstm_scan_backward", "ppppsppppii", gates.device, f"FUGU_SIZE {size}")
    inputs = (gates, cells, state, weight_state.contiguous(), boxed(first), d_out, d_last)
    run(_scan_grid(rows, gates.device), 2 * size, *inputs, d_gates, d_state, steps, rows)
    return d_gates, d_state


def _scan_grid(rows: int, device: torch.device) -> int:
    """Return the number of blocks: one fills a multiprocessor and takes one tile of 16 segments after the other."""
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
    return min(use.blocks(rows, 16), multiprocessors)


def _launch(name: str, signature: str, like: Tensor, *arguments: Any) -> None:
    """Launch a kernel; ``like`` tells the device and the type of numbers, the last two arguments are rows and size."""
    defines = ("FUGU_BF16 1",) if like.dtype == torch.bfloat16 else ()
    rows, size = arguments[-2:]
    use.kernel("lstm.h", name, signature, like.device, *defines)(use.blocks(rows * size, THREADS), THREADS, *arguments)
