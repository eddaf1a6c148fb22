"""What algorithms that learn from recorded episodes have in common: acting without more, and how likely what was done is."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fugu.algorithm.contract import Algorithm, Metrics
from fugu.policy.distribution import Distribution
from fugu.policy.net import leaves
from fugu.ranks import Ranks
from fugu.rollout.acting import Act, Seen
from fugu.rollout.batch import Batch


def act_alone(algorithm: Algorithm, seen: Seen) -> Act:
    """Act with ``algorithm.policy``, an ``ActorCritic``, and keep only the action."""
    policy = algorithm.policy
    actions = policy.distribution
    params, _, state = policy(seen.obs, (seen.carry or {}).get("state"), seen.first)
    if seen.greedy:
        action = actions.mode(params, seen.action_mask)
    else:
        action = actions.sample(params, seen.action_mask, seen.generator or algorithm.generator)
    carry = {"state": state} if policy.state_size else None
    return Act(actions.to_env(action), carry, {"action": action})


def imitation_loss(actions: Distribution, params: Tensor, batch: Batch, ranks: Ranks) -> tuple[Tensor, Metrics]:
    """Return the mean of ``-log p(action)`` over the rows that were acted on."""
    mask = batch["mask"]
    logprob = actions.logprob(params, batch["action"], batch.get("action_mask"))
    loss = -torch.where(mask, logprob, 0.0).sum() / ranks.sum(mask.sum()).clamp(min=1)
    return loss, {"loss/imitation": loss.detach()}


def seen_by(policy: nn.Module, obs: Tensor) -> list[Tensor]:
    """Return the leaves of rows as critics of this policy see them."""
    return leaves(policy.structured(obs))  # type: ignore[operator]
