"""The parts of PPO, for all algorithms built from them: acting, estimates of a batch, and the loss of a minibatch.

Everything is a function of columns ``[segments, horizon]``, or holds no more than the settings. ``turns`` means that there may be
rows on which an agent waits for others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fugu.algorithm.config import SurrogateConfig, TeamPPOConfig
from fugu.algorithm.parts.scale import RewardScale, ValueScale
from fugu.ops.advantage import estimate
from fugu.ops.gather import flat, time_major
from fugu.ops.ppo_loss import by_importance, normalized, ppo_loss, row_weight, weighed
from fugu.ops.sample import choose
from fugu.policy.actor_critic import ActorCritic, Output
from fugu.policy.distribution import Distribution
from fugu.ranks import ALONE, Ranks
from fugu.rollout.acting import Act, Carry, Seen
from fugu.rollout.batch import Batch

LossAndMetrics = tuple[Tensor, dict[str, Tensor]]


# Acting ----------------------------------------------------------------------------------------------------------------------


def act_with_value(policy: ActorCritic, seen: Seen, generator: torch.Generator, scale: ValueScale | None) -> Act:
    """Choose with ``policy``, and keep ``action``, ``logprob`` and ``value``."""
    distribution, state = policy.distribution, state_of(policy, seen)
    if seen.into is not None and policy.joint:
        head, state = policy.joint_step(seen.obs, state, seen.first)
        moments = None if scale is None else scale.moments
        uniform = torch.rand(len(seen.first), generator=generator, device=seen.first.device)
        into = seen.into
        choose(head, uniform, seen.action_mask, moments, into["action"], into["logprob"], into["value"])
        return Act(distribution.to_env(into["action"]), carry_of(state))
    return chosen(distribution, policy(seen.obs, state, seen.first), seen, generator, scale)


def chosen(distribution: Distribution, out: Output, seen: Seen, generator: torch.Generator, scale: ValueScale | None) -> Act:
    """Return the action drawn from a network's output for ``seen``, or the most likely one."""
    if seen.greedy:
        action = distribution.mode(out.params, seen.action_mask)
        columns = {"action": action}
    else:
        action, logprob = distribution.sample_with_logprob(out.params, seen.action_mask, generator)
        value = out.value if scale is None else scale.real(out.value)
        columns = {"action": action, "logprob": logprob, "value": value}
    return Act(distribution.to_env(action), carry_of(out.state), columns)


def state_of(policy: Any, seen: Seen) -> Tensor | None:
    """Return the memory of a recurrent network before these rows; None for a network without one."""
    if not policy.state_size:
        return None
    if seen.carry is None:
        return torch.zeros((len(seen.first), policy.state_size), device=seen.first.device)
    return seen.carry["state"]


def carry_of(state: Tensor | None) -> Carry | None:
    """Return the memory after some rows as a carry."""
    return None if state is None else {"state": state}


# Estimates -------------------------------------------------------------------------------------------------------------------


def may_wait(envs: Any) -> bool:
    """Return whether agents of ``envs`` can have rows on which they wait for others."""
    return envs.spec.num_agents > 1


def entropy_at(config: TeamPPOConfig, progress: float | Tensor) -> float | Tensor:
    """Return the weight of the entropy bonus at this point of the training."""
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
    """Return the batch with ``advantage`` and ``value_target``, normalised as the config says, and with priorities if it asks for
    them."""
    added, once = {"advantage": advantage, "value_target": target}, {}
    if scale is not None:
        now = scale.update(target, batch["mask"], batch["value"], batch["bootstrap"])
        if config.vtrace or config.value_clip is not None:  # these compare them with the network's current values
            added["value_now"], once["bootstrap_now"] = now
    if config.normalize_advantage == "batch":
        added["advantage"] = normalized(advantage, row_weight(batch["mask"], ranks), ranks)
    if config.priority > 0:
        correction = config.priority_correction + (1 - config.priority_correction) * progress
        found = priorities(added["advantage"], batch["mask"], config.priority, correction)
        once["priority"], once["importance"] = found
    return batch.also(**added).also_once(**once)


def gae_of(batch: Batch, gamma: float, lam: float, *, turns: bool) -> tuple[Tensor, Tensor]:
    """Return the advantage and value target of ``reward``, ``value`` and ``bootstrap``. ``turns``: there may be rows of waiting
    agents."""
    if turns:
        batch = batch.also(value=settled(batch, gamma))
    columns = (batch["value"], batch["reward"], batch["terminated"], batch["truncated"], batch["bootstrap"])
    return estimate(*columns, batch["mask"], gamma=gamma, lam=lam)


def settled(batch: Batch, gamma: float) -> Tensor:
    """Return ``value`` with each row on which an agent waits replaced by what followed: the rewards until its next turn plus that
    turn's value.

    The network's output on such rows is never trained. Replaced like this they add no error of their own to an advantage, and
    rewards that arrive on them reach the action before at full weight, whatever lambda is.
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
    """Return the batch with no segment ending amid an agent's wait: the last action there, whose outcome is not known yet, is left
    out, and the one before it bootstraps from the value of that turn.

    On the row after the segment the agent waits, so the network's value of it was never trained.
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


