"""Advantage of whole episodes against others that began alike (GRPO: Shao et al. 2024, arXiv:2402.03300); no critic.

In: ``score [episodes]``, the return of each, NaN where there is none (it could not be scored, which is not a score of 0), and ``group
[episodes]``, whole numbers from 0: those with the same number began in the same state. Out: ``advantage [episodes]``, the score less
the mean of its group, in units of

    group    the deviation of the scores of its group, as in GRPO: starts where scores hardly differ weigh more
    batch    the deviation of all scores
    none     as it is (Dr. GRPO: Liu et al. 2025, arXiv:2503.20783)

The deviation is the unbiased one (n - 1). An episode without a score has advantage 0 and is in no mean. So has a group of
which fewer than two have a score, or whose scores are all the same: exactly 0, whatever the rounding.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fugu.ranks import ALONE, Ranks

Scale = Literal["group", "batch", "none"]

EPS = 1e-4
"""added to a deviation before dividing by it"""


class GroupAdvantage(NamedTuple):
    advantage: Tensor
    """[episodes]"""
    deviation: Tensor
    """[groups] of the scores in each; 0 where they are all the same"""
    differs: Tensor
    """[groups] True if its scores differ; if not, there is nothing to learn from it"""
    scored: Tensor
    """[episodes] True if it has a score"""


def group_advantage(score: Tensor, group: Tensor, *, groups: int, scale: Scale, ranks: Ranks = ALONE) -> GroupAdvantage:
    """Compare the episodes of each group. ``groups`` is their number, including those that no episode belongs to."""
    scored = ~score.isnan()
    known = torch.where(scored, score, 0.0)
    count = _sum(scored.to(score.dtype), group, groups)
    mean = _sum(known, group, groups) / count.clamp(min=1)
    difference = torch.where(scored, known - mean[group], 0.0)
    deviation = (_sum(difference.square(), group, groups) / (count - 1).clamp(min=1)).sqrt()
    differs = group_differs(score, group, groups)
    difference = torch.where(differs[group] & scored, difference, 0.0)
    deviation = torch.where(differs, deviation, 0.0)
    if scale == "group":
        difference = difference / (deviation[group] + EPS)
    elif scale == "batch":
        many = ranks.sum(scored.sum())
        center = ranks.sum(known.sum()) / many.clamp(min=1)
        square = ranks.sum(torch.where(scored, known - center, 0.0).square().sum())
        difference = difference / ((square / (many - 1).clamp(min=1)).sqrt() + EPS)
    return GroupAdvantage(difference, deviation, differs, scored)


def group_differs(score: Tensor, group: Tensor, groups: int) -> Tensor:
    """Return ``[groups]``: whether two episodes of a group have different scores."""
    scored = ~score.isnan()
    low = score.new_full((groups,), torch.inf).scatter_reduce(0, group, torch.where(scored, score, torch.inf), "amin")
    high = score.new_full((groups,), -torch.inf).scatter_reduce(0, group, torch.where(scored, score, -torch.inf), "amax")
    return high > low


def overlong_penalty(length: Tensor, *, limit: int, margin: int) -> Tensor:
    """Return what an episode loses for its ``length``: nothing up to ``limit - margin``, then linearly more up to 1 at ``limit``
    (DAPO: Yu et al. 2025, arXiv:2503.14476). ``margin`` 0: nothing."""
    if margin == 0:
        return torch.zeros_like(length, dtype=torch.float32)
    return ((limit - margin - length) / margin).clamp(-1.0, 0.0)


def _sum(x: Tensor, group: Tensor, groups: int) -> Tensor:
    return x.new_zeros(groups).index_add(0, group, x)
