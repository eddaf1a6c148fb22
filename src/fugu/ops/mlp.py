"""Small networks of fully connected layers, ``activation(x @ weight.T + bias)`` one after the other.

The native kernel is for float32 on a CPU, where with a few thousand weights most of torch's time is overhead. It gives the same bits
in every run and on any number of threads, and those of ``mlp_reference`` up to rounding. Under autocast to bfloat16 on a GPU every
layer is a ``half_linear``. Gradients are of first order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fugu import native as core
from fugu.gpu import use
from fugu.ops.linear import half_linear, takes_half

ACTIVATIONS = {"none": 0, "tanh": 1, "relu": 2}
"""those of the kernels; the numbers are those of learn.h"""
MAX_LAYERS = 4


def mlp(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    activation: str,
    *,
    last: str | None = None,
    natively: bool = True,
) -> Tensor:
    """Return ``x [*rows, inputs]`` through the layers, ``[*rows, width of the last]``; ``*rows`` is one axis, or two of any strides.

    ``weights`` are [outputs, inputs], as in ``nn.Linear``. ``last`` is the activation of the last layer, where it is another one:
    "none" makes the last layer a linear head. ``natively``: a CPU may use the native kernel.
    """
    if not weights:
        return x
    activations = [activation] * (len(weights) - 1) + [last or activation]
    if (x.is_cuda or use.emulated) and takes_half(x, *weights, *biases):
        for weight, bias, name in zip(weights, biases, activations, strict=True):
            x = half_linear(x, weight, bias, name) if name in ACTIVATIONS else _activated(half_linear(x, weight, bias), name)
        return x
    if x.dim() == 3:
        rows = mlp(x.flatten(0, 1), weights, biases, activation, last=last, natively=natively)
        return rows.unflatten(0, x.shape[:2])
    known = len(weights) <= MAX_LAYERS and all(name in ACTIVATIONS for name in activations) and "none" not in activations[:-1]
    plain = x.is_cpu and x.dtype is weights[0].dtype is torch.float32
    if not (natively and known and plain and core.native is not None):
        return mlp_reference(x, weights, biases, activation, last=last)
    numbers = [ACTIVATIONS[name] for name in activations]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *weights, *biases)):
        return _Mlp.apply(x, numbers, *weights, *biases)
    out = x.new_empty(x.shape[0], weights[-1].shape[0])
    threads = core.threads or torch.get_num_threads()
    core.native.mlp_forward(_array(x), _arrays(weights), _arrays(biases), [out.numpy()], numbers, threads)
    return out


def mlp_reference(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], activation: str, *, last: str | None = None
) -> Tensor:
    """Compute ``mlp`` of ``x [rows, inputs]`` with torch."""
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = torch.addmm(bias, x, weight.t())
        x = _activated(x, (last or activation) if layer == len(weights) - 1 else activation)
    return x


def runs_natively(weight: Tensor, activation: str) -> bool:
    """Say whether a network that begins with ``weight`` is computed by the native kernel, which leaves torch's threads little to do."""
    return core.native is not None and weight.is_cpu and activation in ACTIVATIONS


def _activated(x: Tensor, name: str) -> Tensor:
    if name == "none":
        return x
    return getattr(torch, name)(x) if name in ("tanh", "relu") else getattr(torch.nn.functional, name)(x)


class _Mlp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, activations: list[int], *parameters: Tensor) -> Tensor:
        layers = len(activations)
        x, parameters = x.contiguous(), tuple(p.contiguous() for p in parameters)
        hidden = [x.new_empty(x.shape[0], weight.shape[0]) for weight in parameters[:layers]]
        arrays = _arrays(parameters)
        core.native.mlp_forward(
            _array(x), arrays[:layers], arrays[layers:], _arrays(hidden), activations, core.threads or torch.get_num_threads()
        )
        ctx.activations = activations
        ctx.save_for_backward(x, *parameters, *hidden)
        return hidden[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        layers = len(ctx.activations)
        x, *rest = ctx.saved_tensors
        wanted = any(ctx.needs_input_grad[2:])  # of the weights: all or none
        grads = [torch.empty_like(parameter) for parameter in rest[: 2 * layers]] if wanted else []
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        arrays, grad_arrays = _arrays(rest), _arrays(grads)
        core.native.mlp_backward(
            _array(x),
            arrays[:layers],
            arrays[layers : 2 * layers],
            arrays[2 * layers :],
            ctx.activations,
            _array(grad_out),
            None if grad_x is None else _array(grad_x),
            grad_arrays[: len(grads) // 2],
            grad_arrays[len(grads) // 2 :],
            core.threads or torch.get_num_threads(),
        )
        return (grad_x, None, *grads) if wanted else (grad_x,) + (None,) * (1 + 2 * layers)


def _array(tensor: Tensor) -> np.ndarray:
    """Return a view of a contiguous tensor's memory, else of a copy; several times cheaper to pass on than the tensor itself."""
    return tensor.detach().contiguous().numpy()


def _arrays(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    return [_array(tensor) for tensor in tensors]


class Arrays:
    """Parameters, and the arrays that kernels take for them: they share memory, and are made anew only if a parameter is given another
    one."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        self._places: list[int] = []
        self._arrays: list[np.ndarray] = []
        self._plain = False

    def __call__(self) -> list[np.ndarray]:
        self._look()
        return self._arrays

    @property
    def plain(self) -> bool:
        """True if all are float32 without gaps in the memory of the CPU."""
        self._look()
        return self._plain

    def _look(self) -> None:
        places = [tensor.data_ptr() for tensor in self.tensors]
        if places != self._places:
            self._places = places
            self._plain = all(t.is_cpu and t.dtype is torch.float32 and t.is_contiguous() for t in self.tensors)
            self._arrays = [tensor.detach().numpy() for tensor in self.tensors] if self._plain else []
