"""A whole small network in one kernel: ``mlp_forward`` (rows -> logits, value) and ``mlp_ppo`` (rows -> PPO's loss and its gradient).

``shape`` (``mlp_plan.py``) says what the network is; ``weights`` and ``biases`` are those of its layers, from the first to the head, as
``nn.Linear`` has them: float32, contiguous. Observations are ``[*rows, inputs]``, other columns ``[*rows]`` (or ``[*rows, 1]``), where
``*rows`` is ``[rows]`` or ``[segments, horizon]`` in either memory order: blocks of segments of a time-major slab are read where they
are. ``moments`` normalise observations, as in ``ActorCritic``. What they compute is ``mlp_reference`` of ``ops/mlp.py`` and
``ppo_loss_of`` of ``ops/ppo_loss.py``; the source is in ``native/cuda/mlp*.h``.

Nothing here waits for the device or depends on what is in it, so that all of it can be captured in a CUDA graph.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fugu.gpu.module import EXACT, Kernel, compile_module
from fugu.ops.mlp_plan import (
    PREPARE_THREADS,
    REDUCE_THREADS,
    STATS,
    MlpShape,
    Plan,
    card_of,
    plan_prepare,
    plan_reduce,
    plan_update,
)
from fugu.ops.ppo_loss_cuda import SUMS as STAT_NAMES

MAX_ROWS = 2**30
LOSS = 6
"""where the loss is among the sums"""


class Moments(Protocol):
    """Mean and variance of numbers, float64, and the deviations beyond which a normalised number is cut off."""

    mean: Tensor
    var: Tensor
    clip: float


def mlp_forward(
    shape: MlpShape, obs: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], *, moments: Moments | None = None
) -> tuple[Tensor, Tensor]:
    """Return ``logits [*rows, choices]`` and ``value [*rows]``. Not differentiable."""
    (obs,), order, lead, by_time = _rows([obs], shape.inputs)
    rows = math.prod(lead)
    first = lead[::-1] if by_time else lead  # written in the order in which rows are read
    logits, value = obs.new_empty(*first, shape.choices), obs.new_empty(first)
    if rows:
        plan = plan_update(shape, rows, card_of(obs.device))
        arguments = _Forward(
            parameter_pointers(weights, biases, moments), obs.data_ptr(), logits.data_ptr(), value.data_ptr(), order, rows
        )
        kernel = _kernels(shape, plan, obs.device)["mlp_forward"]
        kernel(plan.grid, plan.threads, bytes(arguments), shared=plan.shared)
    return (logits.transpose(0, 1), value.t()) if by_time else (logits, value)


def mlp_ppo(
    shape: MlpShape, obs: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], **columns: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return PPO's loss, with gradients for ``weights`` and ``biases``, and its parts by name.

    ``columns``: what ``mlp_ppo_sums`` takes.
    """
    loss, stats = _MlpPpo.apply(shape, obs, columns, *weights, *biases)
    return loss, dict(zip(STAT_NAMES, stats.unbind(), strict=True))


class _MlpPpo(torch.autograd.Function):
    """Forward computes the gradients too; backward scales them."""

    @staticmethod
    def forward(ctx: Any, shape: MlpShape, obs: Tensor, columns: dict[str, Any], *parameters: Tensor) -> tuple[Tensor, Tensor]:
        layers = len(shape.widths) - 1
        sums = mlp_ppo_sums(shape, obs, parameters[:layers], parameters[layers:], **columns)
        ctx.shape = shape
        ctx.save_for_backward(sums)
        stats = sums[: len(STAT_NAMES)]
        ctx.mark_non_differentiable(stats)
        return sums[LOSS], stats

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        weights, biases = gradients(ctx.shape, ctx.saved_tensors[0] * grad_loss)
        return None, None, None, *weights, *biases


