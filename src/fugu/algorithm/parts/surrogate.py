"""PPO's clipped surrogate: choosing actions with their values, and the loss of a minibatch.

The advantage may be computed anew in every minibatch, with the ratios and values of that very moment (V-trace).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fugu.algorithm.config import SurrogateConfig, TeamPPOConfig
from fugu.algorithm.parts.estimates import settled
from fugu.algorithm.parts.scale import ValueScale
from fugu.ops.advantage import estimate
from fugu.ops.gather import flat, time_major
from fugu.ops.ppo_loss import by_importance, ppo_loss, weighed
from fugu.ops.sample import choose
from fugu.policy.actor_critic import ActorCritic, Output
from fugu.policy.distribution import Distribution
from fugu.ranks import ALONE, Ranks
from fugu.rollout.acting import Act, Carry, Seen
from fugu.rollout.batch import Batch

LossAndMetrics = tuple[Tensor, dict[str, Tensor]]


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
    """Return the action drawn from what a network said of ``seen``, or the most likely one."""
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
        """Return advantage and value target of these segments under the policy as it is now.

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
    """Return the batch with old values in the units that values have since it was prepared, where these changed."""
    now = {name: batch[f"{name}_now"] for name in ("value", "bootstrap") if f"{name}_now" in batch}
    return batch.also(**now) if now else batch


def loss_settings(config: SurrogateConfig) -> dict[str, Any]:
    """Return the settings of the loss under the names that kernels have for them."""
    value_clip = math.inf if config.value_clip is None else config.value_clip
    return {"clip": config.clip, "value_clip": value_clip, "value_coef": config.value_coef}


def stops_at(target_kl: float | None) -> Callable[[dict[str, Tensor]], bool] | None:
    """Return what says when a batch has moved the policy far enough; None if nothing bounds it."""
    return None if target_kl is None else FarEnough(target_kl)


class FarEnough:
    """Says that a batch is done with when the policy has moved by more than ``target_kl``."""

    def __init__(self, target_kl: float) -> None:
        self.target_kl = target_kl

    def __call__(self, metrics: dict[str, Tensor]) -> bool:
        return bool(metrics["loss/kl"] > self.target_kl)
