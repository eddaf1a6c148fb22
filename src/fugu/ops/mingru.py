"""A MinGRU (Feng et al. 2024) of one or several layers over segments, and one step of it.

Each layer is ``h = (1 - z) * h + z * candidate`` and puts out ``h`` or its own input, by a learned highway gate; ``weights [3H, H]``
and ``biases [3H]`` of its gates are those of candidate, z and highway. ``enter``, where given, is the weight and bias of a layer before
all others. ``state [B, layers * H]`` is ``h`` of the layers side by side; it is zero before every row where ``first`` is True.

All is float32, also under autocast; only kernels for a GPU multiply in bfloat16 there. On a GPU torch multiplies; activations and the
walk through time are one launch forwards and one backwards. ``x`` and what comes out are in the type of the products then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fugu.gpu import use
from fugu.ops.half import dtype_of_products, rounded
from fugu.ops.linear import linear, summed
from fugu.ops.sequence import boxed, channels_last, wide

Layer = tuple[Tensor, Tensor]
"""weight and bias"""

THREADS = 256
STEPS = 4
"""between states that are kept for the way back, as in mingru.h"""


def mingru(x: Tensor, enter: Layer | None, layers: Sequence[Layer], state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``out [B, T, H]`` of ``x [B, T, I]`` and the state after the last row; ``first`` is ``[B, T]``."""
    launches = (x.is_cuda or use.emulated) and x.numel() > 0 and use.ready(state) and use.ready(x, half=True)
    if not launches and torch.is_autocast_enabled(x.device.type):
        with torch.autocast(x.device.type, enabled=False):
            return mingru(x.to(state.dtype), enter, layers, state, first)
    x = x.transpose(0, 1)
    x = x if enter is None else linear(x, *enter)  # [T, B, H]
    starts = state.chunk(len(layers), -1)
    lasts = []
    keep = None if launches else _keep(first, x.dtype)
    for (weight, bias), start in zip(layers, starts, strict=True):
        if keep is None:
            x, last = _Cuda.apply(x, weight, bias, start, first.t())
        else:
            candidate, gate, highway = F.linear(x, weight, bias).chunk(3, -1)
            z = gate.sigmoid()
            h = scan((1 - z) * keep, z * candidate, start)
            x, last = torch.lerp(x, h, highway.sigmoid()), h[-1]
        lasts.append(last)
    return x.transpose(0, 1), lasts[0] if len(lasts) == 1 else torch.cat(lasts, -1)


