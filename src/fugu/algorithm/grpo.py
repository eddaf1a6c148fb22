"""Group-relative policy optimization and its family: GRPO, Dr. GRPO, DAPO, GSPO, CISPO as settings of one loss.

In: batches of whole episodes in groups that began alike (``rollout/episodes.py``), with ``action`` and ``logprob`` as ``act``
stored them; ``logprob`` is ``[segments, horizon, tokens]``, one per choice that the policy made on a row. ``prepare`` adds
``advantage``, that of the whole episode in every row, and ``counts``, which tokens do. ``loss`` evaluates the policy anew on all
tokens in parallel.

Why is the loss 0? While the policy is still the one that acted, all ratios are 1 and the advantages of a group add up to 0, so its
value is about 0 and says nothing; its gradient is not 0, see ``loss/grad_norm``. If that is 0 as well, ``loss/zero_spread`` says how
many groups have nothing to compare, ``loss/unscored`` how many episodes have no return, ``loss/score_deviation`` how far they differ.
"""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn

from fugu.advantage.group import group_advantage, group_differs, overlong_penalty
from fugu.algorithm.config_episodes import GRPOConfig
from fugu.algorithm.contract import Algorithm, Metrics
from fugu.algorithm.parts.accumulate import in_parts
from fugu.algorithm.parts.episodic import cut_off, draw
from fugu.algorithm.parts.group_losses import GroupLoss, GroupLossSettings, group_loss, token_weight
from fugu.algorithm.settings import GRPOSettings
from fugu.algorithm.setup import Setup
from fugu.policy.choices import Chooser, Judged
from fugu.ranks import ALONE, Ranks
from fugu.rollout.acting import Act, Seen
from fugu.rollout.batch import Batch
from fugu.rollout.envs import Envs
from fugu.rollout.episodes import Groups
from fugu.rollout.source import Source