def mlp_ppo_sums(
    shape: MlpShape,
    obs: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    *,
    action: Tensor,
    old_logprob: Tensor,
    advantage: Tensor,
    old_value: Tensor,
    value_target: Tensor,
    mask: Tensor,
    moments: Moments | None = None,
    value_moments: Moments | None = None,
    clip: float,
    value_clip: float = math.inf,
    value_coef: float,
    entropy_coef: float | Tensor,
    normalize_advantage: bool = False,
) -> Tensor:
    """Return one flat tensor: the sums of ``STATS``, the loss, a zero, then the gradients, layer by layer, weight before bias.

    Rows count where ``mask`` is True, all alike; nothing else of the others is read. With ``normalize_advantage`` the advantages of
    those that count are shifted and scaled to mean 0 and deviation 1. With ``value_moments`` the network's values are in units of
    those, ``old_value`` and ``value_target`` are real (``algorithm/scale.py``). ``entropy_coef`` may be a scalar tensor on the device,
    which is read when the kernel runs.
    """
    columns = [old_logprob, advantage, old_value, value_target]
    taken, order, lead, _ = _rows([obs, action, *columns, mask], shape.inputs)
    rows, device = math.prod(lead), obs.device
    card = card_of(device)
    plan, prepare, reduce = plan_update(shape, rows, card), plan_prepare(rows, card), plan_reduce(shape)
    total = STATS + shape.parameters
    sums = torch.empty(prepare, 3, dtype=torch.float64, device=device)
    partial, out = torch.empty(plan.grid, total, device=device), torch.empty(total, device=device)
    if isinstance(entropy_coef, Tensor) and (entropy_coef.dtype != torch.float32 or entropy_coef.device != device):
        raise TypeError(f"entropy_coef: expected float32 on {device}, got {entropy_coef.dtype} on {entropy_coef.device}")
    at = entropy_coef.data_ptr() if isinstance(entropy_coef, Tensor) else None
    coef = 0.0 if isinstance(entropy_coef, Tensor) else entropy_coef
    settings = _Settings(moment_pointers(value_moments), at, clip, value_clip, value_coef, coef, normalize_advantage)
    pointers = [tensor.data_ptr() for tensor in (*taken, sums, partial, out)]
    arguments = bytes(_Ppo(parameter_pointers(weights, biases, moments), *pointers, order, settings, rows, prepare, plan.grid))
    kernels = _kernels(shape, plan, device)
    kernels["mlp_ppo_prepare"](prepare, PREPARE_THREADS, arguments, shared=3 * 8 * PREPARE_THREADS // 32)
    kernels["mlp_ppo"](plan.grid, plan.threads, arguments, shared=plan.shared)
    kernels["mlp_ppo_reduce"](reduce, REDUCE_THREADS, arguments, shared=4 * REDUCE_THREADS)
    return out


def gradients(shape: MlpShape, sums: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the gradients in what ``mlp_ppo_sums`` gave, as views: of weights, of biases."""
    weights, biases, at = [], [], STATS
    for into, out in zip(shape.widths, shape.widths[1:], strict=False):
        weights.append(sums[at : at + out * into].view(out, into))
        biases.append(sums[at + out * into : at + out * (into + 1)])
        at += out * (into + 1)
    return weights, biases


# How the kernels are compiled and what they are given ------------------------------------------------------------------------------

SOURCE = """#include <fugu/cuda/mlp_forward.h>
#include <fugu/cuda/mlp_ppo.h>
using namespace fugu::mlp;
using N = {network};
using D = {division};
static_assert(4 * N::shared_words(D::kRows) == {shared} && N::kParameters == {parameters} && kStats == {stats});
static_assert(sizeof(ForwardArguments) == {forward_bytes} && sizeof(PpoArguments) == {ppo_bytes});
extern "C" __global__ void __launch_bounds__({threads}, {blocks}) mlp_forward(ForwardArguments a) {{ forward_kernel<N, D>(a); }}
FUGU_KERNEL(mlp_forward)
extern "C" __global__ void mlp_ppo_prepare(PpoArguments a) {{ prepare_kernel(a); }}
FUGU_KERNEL(mlp_ppo_prepare)
extern "C" __global__ void __launch_bounds__({threads}, {blocks}) mlp_ppo(PpoArguments a) {{ ppo_kernel<N, D>(a); }}
FUGU_KERNEL(mlp_ppo)
extern "C" __global__ void mlp_ppo_reduce(PpoArguments a) {{ reduce_kernel(a, kStats + N::kParameters); }}
FUGU_KERNEL(mlp_ppo_reduce)
"""


def mlp_source(shape: MlpShape, plan: Plan) -> str:
    return SOURCE.format(
        network=shape.network,
        division=plan.division,
        shared=plan.shared,
        parameters=shape.parameters,
        stats=STATS,
        forward_bytes=ctypes.sizeof(_Forward),
        ppo_bytes=ctypes.sizeof(_Ppo),
        threads=plan.threads,
        blocks=plan.blocks_each,
    )


@functools.cache
def _kernels(shape: MlpShape, plan: Plan, device: torch.device) -> dict[str, Kernel]:
    # EXACT like a rollout, in which an environment is compiled along: the same bits in both
    module = compile_module(mlp_source(shape, plan), device, options=EXACT, what="the fused network")
    return {name: module.kernel(name, "s") for name in ("mlp_forward", "mlp_ppo_prepare", "mlp_ppo", "mlp_ppo_reduce")}


class MomentPointers(ctypes.Structure):
    _fields_ = (("mean", ctypes.c_void_p), ("var", ctypes.c_void_p), ("clip", ctypes.c_float))


class ParameterPointers(ctypes.Structure):
    _fields_ = (("weight", ctypes.c_void_p * 4), ("bias", ctypes.c_void_p * 4), ("moments", MomentPointers))


class _RowOrder(ctypes.Structure):
    _fields_ = (("outer_stride", ctypes.c_int64), ("inner_stride", ctypes.c_int64), ("inner", ctypes.c_uint32))


class _Settings(ctypes.Structure):
    _fields_ = (
        ("values", MomentPointers),
        ("entropy_coef_at", ctypes.c_void_p),
        *((name, ctypes.c_float) for name in ("clip", "value_clip", "value_coef", "entropy_coef")),
        ("normalize", ctypes.c_int32),
    )


class _Forward(ctypes.Structure):
    _fields_ = (
        ("parameters", ParameterPointers),
        *((name, ctypes.c_void_p) for name in ("obs", "logits", "value")),
        ("order", _RowOrder),
        ("rows", ctypes.c_int32),
    )


_PPO_POINTERS = ("obs", "action", "old_logprob", "advantage", "old_value", "value_target", "mask", "moments", "partial", "out")


class _Ppo(ctypes.Structure):
    _fields_ = (
        ("parameters", ParameterPointers),
        *((name, ctypes.c_void_p) for name in _PPO_POINTERS),
        ("order", _RowOrder),
        ("settings", _Settings),
        *((name, ctypes.c_int32) for name in ("rows", "prepare_blocks", "ppo_blocks")),
    )


def moment_pointers(moments: Moments | None) -> MomentPointers:
    if moments is None:
        return MomentPointers(None, None, math.inf)
    return MomentPointers(moments.mean.data_ptr(), moments.var.data_ptr(), moments.clip)


def parameter_pointers(weights: Sequence[Tensor], biases: Sequence[Tensor], moments: Moments | None) -> ParameterPointers:
    out = ParameterPointers(moments=moment_pointers(moments))
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        for tensor in (weight, bias):
            if tensor.dtype != torch.float32 or not tensor.is_contiguous():
                raise TypeError(
                    f"expected parameters that are float32 and contiguous, got {tensor.dtype}, strides {tensor.stride()}"
                )
        out.weight[i], out.bias[i] = weight.data_ptr(), bias.data_ptr()
    return out


_DTYPES = (torch.float32, torch.int64, *(torch.float32,) * 4, torch.bool)
"""of observations, actions, the four columns of reals, and the mask"""


def _rows(columns: Sequence[Tensor], inputs: int) -> tuple[list[Tensor], _RowOrder, torch.Size, bool]:
    """Return the columns as they are if all have the same strides, which the kernel is told, else copies one row after the other.

    With them come ``*rows`` and whether they are taken by time, all segments of one after those of the one before."""
    lead = columns[0].shape[:-1]
    for i, (column, dtype) in enumerate(zip(columns, _DTYPES, strict=False)):
        shapes = [(*lead, inputs)] if i == 0 else [tuple(lead), (*lead, 1)]
        if tuple(column.shape) not in shapes or column.dtype != dtype or len(lead) not in (1, 2):
            raise TypeError(f"expected {dtype} {' or '.join(map(str, shapes))}, got {column.dtype} {tuple(column.shape)}")
    if math.prod(lead) > MAX_ROWS:
        raise TypeError(f"expected at most {MAX_ROWS} rows, got {math.prod(lead)}")
    strides = {_row_strides(column, len(lead), inputs if i == 0 else 1) for i, column in enumerate(columns)}
    if len(strides) != 1 or None in strides:
        columns = [column.contiguous() for column in columns]
        strides = {_row_strides(columns[0], len(lead), inputs)}
    stride: Any = strides.pop()
    if len(lead) == 1:
        return list(columns), _RowOrder(0, stride[0], max(1, lead[0])), lead, False
    if stride[0] <= stride[1]:  # neighbours in memory are rows of one time
        return list(columns), _RowOrder(stride[1], stride[0], max(1, lead[0])), lead, True
    return list(columns), _RowOrder(stride[0], stride[1], max(1, lead[1])), lead, False


def _row_strides(column: Tensor, axes: int, numbers: int) -> tuple[int, ...] | None:
    """Return the strides of ``*rows`` in rows; None where a row is not one piece or rows are not ``numbers`` apart."""
    stride = column.stride()
    if (numbers > 1 and stride[-1] != 1) or any(s % numbers for s in stride[:axes]):
        return None
    return tuple(s // numbers for s in stride[:axes])