def mingru_step(x: Tensor, enter: Layer | None, layers: Sequence[Layer], state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``out [B, H]`` of the row ``x [B, I]`` and the state after it; ``first`` is ``[B]``."""
    if x.is_cuda or use.emulated:
        alone = not torch.is_grad_enabled() and x.numel() > 0
        if alone and use.ready(state) and use.ready(x, half=True):
            x = x if enter is None else linear(x, *enter)
            after = torch.empty_like(state)
            for layer, h, last in zip(layers, state.chunk(len(layers), -1), after.chunk(len(layers), -1), strict=True):
                x = _step_cuda(x, *layer, h, first, last)
            return x, after
    if torch.is_autocast_enabled(x.device.type):
        with torch.autocast(x.device.type, enabled=False):
            return mingru_step(x.to(state.dtype), enter, layers, state, first)
    x = x if enter is None else linear(x, *enter)
    states = []
    for layer, h in zip(layers, state.masked_fill(first.unsqueeze(-1), 0).chunk(len(layers), -1), strict=True):
        candidate, gate, highway = F.linear(x, *layer).chunk(3, -1)
        h = torch.lerp(h, candidate, gate.sigmoid())
        x = torch.lerp(x, h, highway.sigmoid())
        states.append(h)
    return x, torch.cat(states, -1)


def scan(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    """Compute ``h[t] = a[t] * h[t-1] + b[t]`` of ``a, b [T, B, H]`` from ``h[-1] = start [B, H]``; ``a = 0`` starts anew."""
    return _Scan.apply(a, b, start)


class _Scan(torch.autograd.Function):
    """The gradient of a linear recurrence is the same recurrence, backwards."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, start: Tensor) -> Tensor:
        h = accumulate(a, b, start)
        ctx.save_for_backward(a, h, start)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, h, start = ctx.saved_tensors
        later = torch.cat([a[1:], torch.zeros_like(a[:1])])
        d_b = accumulate(later.flip(0), d_h.flip(0), torch.zeros_like(start)).flip(0)
        return d_b * torch.cat([start.unsqueeze(0), h[:-1]]), d_b, a[0] * d_b[0]


def accumulate(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    """Compute ``scan`` without gradients: row by row on a CPU, which touches every number once; in log2(T) rounds on a GPU."""
    return accumulate_in_rounds(a, b, start) if a.is_cuda else accumulate_row_by_row(a, b, start)


def accumulate_row_by_row(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    h = torch.empty_like(b)
    before = start
    for t in range(a.shape[0]):
        before = torch.addcmul(b[t], a[t], before, out=h[t])
    return h


def accumulate_in_rounds(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    """Compute ``scan`` by associative doubling (Hillis & Steele 1986): after a round of span s each row holds 2 s steps composed."""
    h = torch.cat([torch.addcmul(b[:1], a[:1], start.unsqueeze(0)), b[1:]])
    span = 1
    while span < a.shape[0]:
        h = torch.cat([h[:span], torch.addcmul(h[span:], a[span:], h[:-span])])
        a = torch.cat([a[:span], a[span:] * a[:-span]])
        span *= 2
    return h


def _keep(first: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``[T, B, 1]`` of ``first [B, T]``: 0 where the state is forgotten, else 1."""
    return (~first).t().unsqueeze(-1).to(dtype)


# On a GPU ---------------------------------------------------------------------------------------------------------------------------


def _step_cuda(x: Tensor, weight: Tensor, bias: Tensor, start: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Return ``out [B, H]`` of one row of one layer, without gradients, and write the state to ``last``.

    ``start`` and ``last`` may be columns of a wider state.
    """
    dtype = dtype_of_products(x)
    x = x.to(dtype)
    gates = F.linear(x, rounded(weight, dtype), rounded(bias, dtype))
    out = torch.empty_like(x)
    _launch_forward(gates.unsqueeze(0), channels_last(x.unsqueeze(0)), start, first.unsqueeze(0), out.unsqueeze(0), None, last)
    return out


class _Cuda(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, start: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        dtype, ctx.given = dtype_of_products(x), x.dtype
        x, weight, bias, start = x.to(dtype).contiguous(), weight.to(dtype), bias.to(dtype), channels_last(start)
        gates = F.linear(x, weight, bias)  # [T, B, 3H]
        (steps, rows), size = x.shape[:2], x.shape[2]
        out, last = torch.empty_like(x), start.new_empty(start.shape)
        kept = start.new_empty(use.blocks(steps, STEPS), rows, size) if any(ctx.needs_input_grad) else None
        _launch_forward(gates, x, start, first, out, kept, last)
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
        run = use.kernel("mingru.h", "mingru_backward", "ssspspssppiii", x.device, *given)
        inputs = (boxed(gates), boxed(x), boxed(first), kept, boxed(d_out), d_last)
        outputs = (boxed(d_gates), boxed(d_x), d_start, d_bias)
        run(_grid(rows, size, given), THREADS, *inputs, *outputs, steps, rows, size)
        flat = d_gates.flatten(0, 1)
        if ctx.needs_input_grad[0]:  # what flows to x through the gates is added to what flows past them
            d_x.flatten(0, 1).addmm_(flat, weight)
        d_weight = (flat.t() @ x.flatten(0, 1)).float()
        return d_x.to(ctx.given), d_weight, summed(d_bias)[1], d_start, None


def _launch_forward(
    gates: Tensor, x: Tensor, start: Tensor, first: Tensor, out: Tensor, kept: Tensor | None, last: Tensor
) -> None:
    steps, rows, size = x.shape
    given = wide(gates, x, start, out, last, size=size)
    run = use.kernel("mingru.h", "mingru_forward", "ssspqsppqiii", x.device, *given)
    inputs = (boxed(gates), boxed(x), boxed(first), start, start.stride(0))
    run(_grid(rows, size, given), THREADS, *inputs, boxed(out), kept, last, last.stride(0), steps, rows, size)


def _grid(rows: int, size: int, given: tuple[str, ...]) -> int:
    return use.blocks(rows * size // (4 if "FUGU_WIDE 4" in given else 1), THREADS)
