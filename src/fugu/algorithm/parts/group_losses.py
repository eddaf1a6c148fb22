"""The losses of GRPO and its family as one pure function of columns. Shapes: everything ``[episodes, tokens]``.

A token is whatever the policy chose at one time: a word of a text, or an action. All tokens of an episode share its advantage. The
members of the family differ in three settings:

    ratio     of what the probability is compared: of each token, or of the sequence, exp(mean log-ratio of its tokens)
              (GSPO: Zheng et al. 2025, arXiv:2507.18071)
    cut       clip: min(r A, clip(r, 1 - low, 1 + high) A), which cuts the gradient of a token that has moved far enough;
              weight: the ratio, at most 1 + high and without gradient, weighs log-probabilities, so that no token is cut
              (CISPO: MiniMax 2025, arXiv:2506.13585)
    average   what the weights of tokens add up to: see ``token_weight``

Weights are made once for all episodes of an optimizer step. So parts of them can be computed one by one, and their losses added up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fugu.ranks import ALONE, Ranks

Ratio = Literal["token", "sequence"]
Cut = Literal["clip", "weight"]
Average = Literal["sequence", "token", "longest"]
Divergence = Literal["k2", "k3"]


@dataclass(frozen=True, kw_only=True)
class GroupLossSettings:
    """Settings that make a member of the family."""

    ratio: Ratio
    cut: Cut
    clip_low: float
    clip_high: float
    kl: Divergence = "k2"
    kl_coef: float = 0.0
    entropy_coef: float | Tensor = 0.0


class GroupLoss(NamedTuple):
    """Sums over weighted tokens, so that those of parts add up to that of the whole."""

    total: Tensor
    policy: Tensor
    entropy: Tensor
    kl: Tensor
    """distance the policy has moved since it acted: mean of (ratio - 1) - log(ratio), per token"""
    clip_fraction: Tensor
    """share of tokens that the clip leaves without a gradient, or whose ratio is cut down"""
    reference_kl: Tensor
    """estimate of KL(policy || reference), per token; 0 without one"""


def token_weight(counts: Tensor, average: Average, longest: int, ranks: Ranks = ALONE) -> Tensor:
    """Return the weight of each token, 0 where it does not count; ``counts`` bool ``[episodes, tokens]`` of a whole optimizer step.

    sequence: the mean of the episodes' means (GRPO, GSPO). token: the mean of all tokens, so that long episodes weigh more (DAPO,
    CISPO). longest: the sum of tokens over the number of episodes times ``longest``, the most tokens there can be: no token's
    weight depends on how long its episode became (Dr. GRPO). An episode without a token that counts is no episode.
    """
    weight = counts.to(torch.float32)
    length = weight.sum(1)
    episodes = ranks.sum((length > 0).sum()).clamp(min=1)
    if average == "token":
        return weight / ranks.sum(length.sum()).clamp(min=1)
    if average == "longest":
        return weight / (episodes * longest)
    return weight / (length.clamp(min=1) * episodes)[:, None]


def group_loss(
    logprob: Tensor,
    entropy: Tensor,
    *,
    old_logprob: Tensor,
    advantage: Tensor,
    weight: Tensor,
    share: Tensor,
    settings: GroupLossSettings,
    importance: Tensor | None = None,
    reference_logprob: Tensor | None = None,
) -> GroupLoss:
    """Return the losses of these tokens. ``logprob`` and ``entropy`` are the current policy's; gradients flow to both. The contents
    of tokens without weight, even NaN, reach neither the loss nor a gradient.

    ``share``: like ``weight`` of the plain mean over tokens, for metrics that are only reported. ``importance``: factor on a
    token's part of the policy's loss, to correct for a sampler that did not quite follow the policy. ``reference_logprob``: of a
    policy not to stray from, see ``divergence``.
    """
    s, counts = settings, share > 0
    zero = logprob.new_zeros(())
    logprob = torch.where(counts, logprob, zero)
    advantage = torch.where(counts, advantage, zero)
    token_logratio = torch.where(counts, logprob - old_logprob, zero)
    logratio = token_logratio
    if s.ratio == "sequence":
        logratio = token_logratio.sum(1, keepdim=True) / counts.sum(1, keepdim=True).clamp(min=1)
        logratio = torch.where(counts, logratio, zero)
    ratio = logratio.exp()
    if s.cut == "weight":
        gain = ratio.detach().clamp(max=1 + s.clip_high) * advantage * logprob
        cut = ratio > 1 + s.clip_high
    else:
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - s.clip_low, 1 + s.clip_high) * advantage)
        cut = ((advantage > 0) & (ratio > 1 + s.clip_high)) | ((advantage < 0) & (ratio < 1 - s.clip_low))
    if importance is not None:
        gain = torch.where(counts, importance, zero) * gain
    policy = -(weight * gain).sum()
    entropy = torch.where(counts, entropy, zero)
    total = policy - s.entropy_coef * (weight * entropy).sum()
    strayed = torch.zeros_like(policy)
    if reference_logprob is not None:
        away = divergence(logprob, torch.where(counts, reference_logprob, zero), s.kl)
        total = total + s.kl_coef * (weight * away).sum()
        strayed = (share * away).sum().detach()
    with torch.no_grad():
        moved = (share * (token_logratio.exp() - 1 - token_logratio)).sum()
        clipped = (share * cut).sum()
        spread = (share * entropy).sum()
    return GroupLoss(total, policy.detach(), spread, moved, clipped, strayed)


def divergence(logprob: Tensor, reference: Tensor, kind: Divergence) -> Tensor:
    """Return an estimate of KL(policy || reference) per token, on tokens that the policy drew.

    Both have that mean, nearly or exactly; as losses they differ. The gradient of k2, (log p/q)^2 / 2, is on average that of
    KL(policy || reference). That of k3, q/p - 1 - log q/p, which many libraries use, is that of KL(reference || policy). (log p/q
    alone, k1, has a gradient of 0 on average, and is no loss at all.)
    """
    log = reference - logprob
    return 0.5 * log.square() if kind == "k2" else log.exp() - 1 - log
