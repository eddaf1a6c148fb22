"""Sampling on the device: parameters of a distribution and random numbers -> actions and log-probabilities, one launch each."""

from __future__ import annotations

import torch
from torch import Tensor

from fugu.cuda.use import kernel

SHARED = 48 * 1024
"""bytes of shared memory that a block may have without asking"""


def block_of(words: int) -> int | None:
    """Threads of a block where each has a row of so many words in shared memory; None: rows are too wide."""
    return next((threads for threads in (128, 64, 32) if 4 * threads * words <= SHARED), None)


def blocks(rows: int, block: int) -> int:
    return (rows + block - 1) // block


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
