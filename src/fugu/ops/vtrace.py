"""V-trace (Espeholt et al. 2018, arXiv:1802.01561) with the lambda of GAE, by fugu's row convention.

In: the columns of ``gae``, and ``ratio``, ``[segments, horizon]``: how much likelier the action of a row is under the policy that
learns than under the one that acted, ``exp(logprob_now - logprob_then)``. Out: ``advantage``, ``[segments, horizon]``.

With ``rho = min(ratio, rho_clip)`` and ``c = min(ratio, c_clip)``::

    delta[t] = rho[t] * (reward[t] + gamma * (1 - terminated[t]) * V[t+1] - V[t])
    A[t]     = delta[t] + gamma * lam * c[t] * (1 - (terminated[t] | truncated[t])) * A[t+1]        A[horizon] = 0

Unrolled, ``A[s]`` is the sum over t of ``(gamma * lam)^(t-s) * c[s] * ... * c[t-1] * delta[t]``: the c's multiply as in the paper.
With ``lam=1`` it is exactly the paper's ``v_s - V(x_s)``, so ``advantage + value`` is the V-trace target ``v_s``; ``lam`` below 1 is
the paper's remark 2. The paper's policy gradient weighs with ``rho[s] * (r[s] + gamma * v[s+1] - V[s])``, which follows from these
targets. With ``ratio = 1`` and clips of at least 1, ``vtrace`` is ``gae``.

Endings, masks, ``bootstrap`` and NaN are treated as in ``gae``. On a masked row nobody chose anything, so its ``ratio`` is not read
and counts as 1.
"""

from __future__ import annotations

import numpy as np

from fugu.native import native
from fugu.ops.columns import (
    Array,
    check_clip,
    check_columns,
    check_fraction,
    check_threads,
    compute_native,
    compute_on_device,
    on_device,
)


def vtrace(
    value: Array,
    reward: Array,
    terminated: Array,
    truncated: Array,
    bootstrap: Array,
    ratio: Array,
    *,
    gamma: float,
    lam: float,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    mask: Array | None = None,
    out: Array | None = None,
    threads: int | None = None,
) -> Array:
    """Advantage of every row, as an array of the same kind as ``value``.

    ``ratio``: float32 ``[segments, horizon]``; the other columns, ``out`` (which may also be ``ratio``) and ``threads`` are those
    of ``gae``. ``rho_clip`` bounds the weight of a row's own TD error, ``c_clip`` how much of the future flows back through it;
    ``math.inf`` means no bound.
    """
    gamma, lam = check_fraction("gamma", gamma), check_fraction("lam", lam)
    rho_clip, c_clip = check_clip("rho_clip", rho_clip), check_clip("c_clip", c_clip)
    threads = check_threads(threads)
    weights = (gamma, gamma * lam, rho_clip, c_clip)
    if on_device(value):
        return compute_on_device(value, reward, terminated, truncated, bootstrap, ratio, mask, out, weights)
    if native is not None:
        return compute_native(value, reward, terminated, truncated, bootstrap, ratio, mask, out, weights, threads)
    c = check_columns(value, reward, terminated, truncated, bootstrap, ratio, mask, out)
    inputs = (c.value, c.reward, c.terminated, c.truncated, c.bootstrap, c.ratio)
    vtrace_reference(*inputs, gamma=gamma, lam=lam, rho_clip=rho_clip, c_clip=c_clip, mask=c.mask, out=c.out)  # type: ignore[arg-type]
    return c.result


def vtrace_reference(
    value: np.ndarray,
    reward: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    bootstrap: np.ndarray,
    ratio: np.ndarray,
    *,
    gamma: float,
    lam: float,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    mask: np.ndarray | None = None,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """What ``vtrace`` means, column by column; any float dtype."""
    advantage: np.ndarray = np.empty_like(reward) if out is None else out
    zero, one = value.dtype.type(0), value.dtype.type(1)
    next_value, next_advantage = bootstrap, np.zeros_like(bootstrap)  # [segments]
    for t in reversed(range(value.shape[1])):
        ended = terminated[:, t] | truncated[:, t]
        weight = ratio[:, t] if mask is None else np.where(mask[:, t], ratio[:, t], one)
        rho, c = np.minimum(weight, rho_clip), np.minimum(weight, c_clip)
        delta = rho * (reward[:, t] + gamma * np.where(terminated[:, t], zero, next_value) - value[:, t])
        next_advantage = delta + gamma * lam * c * np.where(ended, zero, next_advantage)
        next_value = value[:, t]
        advantage[:, t] = next_advantage if mask is None else np.where(mask[:, t], next_advantage, zero)
    return advantage
