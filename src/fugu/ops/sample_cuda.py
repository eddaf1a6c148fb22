"""Sampling on the device: parameters of a distribution and random numbers -> actions and log-probabilities, one launch each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fugu.errors import SpaceError
from fugu.gpu.use import block_of, blocks, kernel


def words_categorical(choices: int) -> int:
    """of shared memory that a row takes, as in rows.h"""
    return choices | 1


def words_gaussian(dims: int) -> int:
    return (2 * dims | 1) + (dims | 1)


def sample_categorical(logits: Tensor, uniform: Tensor, action_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """``logits`` [rows, choices], ``uniform`` [rows] -> ``action`` int64 [rows], ``logprob`` [rows]."""
    rows, choices = logits.shape
    block = block_of(words_categorical(choices))
    assert block is not None
    action = torch.empty(rows, dtype=torch.int64, device=logits.device)
    logprob = torch.empty(rows, device=logits.device)
    if rows == 0:
        return action, logprob
    mask = None if action_mask is None else action_mask.contiguous()
    run = kernel("sample.h", "sample_categorical", "pppppiq", logits.device)
    inputs = (logits.contiguous(), mask, uniform.contiguous())
    run(blocks(rows, block), block, *inputs, action, logprob, choices, rows, shared=4 * block * words_categorical(choices))
    return action, logprob


def sample_gaussian(params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """``params`` [rows, 2 dims] (means, then logs of deviations), normal ``noise`` [rows, dims] -> ``action``, ``logprob`` [rows]."""
    rows, dims = noise.shape
    block = block_of(words_gaussian(dims))
    assert block is not None
    action = torch.empty(rows, dims, device=params.device)
    logprob = torch.empty(rows, device=params.device)
    if rows == 0:
        return action, logprob
    run = kernel("sample.h", "sample_gaussian", "ppppiq", params.device)
    inputs = (params.contiguous(), noise.contiguous())
    run(blocks(rows, block), block, *inputs, action, logprob, dims, rows, shared=4 * block * words_gaussian(dims))
    return action, logprob


def choose(
    head: Tensor,
    uniform: Tensor,
    action_mask: Tensor | None,
    moments: Any,
    action: Tensor,
    logprob: Tensor,
    value: Tensor,
) -> None:
    """``head`` [rows, choices + 1] (float32 or bfloat16): logits, then the value -> ``action`` int64 [rows, 1], ``logprob``, ``value``.

    Rows of ``head`` may lie apart. The last three are written where they are. With ``moments`` (of ``ValueScale``) the head's value
    is in units of those.
    """
    rows, choices = head.shape[0], head.shape[1] - 1
    if not (action.is_contiguous() and logprob.is_contiguous() and value.is_contiguous()):
        raise SpaceError("choose() writes rows that lie in one piece")
    mask = None if action_mask is None else action_mask.contiguous()
    name = "choose_bfloat16" if head.dtype == torch.bfloat16 else "choose_float32"
    mean, variance = (None, None) if moments is None else (moments.mean, moments.var)
    run = kernel("sample.h", name, "pqpppppppiq", head.device)
    outputs = (action, logprob, value)
    head = head if head.stride(1) == 1 else head.contiguous()
    run(blocks(rows, 128), 128, head, head.stride(0), mask, uniform, mean, variance, *outputs, choices, rows)
