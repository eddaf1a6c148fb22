"""An LSTM over segments, and one step of it.

Weights have torch's order of gates: i, f, g, o; ``weight_in [4H, I]``, ``weight_state [4H, H]`` and ``bias [4H]`` (the sum of torch's
two). ``state [B, 2H]`` is h and c side by side; it is zero before every row where ``first`` is True. All is float32, also under
autocast; only kernels for a GPU multiply in bfloat16 there.

The native kernel gives the same bits in every run and on any number of threads. torch's form knows its own gradients: autograd would
otherwise keep a graph of a dozen nodes per row and multiply the recurrent weights' gradient T times instead of once.
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
from fugu.gpu import use

sigmoid_backward = torch.ops.aten.sigmoid_backward
tanh_backward = torch.ops.aten.tanh_backward


def lstm(
    x: Tensor, weight_in: Tensor, weight_state: Tensor, bias: Tensor, state: Tensor, first: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ``out [B, T, H]`` of ``x [B, T, I]`` and the state after the last row; ``first`` is ``[B, T]``."""
    if (x.is_cuda or use.emulated) and x.numel() and use.ready(weight_in, state) and use.ready(x, half=True):
        from fugu.ops import lstm_cuda

        out, last = lstm_cuda.lstm(x.transpose(0, 1), state, first.t(), weight_in, weight_state, bias)
        return out.transpose(0, 1), last
    if torch.is_autocast_enabled(x.device.type):
        with torch.autocast(x.device.type, enabled=False):
            return lstm(x.to(state.dtype), weight_in, weight_state, bias, state, first)
    if x.shape[1] == 0:
        return lstm_reference(x, weight_in, weight_state, bias, state, first)
    if not (takes_segments(weight_in) and x.dtype is state.dtype is torch.float32):
        out, c = _Loop.apply(x.transpose(0, 1), state, first.t(), weight_in, weight_state, bias)
        return out.transpose(0, 1), torch.cat([out[-1], c], -1)
    inputs = (x, weight_in, weight_state, bias, state, first)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        return _Native.apply(*inputs)
    h, last = x.new_empty(*x.shape[:2], weight_state.shape[1]), torch.empty_like(state)
    threads = core.threads or torch.get_num_threads()
    core.native.lstm_forward(*_arrays(inputs), _array(h), _array(last), None, threads)
    return h, last


