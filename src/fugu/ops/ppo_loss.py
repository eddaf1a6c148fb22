"""The loss of PPO as a pure function of columns. Shapes: everything ``[rows]``.

``weight`` is 0 on masked rows and sums to 1 over the others, so every mean below is ``(weight * x).sum()`` over rows that count;
what masked rows hold, be it NaN, reaches neither the loss nor a gradient.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fugu.gpu.use import ready
from fugu.ops import ppo_loss_cuda as cuda_loss
from fugu.ops.kernels import can_use_native, ppo_loss_categorical

if TYPE_CHECKING:
    from fugu.policy.distribution import Distribution


class Loss(NamedTuple):
    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor
    """how far the policy has moved: mean of (ratio - 1) - log(ratio), the low-variance estimate (Schulman 2020)"""
    clip_fraction: Tensor
    """share of rows whose ratio lies outside the clip"""


def row_weight(mask: Tensor) -> Tensor:
    """``mask`` as weights that sum to 1; all 0 if nothing counts."""
    weight = mask.to(torch.float32)
    return weight / weight.sum().clamp(min=1.0)


def by_importance(weight: Tensor, importance: Tensor) -> Tensor:
    """Weights of rows, with those of some segments counting for more than others; their sum is 1 again."""
    weight = weight * importance
    return weight / weight.sum().clamp(min=1e-30)


def ppo_loss(
    distribution: Distribution,
    params: Tensor,
    value: Tensor,
    *,
    action: Tensor,
    action_mask: Tensor | None = None,
    old_logprob: Tensor,
    old_value: Tensor,
    advantage: Tensor,
    value_target: Tensor,
    weight: Tensor,
    clip: float,
    value_clip: float = math.inf,
    value_huber: float = math.inf,
    value_coef: float,
    entropy_coef: float | Tensor,
) -> Loss:
    """``params [rows, size]`` of ``distribution`` and ``value`` are what the network says now; gradients flow to both.

    For one categorical choice a native kernel computes what ``ppo_loss_of`` says, with its gradients, in one pass
    (``policy/kernels.py``); on a GPU also for real numbers (``cuda/loss.py``). ``entropy_coef`` may be a tensor on the device.
    Kernels square all errors of values: with ``value_huber`` torch computes.
    """
    settings: Any = {"clip": clip, "value_clip": value_clip, "value_coef": value_coef, "entropy_coef": entropy_coef}
    columns = (old_logprob, advantage, old_value, value_target, weight)
    d = distribution
    squares = value_huber == math.inf
    if squares and ready(params, value, *columns) and cuda_loss.can_take(d.heads, d.choices, d.reals, d.dims):
        chosen = action[:, 0] if d.heads else action
        total, all_sums = cuda_loss.ppo_loss(params, value, chosen, columns, action_mask=action_mask, **settings)
        return Loss(total, *all_sums.unbind()[:5])
    if squares and distribution.heads == distribution.dims == 1 and can_use_native(params, value, *columns):
        settings["entropy_coef"] = float(entropy_coef)
        return Loss(*ppo_loss_categorical(params, value, action[:, 0], *columns, action_mask=action_mask, **settings))
    params = torch.where((weight > 0)[:, None], params, 0.0)  # a softmax would hand a NaN on to its gradient, even to one of 0
    logprob, entropy = distribution.evaluate(params, action, action_mask)
    return ppo_loss_of(logprob, entropy, value, *columns, value_huber=value_huber, **settings)


def ppo_loss_of(
    logprob: Tensor,
    entropy: Tensor,
    value: Tensor,
    old_logprob: Tensor,
    advantage: Tensor,
    old_value: Tensor,
    value_target: Tensor,
    weight: Tensor,
    *,
    clip: float,
    value_clip: float,
    value_huber: float = math.inf,
    value_coef: float,
    entropy_coef: float | Tensor,
) -> Loss:
    """What ``ppo_loss`` means."""
    counts = weight > 0
    zero = logprob.new_zeros(())
    logratio = torch.where(counts, logprob - old_logprob, zero)
    ratio = logratio.exp()
    advantage = torch.where(counts, advantage, zero)
    clipped = ratio.clamp(1 - clip, 1 + clip)
    policy = -(weight * torch.minimum(ratio * advantage, clipped * advantage)).sum()
    squared = torch.where(counts, value - value_target, zero).square()
    if value_clip < math.inf:
        near = old_value + (value - old_value).clamp(-value_clip, value_clip)
        squared = torch.maximum(squared, torch.where(counts, near - value_target, zero).square())
    if value_huber < math.inf:
        squared = torch.where(squared <= value_huber**2, squared, value_huber * (2 * _root(squared) - value_huber))
    value_loss = 0.5 * (weight * squared).sum()
    mean_entropy = (weight * torch.where(counts, entropy, zero)).sum()
    total = policy + value_coef * value_loss - entropy_coef * mean_entropy
    with torch.no_grad():
        kl = (weight * (ratio - 1 - logratio)).sum()
        clip_fraction = (weight * ((ratio - 1).abs() > clip)).sum()
    return Loss(total, policy, value_loss, mean_entropy, kl, clip_fraction)


def _root(squared: Tensor) -> Tensor:
    """The root, with a gradient of 0 at 0 where it has none."""
    return torch.where(squared > 0, squared, 1.0).sqrt() * (squared > 0)


def weighed(advantage: Tensor, mask: Tensor, *, normalize: bool) -> tuple[Tensor, Tensor]:
    """``advantage``, normalised over the rows of ``mask`` if so asked, and ``row_weight(mask)``. Masked advantages mean nothing."""
    if ready(advantage, mask):
        return cuda_loss.weighed(advantage, mask, normalize=normalize)
    weight = row_weight(mask)
    return normalized(advantage, weight) if normalize else advantage, weight


def explained_variance(value: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """1: the values foretell the targets; 0: no better than their mean; below: worse. 0 where targets do not vary."""
    weight = row_weight(mask)
    error = target - value
    spread, unexplained = _variance(target, weight), _variance(error, weight)
    return torch.where(spread > 0, 1 - unexplained / spread, torch.zeros_like(spread))


def normalized(x: Tensor, weight: Tensor) -> Tensor:
    """``x`` with mean 0 and deviation 1 over the rows that count; rows that do not vary come out as 0.

    The mean is taken in double precision: what is left of rows that do not vary would else be rounding, brought to deviation 1.
    """
    share = weight.double()
    mean = (share * x.double()).sum() / share.sum().clamp(min=1e-30)
    from_mean = x - mean.to(x.dtype)
    deviation = (weight * from_mean.square()).sum().sqrt()
    return from_mean / (deviation + 1e-8)


def _variance(x: Tensor, weight: Tensor) -> Tensor:
    return (weight * (x - (weight * x).sum()).square()).sum()
