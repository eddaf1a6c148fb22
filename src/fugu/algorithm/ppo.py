"""Proximal policy optimization on segments (Schulman et al. 2017, arXiv:1707.06347).

In: batches with ``action``, ``logprob`` and ``value`` as ``act`` stored them. ``prepare`` adds ``advantage`` and ``value_target`` by
GAE, and the priority of each segment if segments are drawn by it. ``loss`` evaluates the policy anew on whole segments: with
V-trace the advantage is computed there again, with the ratios and values of that very moment.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fugu.algorithm.config import PPOConfig
from fugu.algorithm.contract import Metrics
from fugu.algorithm.fused import Fused
from fugu.algorithm.make import default_policy
from fugu.algorithm.scale import RewardScale, ValueScale
from fugu.errors import ConfigError
from fugu.ops.advantage import estimate
from fugu.ops.gather import flat, time_major
from fugu.ops.ppo_loss import by_importance, explained_variance, normalized, ppo_loss, row_weight, weighed
from fugu.ops.sample import choose
from fugu.policy.actor_critic import ActorCritic, Output
from fugu.rollout.batch import Batch
from fugu.rollout.device import Whole
from fugu.rollout.onpolicy import Act
from fugu.vector.device import DeviceVec
from fugu.vector.device_native import NativeDevice
from fugu.vector.vecenv import VecEnv

if TYPE_CHECKING:
    from fugu.trainer.config import TrainConfig


def make(config: TrainConfig, vec: VecEnv | DeviceVec, device: torch.device) -> PPO:
    return PPO(
        default_policy(config, vec, device), config.ppo, num_agents=vec.num_agents, seed=config.seed, turns=may_wait(vec)
    )


def may_wait(vec: VecEnv | DeviceVec) -> bool:
    """Whether agents of ``vec`` can have rows on which they wait for others."""
    return vec.spec.num_agents > 1


class PPO:
    groups = None

    def __init__(self, policy: ActorCritic, config: PPOConfig, *, num_agents: int, seed: int, turns: bool = False) -> None:
        """``turns``: agents may have rows on which they wait for others."""
        self.policy, self.config, self.turns = policy, config, turns
        self.device = next(policy.parameters()).device
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.generators = [self.generator]
        self.modules: dict[str, nn.Module] = {"policy": policy}
        self.reward_scale = RewardScale(num_agents, config.gamma) if config.normalize_reward else None
        self.value_scale = ValueScale() if config.normalize_value else None
        for name in ("reward_scale", "value_scale"):
            if (module := getattr(self, name)) is not None:
                self.modules[name] = module.to(self.device)
        self.entropy_coef: float | Tensor = config.entropy_coef
        self.fused: Fused | None = None
        """does the same in a few kernels, where it can"""

    @property
    def state_size(self) -> int:
        return self.policy.state_size

    @property
    def columns(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """What ``act`` keeps of a row: shape and dtype."""
        distribution = self.policy.distribution
        action = (distribution.dims,), distribution.dtype
        return {"action": action, "logprob": ((), torch.float32), "value": ((), torch.float32)}

    @torch.inference_mode()
    def act(
        self,
        obs: Tensor,
        state: Tensor | None,
        first: Tensor,
        action_mask: Tensor | None,
        *,
        greedy: bool = False,
        into: Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> Act:
        distribution, generator = self.policy.distribution, generator or self.generator
        if into is not None and self.policy.joint:
            head, state = self.policy.joint_step(obs, state, first)
            moments = None if self.value_scale is None else self.value_scale.moments
            uniform = torch.rand(len(first), generator=generator, device=self.device)
            choose(head, uniform, action_mask, moments, into["action"], into["logprob"], into["value"])
            return Act(distribution.to_env(into["action"]), state)
        out = self._look(obs, state, first)
        if greedy:
            action = distribution.mode(out.params, action_mask)
            columns = {"action": action}
        else:
            action, logprob = distribution.sample_with_logprob(out.params, action_mask, generator)
            value = out.value if self.value_scale is None else self.value_scale.real(out.value)
            columns = {"action": action, "logprob": logprob, "value": value}
        return Act(distribution.to_env(action), out.state, columns)

    def _look(self, obs: Tensor, state: Tensor | None, first: Tensor) -> Output:
        """What the network says of rows that wait for an action."""
        return self.policy(obs, state, first)

    def _look_again(self, batch: Batch) -> Output:
        """What it says now of the rows of a minibatch."""
        return self.policy(batch["obs"], batch.get("state"), batch["first"])

    def begin(self) -> None:
        """Nothing was copied."""

    @torch.no_grad()
    def prepare(self, batch: Batch, progress: float | Tensor) -> Batch:
        c = self.config
        if c.entropy_final is not None:
            self.entropy_coef = c.entropy_coef + (c.entropy_final - c.entropy_coef) * progress
        batch = batch.to(self.device)
        reward = batch["reward"]
        if self.reward_scale is not None:
            reward = self.reward_scale(reward, batch["terminated"] | batch["truncated"], batch["mask"])
        if c.reward_clip is not None:
            reward = reward.clamp(-c.reward_clip, c.reward_clip)
        batch = batch.also(reward=reward)
        if self.turns and "acts_after" in batch:
            batch = without_open_turns(batch)
        added = self.estimates(batch)
        if self.value_scale is not None:
            now = self.value_scale.update(added["value_target"], batch["mask"], batch["value"], batch["bootstrap"])
            if c.vtrace or c.value_clip is not None:  # which compare them with what the network says now
                added |= dict(zip(("value_now", "bootstrap_now"), now, strict=True))
        if c.normalize_advantage == "batch":
            added["advantage"] = normalized(added["advantage"], row_weight(batch["mask"]))
        if c.priority > 0:
            correction = c.priority_correction + (1 - c.priority_correction) * progress
            added["priority"], added["importance"] = priorities(added["advantage"], batch["mask"], c.priority, correction)
        return batch.also(**added)

    def estimates(self, batch: Batch) -> dict[str, Tensor]:
        """How good each action was and what each value should have been, before anything is normalised."""
        advantage, target = gae_of(batch, self.config.gamma, self.config.lam, turns=self.turns)
        return {"advantage": advantage, "value_target": target}

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        now = {name: batch[f"{name}_now"] for name in ("value", "bootstrap") if f"{name}_now" in batch}
        if now:
            batch = batch.also(**now)
        if self.fused is not None and "action_mask" not in batch:  # which its kernels do not know
            return self._fused_loss(batch, self.fused)
        c, batch = self.config, batch.compact()
        out = self._look_again(batch)
        advantage, target = batch["advantage"], batch["value_target"]
        if c.vtrace:
            with torch.no_grad():
                logprob = self.policy.distribution.logprob(out.params, batch["action"], batch.get("action_mask"))
                advantage, target = self._fresh_advantage(batch, logprob, out.value)
        by_time = time_major(batch["mask"])

        def rows(column: Tensor) -> Tensor:
            return flat(column, by_time)

        target, old_value = self._scaled(rows(target)), self._scaled(rows(batch["value"]))
        advantage, weight = weighed(rows(advantage), rows(batch["mask"]), normalize=c.normalize_advantage == "minibatch")
        if "importance" in batch:
            weight = by_importance(weight, rows(batch["importance"][:, None].expand(batch["mask"].shape)))
        mask = batch.get("action_mask")
        loss = ppo_loss(
            self.policy.distribution,
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
            **self._settings(),
        )
        return loss.total, {f"loss/{name}": value.detach() for name, value in loss._asdict().items()}

    def _fused_loss(self, batch: Batch, fused: Fused) -> tuple[Tensor, Metrics]:
        total, sums = fused.loss(batch, normalize_advantage=self.config.normalize_advantage == "minibatch", **self._settings())
        names = ("policy", "value", "entropy", "kl", "clip_fraction")
        return total, {"loss/total": total.detach(), **{f"loss/{name}": sums[name] for name in names}}

    def _scaled(self, value: Tensor) -> Tensor:
        return value if self.value_scale is None else self.value_scale.scaled(value)

    def _settings(self) -> dict[str, Any]:
        c = self.config
        value_clip = math.inf if c.value_clip is None else c.value_clip
        return {"clip": c.clip, "value_clip": value_clip, "value_coef": c.value_coef, "entropy_coef": self.entropy_coef}

    def _fresh_advantage(self, batch: Batch, logprob: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Advantage and value target of these segments under the policy as it is now.

        V-trace weighs a row's own error with its ratio. The surrogate multiplies by that ratio itself, so the advantage it gets is
        the error of the row before weighing, plus the corrected future (as in the paper's policy gradient).
        """
        c, mask = self.config, batch["mask"]
        if self.value_scale is not None:
            value = self.value_scale.real(value)
        ratio = torch.where(mask, (logprob - batch["logprob"]).exp(), 1.0)
        batch = batch.also(value=value, ratio=ratio)
        if self.turns:
            value = settled(batch, c.gamma)
            batch = batch.also(value=value)
        columns = (batch["value"], batch["reward"], batch["terminated"], batch["truncated"], batch["bootstrap"])
        return estimate(*columns, mask, gamma=c.gamma, lam=c.lam, ratio=ratio, rho_clip=c.rho_clip, c_clip=c.c_clip)

    @property
    def asks(self) -> str | None:
        return None if self.config.target_kl is None else "ppo.target_kl is looked at after every minibatch"

    def enough(self, metrics: Metrics) -> bool:
        return self.config.target_kl is not None and bool(metrics["loss/kl"] > self.config.target_kl)

    def merit(self, score: float) -> float | None:
        return score

    def fuse(self, config: TrainConfig) -> None:
        c = self.config
        if config.precision == "bf16" or c.vtrace or c.priority > 0 or c.value_huber is not None:
            return
        with contextlib.suppress(ConfigError):  # which says why not: then torch does it
            self.fused = Fused(self.policy, self.value_scale, passes=3 if config.precision == "float32" else 1)

    def whole(self, vec: DeviceVec) -> Whole | None:
        if self.fused is None or not isinstance(vec.worlds, NativeDevice):
            return None
        with contextlib.suppress(ConfigError):
            return self.fused.rollout(vec, self.generator)
        return None

    @torch.no_grad()
    def finish(self, batch: Batch) -> Metrics:
        """Take the batch into the statistics of observations, for the policy that acts next."""
        self.policy.observe(batch["obs"], batch["mask"])
        return {"loss/explained_variance": explained_variance(batch["value"], batch["value_target"], batch["mask"])}

    def restarted(self) -> None:
        if self.reward_scale is not None:
            self.reward_scale.running.zero_()

    def state(self) -> dict[str, Tensor]:
        return {"generator": self.generator.get_state()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.generator.set_state(state["generator"])


def gae_of(batch: Batch, gamma: float, lam: float, *, turns: bool) -> tuple[Tensor, Tensor]:
    """Advantage and value target of ``reward``, ``value`` and ``bootstrap``. ``turns``: there may be rows of waiting agents."""
    if turns:
        batch = batch.also(value=settled(batch, gamma))
    columns = (batch["value"], batch["reward"], batch["terminated"], batch["truncated"], batch["bootstrap"])
    return estimate(*columns, batch["mask"], gamma=gamma, lam=lam)


def settled(batch: Batch, gamma: float) -> Tensor:
    """``value``, with rows on which an agent waits worth what came of it: what was paid meanwhile, and the value of its next turn.

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
    """The same where no segment ends amid an agent's wait: its last action there, of which it is not known what came of it, is left
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
    others = {name: column for name, column in batch.columns.items() if name != "acts_after"}
    return Batch({**others, "mask": mask, "truncated": truncated})


def priorities(advantage: Tensor, mask: Tensor, power: float, correction: float | Tensor) -> tuple[Tensor, Tensor]:
    """How likely each segment is drawn, and what one that was drawn counts for (Schaul et al. 2016, arXiv:1511.05952).

    A segment's priority is the mean of ``|advantage|`` over its unmasked rows, to ``power``. The importance ``(n p)^-correction``
    takes the bias of drawing by it back, wholly at 1 and as far as a mean over one minibatch can. Both are ``[segments]``.
    """
    rows = mask.sum(1)
    size = (advantage.abs() * mask).sum(1) / rows.clamp(min=1)
    raw = torch.where(rows > 0, (size + 1e-6) ** power, 0.0)
    total = raw.sum()
    probability = torch.where(total > 0, raw / total.clamp(min=1e-30), 1.0 / len(raw))
    importance = torch.where(probability > 0, (len(raw) * probability).clamp(min=1e-12) ** -correction, 0.0)
    return probability, importance
