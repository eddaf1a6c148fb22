"""Memory between encoder and heads: LSTM and MinGRU, each in a stepping and a sequence form that compute the same.

``step(x [B, I], state [B, S], first [B]) -> (out [B, H], state [B, S])`` advances by one row. ``sequence(x [B, T, I], state [B, S],
first [B, T]) -> (out [B, T, H], state [B, S])`` does the same for T rows; gradients flow through time inside it. The state is
one flat tensor and zero at the start of an episode: it is zeroed before a row with ``first`` is processed.

The loops over time know their own gradients: autograd would otherwise keep a graph of a dozen nodes per row and multiply the
recurrent weights' gradient T times instead of once.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fugu.gpu.use import ready
from fugu.native import native
from fugu.ops import lstm_cuda as cuda_lstm
from fugu.ops.kernels import can_use_native, lstm
from fugu.ops.mingru import mingru, mingru_step
from fugu.policy.layers import orthogonal
from fugu.policy.net import Linear

sigmoid_backward = torch.ops.aten.sigmoid_backward
tanh_backward = torch.ops.aten.tanh_backward


class LSTM(nn.Module):
    """Long short-term memory (Hochreiter & Schmidhuber 1997). State: output and cell side by side.

    Rows of the weights are in torch's order: input gate, forget gate, candidate, output gate.
    """

    def __init__(self, size_in: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.state_size = 2 * size
        self.weight_in = nn.Parameter(_stacked(4, size, size_in))
        self.weight_state = nn.Parameter(_stacked(4, size, size))
        bias = torch.zeros(4 * size)
        bias[size : 2 * size] = 1.0  # remember until taught otherwise (Jozefowicz et al. 2015)
        self.bias = nn.Parameter(bias)

    def takes_segments(self, device: torch.device) -> bool:
        """Whether ``sequence`` reads ``[B, T, I]`` as it lies, or would rather have time first in memory."""
        return native is not None and device.type == "cpu" and self.weight_in.dtype == torch.float32

    def step(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        weights = (self.weight_in, self.weight_state, self.bias)
        if not torch.is_grad_enabled() and x.numel() and ready(self.weight_in, state) and ready(x, half=True):
            return cuda_lstm.lstm_step(x, state, first, *weights)
        if can_use_native(x, self.weight_in, state):
            out, state = lstm(x.unsqueeze(1), *weights, state, first.unsqueeze(1))
            return out.squeeze(1), state
        h, c = state.masked_fill(first.unsqueeze(-1), 0).chunk(2, -1)
        i, f, g, o = torch.addmm(F.linear(x, self.weight_in, self.bias), h, self.weight_state.t()).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return h, torch.cat([h, c], -1)

    def sequence(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        weights = (self.weight_in, self.weight_state, self.bias)
        if x.numel() and ready(self.weight_in, state) and ready(x, half=True):
            out, state = cuda_lstm.lstm(x.transpose(0, 1), state, first.t(), *weights)
            return out.transpose(0, 1), state
        if can_use_native(x, self.weight_in, state):
            return lstm(x, *weights, state, first)
        out, c = _LSTMLoop.apply(x.transpose(0, 1), state, first.t(), *weights)
        return out.transpose(0, 1), torch.cat([out[-1], c], -1)


class _LSTMLoop(torch.autograd.Function):
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


class MinGRU(nn.Module):
    """Minimal gated recurrent unit (Feng et al. 2024): gates depend on the input only, so that all rows are computed at once.

    Each layer is ``h = (1 - z) * h + z * candidate`` and puts out ``h`` or its own input, by a learned highway gate. State: ``h``
    of the layers side by side.
    """

    LONGEST = 32
    """rows after which the slowest units have forgotten two thirds, at the start of training"""

    def __init__(self, size_in: int, size: int, layers: int = 1) -> None:
        super().__init__()
        self.size = size
        self.state_size = layers * size
        self.enter = orthogonal(Linear(size_in, size), 1.0) if size_in != size else nn.Identity()
        self.layers = nn.ModuleList(nn.Linear(size, 3 * size) for _ in range(layers))
        """candidate, gate z and highway gate of each layer"""
        # gates start with time constants spread over 1..LONGEST rows (Tallec & Ollivier 2018)
        spread = -torch.linspace(1, self.LONGEST, size).log()
        for layer in self._linear:
            layer.weight.data.copy_(_stacked(3, size, size))
            layer.bias.data.zero_()
            layer.bias.data[size : 2 * size] = spread

    @property
    def _linear(self) -> list[nn.Linear]:
        return cast("list[nn.Linear]", list(self.layers))

    def takes_segments(self, device: torch.device) -> bool:
        return False  # the scan goes through time

    def step(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        x = self.enter(x)
        if not torch.is_grad_enabled() and x.numel() and ready(state) and ready(x, state, half=True):
            after = torch.empty_like(state)
            parts = zip(self._linear, state.chunk(len(self.layers), -1), after.chunk(len(self.layers), -1), strict=True)
            for layer, h, last in parts:
                x = mingru_step(x, layer.weight, layer.bias, h, first, last)
            return x, after
        states = []
        for layer, h in zip(self._linear, state.masked_fill(first.unsqueeze(-1), 0).chunk(len(self.layers), -1), strict=True):
            candidate, gate, highway = layer(x).chunk(3, -1)
            h = torch.lerp(h, candidate, gate.sigmoid())
            x = torch.lerp(x, h, highway.sigmoid())
            states.append(h)
        return x, torch.cat(states, -1)

    def sequence(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        x = self.enter(x.transpose(0, 1))  # [T, B, H]
        if x.numel() and ready(state) and ready(x, state, half=True):
            lasts = []
            for layer, start in zip(self._linear, state.chunk(len(self.layers), -1), strict=True):
                x, last = mingru(x, layer.weight, layer.bias, start, first.t())
                lasts.append(last)
            return x.transpose(0, 1), lasts[0] if len(lasts) == 1 else torch.cat(lasts, -1)
        keep = _keep(first, x.dtype)
        states = []
        for layer, start in zip(self._linear, state.chunk(len(self.layers), -1), strict=True):
            candidate, gate, highway = layer(x).chunk(3, -1)
            z = gate.sigmoid()
            h = scan((1 - z) * keep, z * candidate, start)
            x = torch.lerp(x, h, highway.sigmoid())
            states.append(h[-1])
        return x.transpose(0, 1), torch.cat(states, -1)


def scan(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    """``h[t] = a[t] * h[t-1] + b[t]`` for ``a, b [T, B, H]`` from ``h[-1] = start [B, H]``; a row with ``a = 0`` starts anew."""
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
    """``scan`` without gradients: row by row on a CPU, which touches every number once; in log2(T) rounds on a GPU."""
    return accumulate_in_rounds(a, b, start) if a.is_cuda else accumulate_row_by_row(a, b, start)


def accumulate_row_by_row(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    h = torch.empty_like(b)
    before = start
    for t in range(a.shape[0]):
        before = torch.addcmul(b[t], a[t], before, out=h[t])
    return h


def accumulate_in_rounds(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    """Associative doubling (Hillis & Steele 1986): after a round of span s each row holds the last 2 s steps composed."""
    h = torch.cat([torch.addcmul(b[:1], a[:1], start.unsqueeze(0)), b[1:]])
    span = 1
    while span < a.shape[0]:
        h = torch.cat([h[:span], torch.addcmul(h[span:], a[span:], h[:-span])])
        a = torch.cat([a[:span], a[span:] * a[:-span]])
        span *= 2
    return h


def _keep(first: Tensor, dtype: torch.dtype) -> Tensor:
    """``[B, T]`` bool -> ``[T, B, 1]``: 0 where the state is forgotten, else 1."""
    return (~first).t().unsqueeze(-1).to(dtype)


def _resets(first: Tensor) -> list[bool]:
    """Per row of ``[T, B]``, whether any state is forgotten there. A GPU is not asked: waiting for the answer costs more."""
    return [True] * first.shape[0] if first.is_cuda else first.any(1).tolist()


def _stacked(blocks: int, size: int, size_in: int) -> Tensor:
    """``[blocks * size, size_in]``, each block orthogonal."""
    return torch.cat([nn.init.orthogonal_(torch.empty(size, size_in)) for _ in range(blocks)])
