"""Advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783) with GAE: the shortest complete algorithm, and the one to start from.

``fugu new algorithm`` writes a copy of this file.
"""

from dataclasses import dataclass

import torch

import fugu
from fugu.advantage import gae


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of A2C"""

    # Each field is an option on the command line, such as --entropy 0.02; the string under it is its help text.
    gamma: float = 0.99
    """Discount per step, 0 to 1"""
    lam: float = 0.95
    """Decay of the advantage estimate, 0 (one step) to 1 (whole episodes)"""
    entropy: float = 0.01
    """Weight of the entropy bonus"""


class A2C(fugu.Algorithm):
    Config = Settings

    # self.policy is the network of the run (--policy.hidden, --policy.core lstm, your own ...), self.settings are the Settings,
    # self.generator gives random numbers. For more networks, write __init__ and build (fugu.Algorithm shows them).

    def act(self, seen):
        """Choose actions for seen.obs [rows, ...]; also at hand: seen.first, seen.reward, seen.mask, seen.action_mask, seen.carry."""
        memory = seen.carry["state"] if seen.carry else None  # state of a recurrent network; None: zeros
        out = self.policy(seen.obs, memory, seen.first)
        actions = self.policy.distribution
        if seen.greedy:
            action, columns = actions.mode(out.params, seen.action_mask), {}
        else:
            action, _ = actions.sample_with_logprob(out.params, seen.action_mask, seen.generator or self.generator)
            # columns of the batch; the value of the row after the last is its "bootstrap"
            columns = {"action": action, "value": out.value}
        carry = None if out.state is None else {"state": out.state}
        return fugu.Act(actions.to_env(action), carry, columns)

    def prepare(self, batch, progress):
        """Add columns to a batch, once, from batch["reward"] [segments, horizon], batch["bootstrap"] [segments] and others."""
        names = ("value", "reward", "terminated", "truncated", "bootstrap")
        c, columns = self.settings, [batch[name].contiguous() for name in names]
        advantage = gae(*columns, gamma=c.gamma, lam=c.lam, mask=batch["mask"].contiguous())
        return batch.also(advantage=advantage, value_target=advantage + columns[0])

    def loss(self, batch):
        """Return the loss of a minibatch, a scalar to minimise, and metrics."""
        out = self.policy(batch["obs"], batch.get("state"), batch["first"])
        logprob, entropy = self.policy.distribution.evaluate(out.params, batch["action"], batch.get("action_mask"))
        mask = batch["mask"]  # False on rows where no action counted
        rows = self.ranks.sum(mask.sum()).clamp(min=1)  # over all processes that learn together

        def mean(x):
            return torch.where(mask, x, 0.0).sum() / rows

        policy = -mean(logprob * torch.where(mask, batch["advantage"], 0.0))
        value = mean((out.value - torch.where(mask, batch["value_target"], 0.0)).square())
        bonus = mean(entropy)
        loss = policy + 0.5 * value - self.settings.entropy * bonus
        return loss, {"loss/policy": policy.detach(), "loss/value": value.detach(), "loss/entropy": bonus.detach()}

    def finish(self, batch):
        """Take the rows into running statistics after the last minibatch; return metrics of the whole batch."""
        self.policy.observe(batch["obs"], batch["mask"])  # for --policy.normalize-observation
        return {}
