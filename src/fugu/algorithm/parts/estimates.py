"""Estimates of PPO: rewards in the units that are learned from, advantages and value targets, and how likely segments are drawn.

Everything is a function of columns ``[segments, horizon]``. ``turns`` says that there may be rows on which an agent waits for others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fugu.algorithm.config import TeamPPOConfig
from fugu.algorithm.parts.scale import RewardScale, ValueScale
from fugu.ops.advantage import estimate
from fugu.ops.ppo_loss import normalized, row_weight
from fugu.ranks import ALONE, Ranks
from fugu.rollout.batch import Batch


def may_wait(envs: Any) -> bool:
    """Return whether agents of ``envs`` can have rows on which they wait for others."""
    return envs.spec.num_agents > 1


def entropy_at(config: TeamPPOConfig, progress: float | Tensor) -> float | Tensor:
    """Return the weight of the entropy at this point of the training."""
    if config.entropy_final is None:
        return config.entropy_coef
    return config.entropy_coef + (config.entropy_final - config.entropy_coef) * progress


def with_rewards(batch: Batch, config: TeamPPOConfig, scale: RewardScale | None, *, turns: bool) -> Batch:
    """Return the batch with rewards scaled and bounded, and without turns that are still open at the end of a segment."""
    reward = batch["reward"]
    if scale is not None:
        reward = scale(reward, batch["terminated"] | batch["truncated"], batch["mask"])
    if config.reward_clip is not None:
        reward = reward.clamp(-config.reward_clip, config.reward_clip)
    batch = batch.also(reward=reward)
    return without_open_turns(batch) if turns and "acts_after" in batch else batch


def with_estimates(
    batch: Batch,
    config: TeamPPOConfig,
    advantage: Tensor,
    target: Tensor,
    scale: ValueScale | None,
    progress: float | Tensor,
    ranks: Ranks = ALONE,
) -> Batch:
    """Return the batch with ``advantage`` and ``value_target``, normalised as the config says, and with priorities if it has any."""
    added, once = {"advantage": advantage, "value_target": target}, {}
    if scale is not None:
        now = scale.update(target, batch["mask"], batch["value"], batch["bootstrap"])
        if config.vtrace or config.value_clip is not None:  # which compare them with what the network says now
            added["value_now"], once["bootstrap_now"] = now
    if config.normalize_advantage == "batch":
        added["advantage"] = normalized(advantage, row_weight(batch["mask"], ranks), ranks)
    if config.priority > 0:
        correction = config.priority_correction + (1 - config.priority_correction) * progress
        found = priorities(added["advantage"], batch["mask"], config.priority, correction, ranks)
        once["priority"], once["importance"] = found
    return batch.also(**added).also_once(**once)


def gae_of(batch: Batch, gamma: float, lam: float, *, turns: bool) -> tuple[Tensor, Tensor]:
    """Return advantage and value target of ``reward``, ``value`` and ``bootstrap``. ``turns``: there may be rows of waiting agents."""
    if turns:
        batch = batch.also(value=settled(batch, gamma))
    columns = (batch["value"], batch["reward"], batch["terminated"], batch["truncated"], batch["bootstrap"])
    return estimate(*columns, batch["mask"], gamma=gamma, lam=lam)


def settled(batch: Batch, gamma: float) -> Tensor:
    """Return ``value``, with rows on which an agent waits worth what came of it: what was paid meanwhile, and the value of its next turn.

    Nothing trains what the network says of such rows. This way they add no error of their own to an advantage, and rewards that
    arrive on them reach the action before at full weight, whatever lambda is.
    """
    value, ended = batch["value"], batch["terminated"] | batch["truncated"]
    waits = ~batch["mask"]
    waits[:, 1:] &= ~ended[:, :-1]  # the row after an ending holds the final observation
    if not waits.is_cuda and not waits.any():
        return value
    out, after = value.clone(), batch["bootstrap"]
    for t in reversed(range(value.shape[1])):
        ahead = batch["reward"][:, t] + gamma * torch.where(batch["terminated"][:, t], 0.0, after)
        after = torch.where(waits[:, t], ahead, value[:, t])
        out[:, t] = after
    return out


def without_open_turns(batch: Batch) -> Batch:
    """Return the same where no segment ends amid an agent's wait: its last action there, of which it is not known what came of it, is left
    out, and the one before it looks ahead to the value of that turn.

    The row after the segment is one on which the agent waits, so what the network says of it is nothing that was learned.
    """
    mask, truncated = batch["mask"], batch["truncated"]
    ended = batch["terminated"] | truncated
    row = torch.arange(batch.horizon, device=mask.device)
    last, end = (torch.where(column, row, -1).amax(1) for column in (mask, ended))  # [segments]
    is_open = ~batch["acts_after"] & ~ended[:, -1] & (last > end)
    # in copies, so that they lie in memory as the other columns do
    mask = mask.clone().logical_and_(~(is_open[:, None] & (row == last[:, None])))
    truncated = truncated.clone().logical_or_(is_open[:, None] & (row == last[:, None] - 1))
    return batch.without("acts_after").also(mask=mask, truncated=truncated)


def priorities(
    advantage: Tensor, mask: Tensor, power: float, correction: float | Tensor, ranks: Ranks = ALONE
) -> tuple[Tensor, Tensor]:
    """Return how likely each segment is drawn, and what one that was drawn counts for (Schaul et al. 2016, arXiv:1511.05952).

    A segment's priority is the mean of ``|advantage|`` over its unmasked rows, to ``power``. The importance ``(n p)^-correction``
    takes the bias of drawing by it back, wholly at 1 and as far as a mean over one minibatch can. Both are ``[segments]``.
    """
    rows = mask.sum(1)
    size = (advantage.abs() * mask).sum(1) / rows.clamp(min=1)
    raw = torch.where(rows > 0, (size + 1e-6) ** power, 0.0)
    total = ranks.sum(raw.sum())
    segments = ranks.size * len(raw)
    probability = torch.where(total > 0, raw / total.clamp(min=1e-30), 1.0 / segments)
    importance = torch.where(probability > 0, (segments * probability).clamp(min=1e-12) ** -correction, 0.0)
    return probability, importance
