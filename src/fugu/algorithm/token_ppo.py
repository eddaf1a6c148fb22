"""PPO over the tokens of whole answers, with a value for every token: the alternative to GRPO that needs no groups.

In: batches of whole episodes (``rollout/episodes.py``, each alone in its group), with ``action`` and ``logprob`` as ``act`` stored
them; ``logprob`` is ``[segments, horizon, tokens]``. The policy is a transformer; the critic is one layer that reads, at every
token, the transformer's hidden state of the text up to there. ``prepare`` adds ``counts`` (which tokens count), ``value``,
``advantage`` (``token_gae``) and ``value_target``. ``loss`` is PPO's, with tokens for rows.

The critic is a separate module beside the policy. So weights from imitation or from a run with GRPO fit, and the other way round.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fugu.advantage.tokens import token_gae
from fugu.algorithm.config import SurrogateConfig
from fugu.algorithm.config_episodes import TokenPPOConfig
from fugu.algorithm.contract import Algorithm, Metrics
from fugu.algorithm.parts.accumulate import in_parts
from fugu.algorithm.parts.clipped import loss_settings, stops_at
from fugu.algorithm.parts.episodic import cut_off, draw
from fugu.algorithm.settings import TokenPPOSettings
from fugu.algorithm.setup import Setup
from fugu.errors import ConfigError
from fugu.ops.ppo_loss import Loss, explained_variance, normalized, ppo_loss_of, row_weight, weighed
from fugu.policy.transformer import Transformer
from fugu.ranks import ALONE, Ranks
from fugu.rollout.acting import Act, Seen
from fugu.rollout.batch import Batch
from fugu.rollout.envs import Envs
from fugu.rollout.episodes import Groups
from fugu.rollout.source import Source


class TokenPPO(Algorithm):
    Config = TokenPPOSettings
    policy: Transformer

    def __init__(
        self, policy: Transformer, ppo: SurrogateConfig, config: TokenPPOConfig, *, seed: int = 0, ranks: Ranks = ALONE
    ) -> None:
        super().__init__(policy, config, seed=seed, ranks=ranks)
        self.ppo, self.config = ppo, config
        self.critic = nn.Linear(policy.config.width, 1, device=self.device)
        nn.init.zeros_(self.critic.weight)  # at first everything is worth nothing
        nn.init.zeros_(self.critic.bias)
        self.enough = stops_at(ppo.target_kl)

    @classmethod
    def build(cls, setup: Setup) -> TokenPPO:
        policy, settings = setup.chooser(), setup.settings
        if not isinstance(policy, Transformer):
            raise ConfigError(
                f"token_ppo is for policies that write (--policy.net transformer), got policy.net={setup.net.net}; for others there "
                "is --algorithm ppo"
            )
        return cls(policy, settings.ppo, settings.token_ppo, seed=setup.seeds.act, ranks=setup.ranks)

    def source(self, envs: Envs) -> Source:
        return envs.episodes(self, Groups(1))

    @torch.inference_mode()
    def act(self, seen: Seen) -> Act:
        return draw(self.policy, seen, seen.generator or self.generator)

    @torch.no_grad()
    def prepare(self, batch: Batch, progress: float | Tensor) -> Batch:
        scored = ~batch["score"].isnan()
        counts = self.policy.counts(batch["action"]) & batch["mask"][..., None] & scored[:, None, None]
        parts = [batch.part(start, start + self._size(batch)) for start in range(0, batch.segments, self._size(batch))]
        value = torch.cat([self._look_again(part)[2] for part in parts])  # [segments, horizon, tokens]
        advantage = token_gae(value, batch["reward"], counts, gamma=self.config.token_gamma, lam=self.config.token_lam)
        target = advantage + value
        if self.ppo.normalize_advantage == "batch":
            advantage = normalized(advantage, row_weight(counts, self.ranks), self.ranks)
        return batch.also(counts=counts, value=value, advantage=advantage, value_target=target)

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the loss of an optimizer step: tokens are weighted over all of it, however many parts it is computed in."""
        in_minibatch = self.ppo.normalize_advantage == "minibatch"
        advantage, weight = weighed(
            batch["advantage"].flatten(), batch["counts"].flatten(), normalize=in_minibatch, ranks=self.ranks
        )
        batch = batch.also(advantage=advantage.view_as(batch["advantage"]), weight=weight.view_as(batch["advantage"]))
        return in_parts(self._loss, batch, self._size(batch), self.parameters())

    def _loss(self, batch: Batch) -> Loss:
        c = self.ppo
        logprob, entropy, value = self._look_again(batch)
        names = ("logprob", "advantage", "value", "value_target", "weight")
        return ppo_loss_of(
            *(column.flatten() for column in (logprob, entropy, value, *(batch[name] for name in names))),
            **loss_settings(c),
            value_huber=math.inf if c.value_huber is None else c.value_huber,
            entropy_coef=self.config.token_entropy,
        )

    def _look_again(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probability, entropy and value of every token, each ``[segments, horizon, tokens]``."""
        judged, hidden = self.policy.read(batch["obs"], batch["action"], batch.get("action_mask"))
        return judged.logprob, judged.entropy, self.critic(hidden)[..., 0].float()

    def _size(self, batch: Batch) -> int:
        return self.config.episodes_at_once or batch.segments

    @torch.no_grad()
    def finish(self, batch: Batch) -> Metrics:
        """Return metrics: how well the critic predicted, and how much there was to learn from."""
        counts, scored = batch["counts"].flatten(1), ~batch["score"].isnan()
        return {
            "loss/explained_variance": explained_variance(
                batch["value"].flatten(1), batch["value_target"].flatten(1), counts, self.ranks
            ),
            "loss/unscored": 1 - self.ranks.mean(scored.float().mean()),
            "loss/cut_off": self.ranks.mean(cut_off(self.policy, batch).float().mean()),
            "loss/tokens": self.ranks.sum(counts.sum()) / self.ranks.sum(scored.sum()).clamp(min=1),
        }
