"""PPO over the tokens of whole answers, with a value for every token: the alternative to GRPO that needs no groups.

In: batches of whole episodes (``rollout/episodes.py``, each alone in its group), with ``action`` and ``logprob`` as ``act`` stored
them; ``logprob`` is ``[segments, horizon, tokens]``. The policy is a transformer; the critic is one layer that reads, at every token,
what the transformer made of the text up to there. ``prepare`` adds ``counts`` (which tokens do), ``value``, ``advantage``
(``token_gae``) and ``value_target``. ``loss`` is PPO's, a token being a row.

The critic is a module of its own beside the policy. So weights from imitation or from a run with GRPO fit, and the other way round.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fugu.advantage.tokens import token_gae
from fugu.algorithm.accumulate import in_parts
from fugu.algorithm.config import PPOConfig, TokenPPOConfig
from fugu.algorithm.contract import Metrics
from fugu.algorithm.episodic import Episodic, check_passes
from fugu.algorithm.make import choosing_policy
from fugu.errors import ConfigError
from fugu.ops.ppo_loss import Loss, explained_variance, normalized, ppo_loss_of, row_weight, weighed
from fugu.policy.transformer import Transformer
from fugu.rollout.batch import Batch
from fugu.rollout.episodes import Groups
from fugu.vector.device import DeviceVec
from fugu.vector.vecenv import VecEnv

if TYPE_CHECKING:
    from fugu.trainer.config import TrainConfig


def make(config: TrainConfig, vec: VecEnv | DeviceVec, device: torch.device) -> TokenPPO:
    check_passes(config)
    policy = choosing_policy(config, vec, device)
    if not isinstance(policy, Transformer):
        raise ConfigError(
            f"token_ppo is for policies that write (--policy.net transformer), got policy.net={config.policy.net}; for others there "
            "is --algorithm ppo"
        )
    return TokenPPO(policy, config.ppo, config.token_ppo, seed=config.seed)


class TokenPPO(Episodic):
    policy: Transformer

    def __init__(self, policy: Transformer, ppo: PPOConfig, config: TokenPPOConfig, *, seed: int) -> None:
        self.policy, self.ppo, self.config = policy, ppo, config
        self.device = next(policy.parameters()).device
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.generators = [self.generator]
        self.critic = nn.Linear(policy.config.width, 1, device=self.device)
        nn.init.zeros_(self.critic.weight)  # at first everything is worth nothing
        nn.init.zeros_(self.critic.bias)
        self.modules: dict[str, nn.Module] = {"policy": policy, "critic": self.critic}
        self.parameters = [p for module in self.modules.values() for p in module.parameters()]
        self.groups: Groups | None = Groups(1)

    def begin(self) -> None:
        """Nothing was copied."""

    @torch.no_grad()
    def prepare(self, batch: Batch, progress: float | Tensor) -> Batch:
        batch = batch.to(self.device)
        scored = ~batch["score"].isnan()
        counts = self.policy.counts(batch["action"]) & batch["mask"][..., None] & scored[:, None, None]
        parts = [batch.part(start, start + self._size(batch)) for start in range(0, batch.segments, self._size(batch))]
        value = torch.cat([self._look_again(part)[2] for part in parts])  # [segments, horizon, tokens]
        advantage = token_gae(value, batch["reward"], counts, gamma=self.config.token_gamma, lam=self.config.token_lam)
        target = advantage + value
        if self.ppo.normalize_advantage == "batch":
            advantage = normalized(advantage, row_weight(counts))
        return batch.also(counts=counts, value=value, advantage=advantage, value_target=target)

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Of an optimizer step: tokens are weighed over all of it, however many parts it is computed in."""
        in_minibatch = self.ppo.normalize_advantage == "minibatch"
        advantage, weight = weighed(batch["advantage"].flatten(), batch["counts"].flatten(), normalize=in_minibatch)
        batch = batch.also(advantage=advantage.view_as(batch["advantage"]), weight=weight.view_as(batch["advantage"]))
        return in_parts(self._loss, batch, self._size(batch), self.parameters)

    def _loss(self, batch: Batch) -> Loss:
        c = self.ppo
        logprob, entropy, value = self._look_again(batch)
        names = ("logprob", "advantage", "value", "value_target", "weight")
        return ppo_loss_of(
            *(column.flatten() for column in (logprob, entropy, value, *(batch[name] for name in names))),
            clip=c.clip,
            value_clip=math.inf if c.value_clip is None else c.value_clip,
            value_huber=math.inf if c.value_huber is None else c.value_huber,
            value_coef=c.value_coef,
            entropy_coef=self.config.token_entropy,
        )

    def _look_again(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability and entropy of every token, and its value: each ``[segments, horizon, tokens]``."""
        judged, hidden = self.policy.read(batch["obs"], batch["action"], batch.get("action_mask"))
        return judged.logprob, judged.entropy, self.critic(hidden)[..., 0].float()

    def _size(self, batch: Batch) -> int:
        return self.config.episodes_at_once or batch.segments

    @property
    def asks(self) -> str | None:
        return None if self.ppo.target_kl is None else "ppo.target_kl is looked at after every minibatch"

    def enough(self, metrics: Metrics) -> bool:
        return self.ppo.target_kl is not None and bool(metrics["loss/kl"] > self.ppo.target_kl)

    @torch.no_grad()
    def finish(self, batch: Batch) -> Metrics:
        """How well the critic foretold, and what there was to learn from."""
        counts, scored = batch["counts"].flatten(1), ~batch["score"].isnan()
        return {
            "loss/explained_variance": explained_variance(batch["value"].flatten(1), batch["value_target"].flatten(1), counts),
            "loss/unscored": 1 - scored.float().mean(),
            "loss/cut_off": self.cut_off(batch).float().mean(),
            "loss/tokens": counts.sum() / scored.sum().clamp(min=1),
        }
