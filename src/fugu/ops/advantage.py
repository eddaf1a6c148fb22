"""GAE (Schulman et al. 2016, arXiv:1506.02438) and V-trace (Espeholt et al. 2018, arXiv:1802.01561) by fugu's row convention.

In: the columns of a rollout, ``[segments, horizon]``, and ``bootstrap``, ``[segments]``: the value of the observation after the
last column. Out: ``advantage``, ``[segments, horizon]``; the value target is ``advantage + value``.

Row t holds an observation, the action taken on it and what that action produced, so with ``V[horizon] = bootstrap``::

    delta[t] = rho[t] * (reward[t] + gamma * (1 - terminated[t]) * V[t+1] - V[t])
    A[t]     = delta[t] + gamma * lam * c[t] * (1 - (terminated[t] | truncated[t])) * A[t+1]        A[horizon] = 0

GAE has ``rho = c = 1``. V-trace has ``rho = min(ratio, rho_clip)`` and ``c = min(ratio, c_clip)``, where ``ratio`` is how much likelier
the action of a row is under the policy that learns than under the one that acted, ``exp(logprob_now - logprob_then)``. With ``lam=1``
it is exactly the paper's ``v_s - V(x_s)``, so ``advantage + value`` is the V-trace target ``v_s``; ``lam`` below 1 is the paper's
remark 2. One kernel computes both, on a CPU and on a GPU.

- A terminated row has no future. A truncated one bootstraps from ``V[t+1]``, which is the value of the true final observation:
  the row after an ending holds it, and after an ending in the last column ``bootstrap`` does.
- The row after an ending is masked: its action went nowhere. Its own advantage means nothing and influences no row that counts,
  because the accumulation is cut one row before. Its ``ratio`` is not read and counts as 1.
- Rows of an agent that waits for its turn are masked too, but nothing ended there: the accumulation passes through them, so that
  rewards which arrive meanwhile reach the action that caused them, discounted by the rows in between. What ``value`` says of them
  counts like any other; where nothing trains it, give them a value that does no harm (``algorithm/ppo.py`` does).
- Masked rows come out as 0 where a ``mask`` is given.
- NaN and infinity are not swallowed, but go no further than the cut before them: what is cut off is left out, not multiplied by 0.

torch is imported by who passes a tensor: with numpy arrays this computes without it.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fugu import native as core
from fugu.errors import ConfigError
from fugu.gpu import use

if TYPE_CHECKING:
    from torch import Tensor

Array = TypeVar("Array")
"""a numpy array or a torch tensor; what comes back is what came in"""


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
    """Return the advantage of every row, as an array of the same kind as ``value``.

    ``value``, ``reward``: float32 ``[segments, horizon]``. ``terminated``, ``truncated``, ``mask``: bool of that shape.
    ``bootstrap``: float32 ``[segments]``. Numpy arrays or CPU tensors, contiguous; nothing is copied, gradients do not flow. Or
    tensors on a GPU, in any order in memory, where one kernel computes it and nothing waits.
    ``out`` is written and returned if given; it may be ``reward``. ``threads``: at most this many, by default one per usable
    core; the result does not depend on it.
    """
    gamma, lam = _fraction("gamma", gamma), _fraction("lam", lam)
    weights = (gamma, gamma * lam, math.inf, math.inf)
    return _compute((value, reward, terminated, truncated, bootstrap), None, mask, out, weights, _checked_threads(threads))


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
    """Return the advantage of every row, as an array of the same kind as ``value``.

    ``ratio``: float32 ``[segments, horizon]``; the other columns, ``out`` (which may also be ``ratio``) and ``threads`` are those
    of ``gae``. ``rho_clip`` bounds the weight of a row's own TD error, ``c_clip`` how much of the future flows back through it;
    ``math.inf`` means no bound.
    """
    gamma, lam = _fraction("gamma", gamma), _fraction("lam", lam)
    weights = (gamma, gamma * lam, _clip("rho_clip", rho_clip), _clip("c_clip", c_clip))
    return _compute((value, reward, terminated, truncated, bootstrap), ratio, mask, out, weights, _checked_threads(threads))


def estimate(
    value: Tensor,
    reward: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    bootstrap: Tensor,
    mask: Tensor,
    *,
    gamma: float,
    lam: float,
    ratio: Tensor | None = None,
    rho_clip: float = math.inf,
    c_clip: float = math.inf,
) -> tuple[Tensor, Tensor]:
    """Return what a policy loss multiplies by, 0 on masked rows, and the value target, for tensors in any order in memory.

    Without ``ratio`` that is GAE's advantage. With it the target is V-trace's; PPO's surrogate multiplies by the ratio itself, so it
    gets the error of the row before V-trace weighs it, plus the corrected future, as in the paper's policy gradient.
    """
    columns = (value, reward, terminated, truncated, bootstrap)
    weights = (gamma, gamma * lam, rho_clip, c_clip)
    if (value.is_cuda or use.emulated) and use.ready(*columns):
        from fugu.ops.advantage_cuda import estimate_cuda

        return estimate_cuda(columns, ratio, mask, weights)
    given = tuple(column.detach().cpu().contiguous() for column in columns)
    if ratio is None:
        advantage = _compute(given, None, mask.cpu().contiguous(), None, weights, _cores()).to(value.device)
        return advantage, advantage + value
    traced = _compute(given, ratio.detach().cpu().contiguous(), None, None, weights, _cores()).to(value.device)
    return _surrogate(traced, *columns, gamma, lam).masked_fill(~mask, 0.0), value + traced


def _surrogate(
    traced: Tensor,
    value: Tensor,
    reward: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    bootstrap: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:
    """Return the error of each row, plus the future as V-trace corrects it."""
    import torch

    next_value = torch.cat([value[:, 1:], bootstrap[:, None]], 1)
    next_traced = torch.cat([traced[:, 1:], torch.zeros_like(traced[:, :1])], 1)
    delta = reward + gamma * torch.where(terminated, 0.0, next_value) - value
    return delta + gamma * lam * torch.where(terminated | truncated, 0.0, next_traced)


def _compute(
    columns: tuple[Any, ...], ratio: Any, mask: Any, out: Any, weights: tuple[float, float, float, float], threads: int
) -> Any:
    """Return the advantage by the kernel for where ``columns`` are. ``weights``: gamma, gamma * lam, rho_clip, c_clip.

    The native kernel refuses arrays it cannot read in place, so arrays are first given to it as they are; the checks, which take ten
    times as long as a small batch, come after that and say what is wrong.
    """
    value, reward, terminated, truncated, bootstrap = columns
    on_cuda = getattr(value, "is_cuda", None)  # None: no tensor
    if on_cuda is not None and (on_cuda or use.emulated) and use.ready(value):
        from fugu.ops.advantage_cuda import trace

        return trace(value, reward, terminated, truncated, bootstrap, weights, ratio=ratio, mask=mask, advantage=out).advantage
    inputs = (*columns, ratio, mask)
    if core.native is not None:
        try:
            if type(value) is np.ndarray:
                result: Any = np.empty_like(value) if out is None else out
                core.native.advantage(*inputs, result, *weights, threads)
            else:
                arrays = [None if column is None else column.detach().numpy() for column in inputs]
                result = value.detach().new_empty(value.shape) if out is None else out
                core.native.advantage(*arrays, result.numpy(), *weights, threads)
            return result
        except (AttributeError, RuntimeError, TypeError, ValueError):
            pass
    from fugu.ops.advantage_checks import check_columns

    c = check_columns(value, reward, terminated, truncated, bootstrap, ratio, mask, out)
    views = (c.value, c.reward, c.terminated, c.truncated, c.bootstrap)
    if core.native is not None:
        core.native.advantage(*views, c.ratio, c.mask, c.out, *weights, threads)
    else:
        _reference(*views, c.ratio, weights, c.mask, c.out)
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
    """Compute what ``gae`` does, column by column; any float dtype."""
    weights = (gamma, gamma * lam, math.inf, math.inf)
    return _reference(value, reward, terminated, truncated, bootstrap, None, weights, mask, out)


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
    """Compute what ``vtrace`` does, column by column; any float dtype."""
    weights = (gamma, gamma * lam, rho_clip, c_clip)
    return _reference(value, reward, terminated, truncated, bootstrap, ratio, weights, mask, out)


def _reference(
    value: np.ndarray,
    reward: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    bootstrap: np.ndarray,
    ratio: np.ndarray | None,
    weights: tuple[float, float, float, float],
    mask: np.ndarray | None,
    out: np.ndarray | None,
) -> np.ndarray:
    gamma, gamma_lam, rho_clip, c_clip = weights
    advantage: np.ndarray = np.empty_like(reward) if out is None else out
    zero, one = value.dtype.type(0), value.dtype.type(1)
    next_value, next_advantage = bootstrap, np.zeros_like(bootstrap)  # [segments]
    for t in reversed(range(value.shape[1])):
        ended = terminated[:, t] | truncated[:, t]
        delta = reward[:, t] + gamma * np.where(terminated[:, t], zero, next_value) - value[:, t]
        future = gamma_lam * np.where(ended, zero, next_advantage)
        if ratio is not None:
            weight = ratio[:, t] if mask is None else np.where(mask[:, t], ratio[:, t], one)
            delta, future = np.minimum(weight, rho_clip) * delta, np.minimum(weight, c_clip) * future
        next_value, next_advantage = value[:, t], delta + future
        advantage[:, t] = next_advantage if mask is None else np.where(mask[:, t], next_advantage, zero)
    return advantage


def _fraction(name: str, number: float) -> float:
    if not 0 <= number <= 1:  # also catches NaN
        raise ConfigError(f"{name}={number} must be between 0 and 1")
    return float(number)


def _clip(name: str, number: float) -> float:
    if not number > 0:
        raise ConfigError(f"{name}={number} must be above 0; give math.inf for no clipping")
    return float(number)


def _checked_threads(threads: int | None) -> int:
    if threads is None:
        return _cores()
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads < 2**16:
        raise ConfigError(f"threads={threads!r} must be a whole number of at least 1; leave it out for one per core")
    return threads


def _cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