class GRPO(Algorithm):
    Config = GRPOSettings

    def __init__(self, policy: nn.Module, config: GRPOConfig, *, horizon: int, seed: int = 0, ranks: Ranks = ALONE) -> None:
        super().__init__(policy, config, seed=seed, ranks=ranks)
        self.config = config
        self.longest = horizon * self.chooser.tokens
        """most tokens that an episode can have"""
        self.reference = copy.deepcopy(policy).requires_grad_(False) if config.reference_coef > 0 else None
        self.terms = GroupLossSettings(
            **{name: config.setting(name) for name in ("ratio", "cut", "clip_low", "clip_high")},
            kl=config.reference_kl,
            kl_coef=config.reference_coef,
            entropy_coef=config.entropy_bonus,
        )

    @classmethod
    def build(cls, setup: Setup) -> GRPO:
        config, seed = setup.settings.grpo, setup.seeds.act
        return cls(setup.chooser(), config, horizon=setup.horizon, seed=seed, ranks=setup.ranks)

    def source(self, envs: Envs) -> Source:
        return envs.episodes(self, Groups(self.config.group_size, self.config.setting("refill_rounds"), self._worth))

    @property
    def chooser(self) -> Chooser:
        return cast(Chooser, self.policy)

    @torch.inference_mode()
    def act(self, seen: Seen) -> Act:
        return draw(self.chooser, seen, seen.generator or self.generator)

    @torch.no_grad()
    def prepare(self, batch: Batch, progress: float | Tensor) -> Batch:
        counts = self.chooser.counts(batch["action"]) & batch["mask"][..., None]  # [segments, horizon, tokens]
        score = self._score(batch, counts)
        scale, groups = self.config.setting("scale"), self._groups(batch)
        compared = group_advantage(score, batch["group"], groups=groups, scale=scale, ranks=self.ranks)
        counts = counts & compared.scored[:, None, None]
        batch = batch.also(
            score=score,
            counts=counts,
            advantage=compared.advantage[:, None].expand(batch["mask"].shape),
        )
        added: dict[str, Tensor] = {}
        if self.config.importance_cap is not None:
            added["old_logprob"] = self._in_parts(self.chooser, batch)
            added["correction"] = (added["old_logprob"] - batch["logprob"]).exp().clamp(max=self.config.importance_cap)
        if self.reference is not None:
            added["reference_logprob"] = self._in_parts(cast(Chooser, self.reference), batch)
        return batch.also(**added)

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the loss of an optimizer step: tokens are weighted over all of it, however many parts it is computed in."""
        counts = batch["counts"].flatten(1)  # [segments, horizon * tokens]
        batch = batch.also(
            weight=token_weight(counts, self.config.setting("average"), self.longest, self.ranks),
            share=token_weight(counts, "token", self.longest, self.ranks),
        )
        return in_parts(self._loss, batch, self.config.micro_batch or batch.segments, self.policy.parameters())

    def _loss(self, batch: Batch) -> GroupLoss:
        judged = _judged(self.chooser, batch)
        old, correction, reference = (batch.get(name) for name in ("old_logprob", "correction", "reference_logprob"))
        return group_loss(
            judged.logprob.flatten(1),
            judged.entropy.flatten(1),
            old_logprob=(batch["logprob"] if old is None else old).flatten(1),
            advantage=batch["advantage"][..., None].expand(judged.logprob.shape).flatten(1),
            weight=batch["weight"],
            share=batch["share"],
            settings=self.terms,
            importance=None if correction is None else correction.flatten(1),
            reference_logprob=None if reference is None else reference.flatten(1),
        )

    def _in_parts(self, policy: Chooser, batch: Batch) -> Tensor:
        """Return the log-probabilities of a whole batch as ``policy`` sees them, ``[segments, horizon, tokens]``."""
        size = self.config.micro_batch or batch.segments
        parts = [batch.part(start, start + size) for start in range(0, batch.segments, size)]
        return torch.cat([_judged(policy, part).logprob for part in parts])

    def _score(self, batch: Batch, counts: Tensor) -> Tensor:
        """Return ``[segments]``, the scores that episodes are compared by; NaN for one that is left out."""
        c, score = self.config, batch["score"]
        if c.overlong_margin:
            score = score + overlong_penalty(counts.flatten(1).sum(1), limit=self.longest, margin=c.overlong_margin)
        if c.truncated_episodes == "mask":
            score = torch.where(cut_off(self.chooser, batch).to(score.device), torch.nan, score)
        return score

    def _worth(self, batch: Batch, groups: int) -> Tensor:
        """Return which groups have something to learn from."""
        counts = self.chooser.counts(batch["action"]).cpu() & batch["mask"][..., None]
        return group_differs(self._score(batch, counts), batch["group"], groups)

    def _groups(self, batch: Batch) -> int:
        return batch.segments // self.config.group_size

    @torch.no_grad()
    def finish(self, batch: Batch) -> Metrics:
        """Take the batch into the statistics of observations, and return metrics that say how much there was to learn from."""
        self.chooser.observe(batch["obs"], batch["mask"])
        compared = group_advantage(batch["score"], batch["group"], groups=self._groups(batch), scale="none")
        counts, some = batch["counts"].flatten(1), self.ranks.sum(compared.scored.sum()).clamp(min=1)
        tokens, mean = self.ranks.sum(counts.sum()), self.ranks.mean
        metrics = {
            "loss/zero_spread": 1 - mean(compared.differs.float().mean()),
            "loss/unscored": 1 - mean(compared.scored.float().mean()),
            "loss/cut_off": mean(cut_off(self.chooser, batch).float().mean()),
            "loss/score_deviation": mean(compared.deviation.mean()),
            "loss/advantage": self.ranks.sum(batch["advantage"][:, 0].abs().sum()) / some,
            "loss/tokens": tokens / some,
            "loss/redrawn": mean((batch["round"] > 0).float().mean()),
        }
        if "old_logprob" in batch:
            off = torch.where(batch["counts"], batch["old_logprob"] - batch["logprob"], 0.0)
            metrics["loss/mismatch_kl"] = self.ranks.sum((off.exp() - 1 - off).sum()) / tokens.clamp(min=1)
        return metrics


def _judged(policy: Chooser, batch: Batch) -> Judged:
    return policy.judge(batch["obs"], batch.get("state"), batch["first"], batch["action"], batch.get("action_mask"))
