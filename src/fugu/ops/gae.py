"""Generalized advantage estimation (Schulman et al. 2016, arXiv:1506.02438) by fugu's row convention.

In: the columns of a rollout, ``[segments, horizon]``, and ``bootstrap``, ``[segments]``: the value of the observation after the
last column. Out: ``advantage``, ``[segments, horizon]``; the value target is ``advantage + value``.

Row t holds an observation, the action taken on it and what that action produced, so with ``V[horizon] = bootstrap``::

    delta[t] = reward[t] + gamma * (1 - terminated[t]) * V[t+1] - V[t]
    A[t]     = delta[t] + gamma * lam * (1 - (terminated[t] | truncated[t])) * A[t+1]        A[horizon] = 0

- A terminated row has no future. A truncated one bootstraps from ``V[t+1]``, which is the value of the true final observation:
  the row after an ending holds it, and after an ending in the last column ``bootstrap`` does.
- The row after an ending is masked: its action went nowhere. Its own advantage means nothing and influences no row that counts,
  because the accumulation is cut one row before.
- Rows of an agent that waits for its turn are masked too, but nothing ended there: the accumulation passes through them, so that
  rewards which arrive meanwhile reach the action that caused them, discounted by the rows in between. What ``value`` says of them
  counts like any other; where nothing trains it, give them a value that does no harm (``algorithm/ppo.py`` does).
- Masked rows come out as 0 where a ``mask`` is given.
- NaN and infinity are not swallowed, but go no further than the cut before them: what is cut off is left out, not multiplied by 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fugu.native import native
from fugu.ops.columns import (
    Array,
    check_columns,
    check_fraction,
    check_threads,
    compute_native,
    compute_on_device,
    on_device,
)


def gae(
    value: Array,
    reward: Array,
    terminated: Array,
    truncated: Array,
    bootstrap: Array,
    *,
    gamma: float,
    lam: float,
    mask: Array | None = None,
    out: Array | None = None,
    threads: int | None = None,
) -> Array:
    """Advantage of every row, as an array of the same kind as ``value``.

    ``value``, ``reward``: float32 ``[segments, horizon]``. ``terminated``, ``truncated``, ``mask``: bool of that shape.
    ``bootstrap``: float32 ``[segments]``. Numpy arrays or CPU tensors, contiguous; nothing is copied, gradients do not flow. Or
    tensors on a GPU, in any order in memory, where one kernel computes it and nothing waits.
    ``out`` is written and returned if given; it may be ``reward``. ``threads``: at most this many, by default one per usable
    core; the result does not depend on it.
    """
    gamma, lam = check_fraction("gamma", gamma), check_fraction("lam", lam)
    threads = check_threads(threads)
    inputs = (value, reward, terminated, truncated, bootstrap)
    if on_device(value):
        return compute_on_device(*inputs, None, mask, out, (gamma, gamma * lam, math.inf, math.inf))
    if native is not None:
        return compute_native(*inputs, None, mask, out, (gamma, gamma * lam, math.inf, math.inf), threads)
    c = check_columns(*inputs, mask=mask, out=out)
    gae_reference(c.value, c.reward, c.terminated, c.truncated, c.bootstrap, gamma=gamma, lam=lam, mask=c.mask, out=c.out)
    return c.result


def gae_reference(
    value: np.ndarray,
    reward: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    bootstrap: np.ndarray,
    *,
    gamma: float,
    lam: float,
    mask: np.ndarray | None = None,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """What ``gae`` means, column by column; any float dtype."""
    advantage: np.ndarray = np.empty_like(reward) if out is None else out
    next_value, next_advantage = bootstrap, np.zeros_like(bootstrap)  # [segments]
    for t in reversed(range(value.shape[1])):
        ended = terminated[:, t] | truncated[:, t]
        delta = reward[:, t] + gamma * np.where(terminated[:, t], _zero(value), next_value) - value[:, t]
        next_advantage = delta + gamma * lam * np.where(ended, _zero(value), next_advantage)
        next_value = value[:, t]
        advantage[:, t] = next_advantage if mask is None else np.where(mask[:, t], next_advantage, _zero(value))
    return advantage


def _zero(like: np.ndarray) -> Any:
    return like.dtype.type(0)
