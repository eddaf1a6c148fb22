"""Fused kernels for training on CPUs, each beside the torch function that says what it computes.

``mlp``, ``lstm`` and ``sample_categorical`` use the native core for float32 tensors on a CPU and are their ``_reference`` otherwise: on
other devices, for other dtypes, and where the core is not built. Both give the same numbers up to rounding. What
``ppo_loss_categorical`` computes is said, and chosen instead, in ``algorithm/losses.py``. The native ones give the same bits in every
run and on any number of threads; they use as many as ``fugu.native.threads`` says. Gradients are of first order. Where there is a
kernel for a GPU, that is used there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fugu import native as core

# LSTM ------------------------------------------------------------------------------------------------------------------------------


def lstm(x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` [batch, time, inputs] -> ``h`` [batch, time, hidden] and the state after the last step [batch, 2 hidden].

    ``weight_ih`` [4 hidden, inputs], ``weight_hh`` [4 hidden, hidden] and ``bias`` [4 hidden] (the sum of torch's two) have torch's
    order of gates: i, f, g, o. ``state`` is h and c side by side; it is zero before every row where ``first`` [batch, time] is True.
    """
    if not can_use_native(x, weight_ih, weight_hh, bias, state) or x.shape[1] == 0:
        return lstm_reference(x, weight_ih, weight_hh, bias, state, first)
    if _needs_grad(x, weight_ih, weight_hh, bias, state):
        return _Lstm.apply(x, weight_ih, weight_hh, bias, state, first)
    h, new_state = x.new_empty(*x.shape[:2], weight_hh.shape[1]), torch.empty_like(state)
    inputs = _arrays((x, weight_ih, weight_hh, bias, state, first))
    core.native.lstm_forward(*inputs, _array(h), _array(new_state), None, (core.threads or torch.get_num_threads()))
    return h, new_state


def lstm_reference(
    x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor, state: Tensor, first: Tensor
) -> tuple[Tensor, Tensor]:
    gates_x = x @ weight_ih.t() + bias
    h, c = state.chunk(2, -1)
    out = []
    for t in range(x.shape[1]):
        going_on = ~first[:, t, None]
        h, c = torch.where(going_on, h, 0), torch.where(going_on, c, 0)
        i, f, g, o = torch.addmm(gates_x[:, t], h, weight_hh.t()).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        out.append(h)
    return torch.stack(out, 1) if out else x.new_empty(*x.shape[:2], weight_hh.shape[1]), torch.cat([h, c], -1)


class _Lstm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor, state: Tensor, first: Tensor
    ) -> tuple[Tensor, Tensor]:
        inputs = tuple(tensor.contiguous() for tensor in (x, weight_ih, weight_hh, bias, state, first))
        hidden = weight_hh.shape[1]
        h, new_state = x.new_empty(*x.shape[:2], hidden), torch.empty_like(inputs[4])
        kept = x.new_empty(*x.shape[:2], core.native.lstm_kept(hidden))
        core.native.lstm_forward(*_arrays(inputs), *_arrays((h, new_state, kept)), (core.threads or torch.get_num_threads()))
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
            (core.threads or torch.get_num_threads()),
        )
        return (grad_x, *grads, None)


# Which way, and how tensors cross --------------------------------------------------------------------------------------------------


def can_use_native(*tensors: Tensor) -> bool:
    if core.native is None:
        return False
    for tensor in tensors:  # noqa: SIM110 (at every step of a rollout; a generator would cost twice as much)
        if tensor.dtype is not torch.float32 or not tensor.is_cpu:
            return False
    return True


def _needs_grad(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _array(tensor: Tensor) -> np.ndarray:
    """A view of a contiguous tensor's memory, else of a copy. Several times cheaper to pass on than the tensor itself."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor.numpy() if tensor.is_contiguous() else tensor.contiguous().numpy()


def _arrays(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    return [_array(tensor) for tensor in tensors]