def lstm_step(
    x: Tensor, weight_in: Tensor, weight_state: Tensor, bias: Tensor, state: Tensor, first: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ``out [B, H]`` of the row ``x [B, I]`` and the state after it; ``first`` is ``[B]``."""
    if x.is_cuda or use.emulated:
        alone = not torch.is_grad_enabled() and x.numel() > 0
        if alone and use.ready(weight_in, state) and use.ready(x, half=True):
            from fugu.ops import lstm_cuda

            return lstm_cuda.lstm_step(x, state, first, weight_in, weight_state, bias)
    if torch.is_autocast_enabled(x.device.type):
        with torch.autocast(x.device.type, enabled=False):
            return lstm_step(x.to(state.dtype), weight_in, weight_state, bias, state, first)
    if takes_segments(weight_in) and x.dtype is state.dtype is torch.float32:
        out, last = lstm(x.unsqueeze(1), weight_in, weight_state, bias, state, first.unsqueeze(1))
        return out.squeeze(1), last
    h, c = state.masked_fill(first.unsqueeze(-1), 0).chunk(2, -1)
    i, f, g, o = torch.addmm(F.linear(x, weight_in, bias), h, weight_state.t()).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return h, torch.cat([h, c], -1)


def takes_segments(weight_in: Tensor) -> bool:
    """Say whether ``lstm`` reads ``[B, T, I]`` as it lies, or would rather have time first in memory."""
    return core.native is not None and weight_in.is_cpu and weight_in.dtype is torch.float32


def lstm_reference(
    x: Tensor, weight_in: Tensor, weight_state: Tensor, bias: Tensor, state: Tensor, first: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute ``lstm`` with torch, row by row."""
    gates_x = x @ weight_in.t() + bias
    h, c = state.chunk(2, -1)
    out = []
    for t in range(x.shape[1]):
        going_on = ~first[:, t, None]
        h, c = torch.where(going_on, h, 0), torch.where(going_on, c, 0)
        i, f, g, o = torch.addmm(gates_x[:, t], h, weight_state.t()).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        out.append(h)
    return torch.stack(out, 1) if out else x.new_empty(*x.shape[:2], weight_state.shape[1]), torch.cat([h, c], -1)


class _Loop(torch.autograd.Function):
    """``(x [T, B, I], state [B, 2H], first [T, B], weights) -> (out [T, B, H], last cell [B, H])``.

    What is as large as the whole sequence is allocated once and written in place; the rest is one row's and stays in the cache.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, state: Tensor, first: Tensor, weight_in: Tensor, weight_state: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        gates = F.linear(x, weight_in, bias)  # [T, B, 4H]: the input's part of all rows in one product
        size = weight_state.shape[1]
        h, c = state.chunk(2, -1)
        out = gates.new_empty(*gates.shape[:2], size)
        cells = torch.empty_like(out)
        for t, some in enumerate(_resets(first)):
            if some:
                h, c = h.masked_fill(first[t, :, None], 0), c.masked_fill(first[t, :, None], 0)
            now = gates[t].addmm_(h, weight_state.t())
            i, f, g, o = now.chunk(4, -1)
            now[:, : 2 * size].sigmoid_()
            g.tanh_()
            o.sigmoid_()
            c = torch.mul(f, c, out=cells[t]).addcmul_(i, g)
            h = torch.tanh(c, out=out[t]).mul_(o)
        ctx.save_for_backward(x, state, first, weight_in, weight_state, gates, cells, out)
        return out, cells[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, dc: Tensor) -> tuple[Tensor | None, ...]:
        x, state, first, weight_in, weight_state, gates, cells, out = ctx.saved_tensors
        size = weight_state.shape[1]
        start_h, start_c = state.chunk(2, -1)
        d_gates = torch.empty_like(gates)
        dh = torch.zeros_like(dc)
        for t, some in reversed(list(enumerate(_resets(first)))):
            c_before = cells[t - 1] if t else start_c
            if some:
                c_before = c_before.masked_fill(first[t, :, None], 0)
            i, f, g, o = gates[t].chunk(4, -1)
            squashed = cells[t].tanh()
            dh = dh + d_out[t]
            dc = dc + tanh_backward(dh * o, squashed)
            now = d_gates[t]
            di, df, dg, do = now.chunk(4, -1)
            torch.mul(dc, g, out=di)
            torch.mul(dc, c_before, out=df)
            torch.mul(dh, squashed, out=do)
            sigmoid_backward(now[:, : 2 * size], gates[t, :, : 2 * size], grad_input=now[:, : 2 * size])
            sigmoid_backward(do, o, grad_input=do)
            tanh_backward(dc * i, g, grad_input=dg)
            dh = now @ weight_state
            dc = dc * f
            if some:
                dh.masked_fill_(first[t, :, None], 0)
                dc.masked_fill_(first[t, :, None], 0)
        h_before = torch.cat([start_h.unsqueeze(0), out[:-1]]).masked_fill_(first.unsqueeze(-1), 0)
        flat = d_gates.flatten(0, 1)
        return (
            (flat @ weight_in).view(x.shape) if ctx.needs_input_grad[0] else None,
            torch.cat([dh, dc], -1),
            None,
            flat.t() @ x.flatten(0, 1),
            flat.t() @ h_before.flatten(0, 1),
            flat.sum(0),
        )


def _resets(first: Tensor) -> list[bool]:
    """Say for each row of ``[T, B]`` whether any state is forgotten there. A GPU is not asked: waiting for the answer costs more."""
    return [True] * first.shape[0] if first.is_cuda else first.any(1).tolist()


class _Native(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight_in: Tensor, weight_state: Tensor, bias: Tensor, state: Tensor, first: Tensor
    ) -> tuple[Tensor, Tensor]:
        inputs = tuple(tensor.contiguous() for tensor in (x, weight_in, weight_state, bias, state, first))
        hidden = weight_state.shape[1]
        h, new_state = x.new_empty(*x.shape[:2], hidden), torch.empty_like(inputs[4])
        kept = x.new_empty(*x.shape[:2], core.native.lstm_kept(hidden))
        core.native.lstm_forward(*_arrays(inputs), *_arrays((h, new_state, kept)), core.threads or torch.get_num_threads())
        ctx.save_for_backward(*inputs, h, kept)
        return h, new_state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_h: Tensor, grad_new_state: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        grad_x = torch.empty_like(saved[0]) if ctx.needs_input_grad[0] else None
        grads = tuple(torch.empty_like(tensor) for tensor in saved[1:5])
        core.native.lstm_backward(
            *_arrays(saved),
            _array(grad_h),
            _array(grad_new_state),
            None if grad_x is None else _array(grad_x),
            *_arrays(grads),
            core.threads or torch.get_num_threads(),
        )
        return (grad_x, *grads, None)


def _array(tensor: Tensor) -> np.ndarray:
    """Return a view of a contiguous tensor's memory, else of a copy; several times cheaper to pass on than the tensor itself."""
    return tensor.detach().contiguous().numpy()


def _arrays(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    return [_array(tensor) for tensor in tensors]
