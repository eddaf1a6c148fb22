"""Share what algorithms that learn from recorded episodes have in common: acting without more, and how likely what was done is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fugu.algorithm.contract import Algorithm, Metrics
from fugu.algorithm.setup import Setup
from fugu.errors import ConfigError
from fugu.policy.actor_critic import ActorCritic
from fugu.policy.distribution import Distribution
from fugu.policy.net import leaves
from fugu.policy.squashed import Around
from fugu.ranks import Ranks
from fugu.rollout.acting import Act, Seen
from fugu.rollout.batch import Batch

if TYPE_CHECKING:
    from fugu.data import DataSet


def with_actor(setup: Setup, name: str) -> ActorCritic:
    """Return a policy without memory whose actions lie around squashed means (``Around``), for which critics can judge single rows."""
    if setup.net.core != "none":
        raise ConfigError(f"{name} has no memory, so policy.core={setup.net.core} is of no use; type --policy.core none")
    policy = setup.policy()
    if not isinstance(policy, ActorCritic):
        raise ConfigError(f"{name} needs a policy that is no {type(policy).__name__}; type --policy.net default")
    policy.distribution = Around(setup.envs.action_space).to(setup.device)
    return policy


def act_alone(algorithm: Algorithm, seen: Seen, *, greedy: bool = False) -> Act:
    """Act with ``algorithm.policy``, an ``ActorCritic``, and keep only the action. ``greedy``: also where an action may be drawn."""
    policy = algorithm.policy
    actions = policy.distribution
    params, _, state = policy(seen.obs, (seen.carry or {}).get("state"), seen.first)
    if seen.greedy or greedy:
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


def return_scale(data: DataSet) -> float:
    """Return the factor on rewards with which the best and the worst episode differ by 1 for each step of a mean episode."""
    spread = float(data.returns.max() - data.returns.min())
    return float(data.lengths.mean()) / spread if spread > 0 else 1.0


@torch.no_grad()
def follow(slow: nn.Module, fast: nn.Module, share: float) -> None:
    """Let the weights of a slow copy take over a share of the others."""
    torch._foreach_lerp_(list(slow.parameters()), list(fast.parameters()), share)


def seen_by(policy: nn.Module, obs: Tensor) -> list[Tensor]:
    """Return the leaves of rows as critics of this policy see them."""
    return leaves(policy.structured(obs))  # type: ignore[operator]
