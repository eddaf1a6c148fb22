"""The loss of PPO as a pure function of columns, and what comes before and after it. Shapes: everything ``[rows]``.

``weight`` is 0 on masked rows and sums to 1 over the others, so every mean below is ``(weight * x).sum()`` over rows that count;
what masked rows hold, be it NaN, reaches neither the loss nor a gradient. ``ppo_loss_of`` is the readable reference. The native
kernel gives the same bits in every run and on any number of threads.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fugu import native as core
from fugu.gpu import use
from fugu.ranks import ALONE, Ranks


class Distribution(Protocol):
    """The distribution of actions, as ``policy/distribution.py`` has it."""

    heads: int
    """categorical elements"""
    choices: int
    """of these in all"""
    reals: int
    """elements that are real numbers"""
    dims: int
    """elements of all kinds"""

    def evaluate(self, params: Tensor, action: Tensor, action_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy, each ``[rows]``."""


class Loss(NamedTuple):
    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor
    """how far the policy has moved: mean of (ratio - 1) - log(ratio), the low-variance estimate (Schulman 2020)"""
    clip_fraction: Tensor
    """share of rows whose ratio lies outside the clip"""


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
    """Return the loss of a minibatch and its parts; gradients flow to ``params [rows, size]`` and ``value``.

    For one categorical choice a native kernel computes it with its gradients in one pass; on a GPU there is one for real numbers
    too. Kernels square all errors of values: with ``value_huber`` torch computes. ``entropy_coef`` may be a tensor on the device.
    """
    settings: Any = {"clip": clip, "value_clip": value_clip, "value_coef": value_coef, "entropy_coef": entropy_coef}
    columns = (old_logprob, advantage, old_value, value_target, weight)
    if value_huber == math.inf:
        d, one_choice = distribution, distribution.heads == distribution.dims == 1
        if (params.is_cuda or use.emulated) and use.ready(params, value, *columns):
            from fugu.ops import ppo_loss_cuda

            if ppo_loss_cuda.can_take(d.heads, d.choices, d.reals, d.dims):
                chosen = action[:, 0] if d.heads else action
                total, all_sums = ppo_loss_cuda.ppo_loss(params, value, chosen, columns, action_mask=action_mask, **settings)
                return Loss(total, *all_sums.unbind()[:5])
        if one_choice and core.native is not None and all(map(_is_plain, (params, value, *columns))):
            coefficients = (clip, value_clip, value_coef, float(entropy_coef))
            total, sums = _PpoLossCategorical.apply(params, value, action[:, 0], *columns, action_mask, *coefficients)
            return Loss(total, *sums.unbind())
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
    """Compute what ``ppo_loss`` does from log-probabilities and entropies, with torch."""
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
    """Return the root, with a gradient of 0 at 0 where it has none."""
    return torch.where(squared > 0, squared, 1.0).sqrt() * (squared > 0)


class _PpoLossCategorical(torch.autograd.Function):
    """Forward computes the gradients of ``logits`` and ``value`` too, in the same pass; backward scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        value: Tensor,
        action: Tensor,
        old_logprob: Tensor,
        advantage: Tensor,
        old_value: Tensor,
        value_target: Tensor,
        weight: Tensor,
        action_mask: Tensor | None,
        clip: float,
        value_clip: float,
        value_coef: float,
        entropy_coef: float,
    ) -> tuple[Tensor, Tensor]:
        columns = (logits, value, action, old_logprob, advantage, old_value, value_target, weight)
        grad_logits, grad_value = torch.empty(logits.shape), torch.empty(value.shape)
        sums = core.native.ppo_loss_categorical(
            *(_array(column) for column in columns),
            None if action_mask is None else _array(action_mask),
            clip,
            value_clip,
            value_coef,
            entropy_coef,
            grad_logits.numpy(),
            grad_value.numpy(),
            core.threads or torch.get_num_threads(),
        )
        parts = torch.tensor(sums)
        ctx.mark_non_differentiable(parts)
        ctx.save_for_backward(grad_logits, grad_value)
        return torch.tensor(sums[0] + value_coef * sums[1] - entropy_coef * sums[2]), parts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grads = ctx.saved_tensors
        if grad_loss.item() != 1.0:
            grads = tuple(grad * grad_loss for grad in grads)
        return *grads, *[None] * 11


def _is_plain(tensor: Tensor) -> bool:
    return tensor.dtype is torch.float32 and tensor.is_cpu


def _array(tensor: Tensor) -> np.ndarray:
    """Return a view of a contiguous tensor's memory, else of a copy; several times cheaper to pass on than the tensor itself."""
    return tensor.detach().contiguous().numpy()


def row_weight(mask: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """Return ``mask`` as weights that sum to 1 over all ranks; all 0 if nothing counts."""
    weight = mask.to(torch.float32)
    return weight / ranks.sum(weight.sum()).clamp(min=1.0)


def by_importance(weight: Tensor, importance: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """Return weights of rows with those of some segments counting for more than others; their sum is 1 again."""
    weight = weight * importance
    return weight / ranks.sum(weight.sum()).clamp(min=1e-30)


def weighed(advantage: Tensor, mask: Tensor, *, normalize: bool, ranks: Ranks = ALONE) -> tuple[Tensor, Tensor]:
    """Return ``advantage``, normalised over the rows of ``mask`` if asked for, and ``row_weight(mask)``.

    Masked advantages mean nothing.
    """
    if (advantage.is_cuda or use.emulated) and ranks.size == 1 and use.ready(advantage, mask):
        from fugu.ops import ppo_loss_cuda

        return ppo_loss_cuda.weighed(advantage, mask, normalize=normalize)
    weight = row_weight(mask, ranks)
    return normalized(advantage, weight, ranks) if normalize else advantage, weight


def explained_variance(value: Tensor, target: Tensor, mask: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """Return how well values predict targets: 1 exactly, 0 no better than their mean, below 0 worse; 0 where targets do not vary."""
    weight = row_weight(mask, ranks)
    error = target - value
    spread, unexplained = _variance(target, weight, ranks), _variance(error, weight, ranks)
    return torch.where(spread > 0, 1 - unexplained / spread, torch.zeros_like(spread))


def normalized(x: Tensor, weight: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """Return ``x`` with mean 0 and deviation 1 over the rows that count; rows that do not vary come out as 0.

    The mean is computed in float64: otherwise the rounding noise on constant rows is scaled to deviation 1.
    """
    share = weight.double()
    mean = ranks.sum((share * x.double()).sum()) / ranks.sum(share.sum()).clamp(min=1e-30)
    from_mean = x - mean.to(x.dtype)
    deviation = ranks.sum((weight * from_mean.square()).sum()).sqrt()
    return from_mean / (deviation + 1e-8)


def _variance(x: Tensor, weight: Tensor, ranks: Ranks) -> Tensor:
    mean = ranks.sum((weight * x).sum())
    return ranks.sum((weight * (x - mean).square()).sum())