def priorities(advantage: Tensor, mask: Tensor, power: float, correction: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return the probability of drawing each segment, and the importance of one that was drawn (Schaul et al. 2016,
    arXiv:1511.05952).

    A segment's priority is the mean of ``|advantage|`` over its unmasked rows, to ``power``. The importance ``(n p)^-correction``
    undoes the bias of drawing by priority: wholly at 1, as far as a mean over one minibatch can. Both are ``[segments]``.
    """
    rows = mask.sum(1)
    size = (advantage.abs() * mask).sum(1) / rows.clamp(min=1)
    raw = torch.where(rows > 0, (size + 1e-6) ** power, 0.0)
    total = raw.sum()  # of this rank, which draws from its own segments
    probability = torch.where(total > 0, raw / total.clamp(min=1e-30), 1.0 / len(raw))
    importance = torch.where(probability > 0, (len(raw) * probability).clamp(min=1e-12) ** -correction, 0.0)
    return probability, importance


# The loss --------------------------------------------------------------------------------------------------------------------


class Surrogate:
    """The loss of a minibatch. ``look`` evaluates the network on it."""

    def __init__(
        self,
        look: Callable[[Batch], Output],
        distribution: Distribution,
        config: TeamPPOConfig,
        scale: ValueScale | None,
        *,
        turns: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        self.look, self.distribution, self.config, self.scale = look, distribution, config, scale
        self.turns, self.ranks = turns, ranks

    def __call__(self, batch: Batch, entropy_coef: float | Tensor) -> LossAndMetrics:
        c, batch = self.config, in_units_of_now(batch).compact()
        out = self.look(batch)
        advantage, target = batch["advantage"], batch["value_target"]
        if c.vtrace:
            with torch.no_grad():
                logprob = self.distribution.logprob(out.params, batch["action"], batch.get("action_mask"))
                advantage, target = self._fresh_advantage(batch, logprob, out.value)
        by_time = time_major(batch["mask"])

        def rows(column: Tensor) -> Tensor:
            return flat(column, by_time)

        target, old_value = self._scaled(rows(target)), self._scaled(rows(batch["value"]))
        in_minibatch = c.normalize_advantage == "minibatch"
        advantage, weight = weighed(rows(advantage), rows(batch["mask"]), normalize=in_minibatch, ranks=self.ranks)
        if "importance" in batch:
            weight = by_importance(weight, rows(batch["importance"][:, None].expand(batch["mask"].shape)), self.ranks)
        mask = batch.get("action_mask")
        loss = ppo_loss(
            self.distribution,
            rows(out.params),
            rows(out.value),
            action=rows(batch["action"]),
            action_mask=None if mask is None else rows(mask),
            old_logprob=rows(batch["logprob"]),
            old_value=old_value,
            advantage=advantage,
            value_target=target,
            weight=weight,
            value_huber=math.inf if c.value_huber is None else c.value_huber,
            **loss_settings(c),
            entropy_coef=entropy_coef,
        )
        return loss.total, {f"loss/{name}": value.detach() for name, value in loss._asdict().items()}

    def _scaled(self, value: Tensor) -> Tensor:
        return value if self.scale is None else self.scale.scaled(value)

    def _fresh_advantage(self, batch: Batch, logprob: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the advantage and value target of these segments under the current policy.

        V-trace weighs a row's own error with its ratio. The surrogate multiplies by that ratio itself, so the advantage it gets is
        the error of the row before weighing, plus the corrected future (as in the paper's policy gradient).
        """
        c, mask = self.config, batch["mask"]
        if self.scale is not None:
            value = self.scale.real(value)
        ratio = torch.where(mask, (logprob - batch["logprob"]).exp(), 1.0)
        batch = batch.also(value=value, ratio=ratio)
        if self.turns:
            value = settled(batch, c.gamma)
            batch = batch.also(value=value)
        columns = (batch["value"], batch["reward"], batch["terminated"], batch["truncated"], batch["bootstrap"])
        return estimate(*columns, mask, gamma=c.gamma, lam=c.lam, ratio=ratio, rho_clip=c.rho_clip, c_clip=c.c_clip)


def in_units_of_now(batch: Batch) -> Batch:
    """Return the batch with old values in current units, where these have changed since it was prepared."""
    now = {name: batch[f"{name}_now"] for name in ("value", "bootstrap") if f"{name}_now" in batch}
    return batch.also(**now) if now else batch


def loss_settings(config: SurrogateConfig) -> dict[str, Any]:
    """Return the settings of the loss under the names that kernels use."""
    value_clip = math.inf if config.value_clip is None else config.value_clip
    return {"clip": config.clip, "value_clip": value_clip, "value_coef": config.value_coef}


def stops_at(target_kl: float | None) -> Callable[[dict[str, Tensor]], bool] | None:
    """Return a predicate that says when a batch has moved the policy far enough; None if nothing bounds it."""
    return None if target_kl is None else FarEnough(target_kl)


class FarEnough:
    """Says that a batch has been used enough, because the policy has moved by more than ``target_kl``."""

    why = "ppo.target_kl is looked at after every minibatch"
    """why a minibatch cannot do without the host"""

    def __init__(self, target_kl: float) -> None:
        self.target_kl = target_kl

    def __call__(self, metrics: dict[str, Tensor]) -> bool:
        return bool(metrics["loss/kl"] > self.target_kl)
