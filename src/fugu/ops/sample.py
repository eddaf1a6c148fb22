"""Sampling: parameters of a distribution and random numbers -> actions and their log-probabilities. Nothing here has gradients.

The native kernel gives the same bits in every run and on any number of threads; on a GPU each function is one launch.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fugu import native as core
from fugu.errors import SpaceError
from fugu.gpu import use
from fugu.ops import LOG_STD_RANGE

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
LEAST_DEVIATION = 1e-4
"""of values, as in sample.h"""


class Moments(Protocol):
    """Mean and variance of values, float64."""

    mean: Tensor
    var: Tensor


# One choice -------------------------------------------------------------------------------------------------------------------------


def sample_categorical(logits: Tensor, uniform: Tensor, action_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the choice (int64 [rows]) where ``uniform`` [rows] in [0, 1) falls in the distribution function, and its log-probability.

    ``logits`` are [rows, choices]. Choices whose ``action_mask`` is False are never taken; a row without a choice left is uniform.
    """
    logits = logits.detach()
    if (logits.is_cuda or use.emulated) and use.ready(logits, uniform) and use.block_of(words_categorical(logits.shape[1])):
        return _categorical_cuda(logits, uniform, action_mask)
    if core.native is None or not (logits.dtype is uniform.dtype is torch.float32 and logits.is_cpu):
        return sample_categorical_reference(logits, uniform, action_mask)
    action = torch.empty(logits.shape[0], dtype=torch.int64)
    logprob = torch.empty(logits.shape[0])
    core.native.sample_categorical(
        _array(logits),
        None if action_mask is None else _array(action_mask),
        _array(uniform),
        action.numpy(),
        logprob.numpy(),
        core.threads or torch.get_num_threads(),
    )
    return action, logprob


@torch.no_grad()
def sample_categorical_reference(logits: Tensor, uniform: Tensor, action_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute ``sample_categorical`` with torch."""
    logits = logits if action_mask is None else logits.masked_fill(~action_mask, torch.finfo(logits.dtype).min)
    weight = torch.exp(logits - logits.amax(-1, keepdim=True))
    reached = weight.cumsum(-1)
    before = torch.cat([torch.zeros_like(reached[:, :1]), reached[:, :-1]], -1)
    takes = (before <= uniform[:, None] * reached[:, -1:]) & (weight > 0)
    action = (takes * torch.arange(logits.shape[-1], device=logits.device)).amax(-1)
    return action, torch.log_softmax(logits, -1).gather(-1, action[:, None]).squeeze(-1)


def _categorical_cuda(logits: Tensor, uniform: Tensor, action_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    rows, choices = logits.shape
    block = use.block_of(words_categorical(choices))
    assert block is not None
    action = torch.empty(rows, dtype=torch.int64, device=logits.device)
    logprob = torch.empty(rows, device=logits.device)
    if rows == 0:
        return action, logprob
    inputs = (logits.contiguous(), None if action_mask is None else action_mask.contiguous(), uniform.contiguous())
    run = use.kernel("sample.h", "sample_categorical", "pppppiq", logits.device)
    shared = 4 * block * words_categorical(choices)
    run(use.blocks(rows, block), block, *inputs, action, logprob, choices, rows, shared=shared)
    return action, logprob


def words_categorical(choices: int) -> int:
    """Return the words of shared memory that a row takes, as in rows.h."""
    return choices | 1


# Real numbers -----------------------------------------------------------------------------------------------------------------------


def sample_gaussian(params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``action`` float32 [rows, dims] and ``logprob`` [rows] for normal ``noise`` [rows, dims].

    ``params`` [rows, 2 dims] are means, then logs of deviations, which are kept in ``LOG_STD_RANGE``.
    """
    params = params.detach()
    if (params.is_cuda or use.emulated) and use.ready(params, noise) and use.block_of(words_gaussian(noise.shape[1])):
        return _gaussian_cuda(params, noise)
    return sample_gaussian_reference(params, noise)


def sample_gaussian_reference(params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``sample_gaussian`` with torch."""
    dims = noise.shape[1]
    mean, log_std = params[:, :dims], params[:, dims:].clamp(*LOG_STD_RANGE)
    action = torch.addcmul(mean, noise, log_std.exp()).float()
    z = (action - mean) * (-log_std).exp()
    return action, (-0.5 * z * z - log_std).sum(-1) - dims * HALF_LOG_TAU


def _gaussian_cuda(params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    rows, dims = noise.shape
    block = use.block_of(words_gaussian(dims))
    assert block is not None
    action = torch.empty(rows, dims, device=params.device)
    logprob = torch.empty(rows, device=params.device)
    if rows == 0:
        return action, logprob
    run = use.kernel("sample.h", "sample_gaussian", "ppppiq", params.device)
    inputs = (params.contiguous(), noise.contiguous())
    run(use.blocks(rows, block), block, *inputs, action, logprob, dims, rows, shared=4 * block * words_gaussian(dims))
    return action, logprob


def words_gaussian(dims: int) -> int:
    """Return the words of shared memory that a row takes, as in rows.h."""
    return (2 * dims | 1) + (dims | 1)


# A head that is sampled where it is kept --------------------------------------------------------------------------------------------


def choose(
    head: Tensor,
    uniform: Tensor,
    action_mask: Tensor | None,
    moments: Moments | None,
    action: Tensor,
    logprob: Tensor,
    value: Tensor,
) -> None:
    """Sample ``head`` [rows, choices + 1], logits and the value; write ``action`` int64 [rows, 1], ``logprob`` and ``value`` [rows].

    Rows of ``head`` may lie apart. With ``moments`` the head's value is in units of those, and what is written is real.
    """
    if (head.is_cuda or use.emulated) and use.ready(head, uniform, half=True):
        _choose_cuda(head, uniform, action_mask, moments, action, logprob, value)
        return
    chosen, of_chosen = sample_categorical(head[:, :-1].float(), uniform, action_mask)
    said = head[:, -1].float()
    if moments is not None:
        said = said * moments.var.sqrt().clamp(min=LEAST_DEVIATION).float() + moments.mean.float()
    action.copy_(chosen[:, None])
    logprob.copy_(of_chosen)
    value.copy_(said)


def _choose_cuda(
    head: Tensor,
    uniform: Tensor,
    action_mask: Tensor | None,
    moments: Moments | None,
    action: Tensor,
    logprob: Tensor,
    value: Tensor,
) -> None:
    rows, choices = head.shape[0], head.shape[1] - 1
    if not (action.is_contiguous() and logprob.is_contiguous() and value.is_contiguous()):
        raise SpaceError("choose() writes rows that lie in one piece")
    mask = None if action_mask is None else action_mask.contiguous()
    name = "choose_bfloat16" if head.dtype == torch.bfloat16 else "choose_float32"
    mean, variance = (None, None) if moments is None else (moments.mean, moments.var)
    run = use.kernel("sample.h", name, "pqpppppppiq", head.device)
    head = head if head.stride(1) == 1 else head.contiguous()
    outputs = (action, logprob, value)
    run(use.blocks(rows, 128), 128, head, head.stride(0), mask, uniform, mean, variance, *outputs, choices, rows)


def _array(tensor: Tensor) -> np.ndarray:
    """Return a view of a contiguous tensor's memory, else of a copy; several times cheaper to pass on than the tensor itself."""
    return tensor.contiguous().numpy()
