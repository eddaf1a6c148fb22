"""TD3+BC (Fujimoto & Gu 2021, arXiv:2106.06860): a deterministic policy goes where the critics see value, and stays near what was done.

For actions that are numbers with bounds. The policy steps once for every ``delay`` steps of the critics, which learn towards the lower
of two slow copies, on actions of a slow policy with a little noise.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor

from fugu.algorithm.contract import Algorithm, Metrics, greedy_is_mode
from fugu.algorithm.parts.imitated import act_alone, follow, return_scale, seen_by, with_actor
from fugu.algorithm.parts.judges import Judge, Judges
from fugu.algorithm.parts.soft import rows_of
from fugu.algorithm.settings import TD3BCSettings
from fugu.algorithm.setup import Setup, seeded
from fugu.errors import ConfigError
from fugu.policy.actor_critic import ActorCritic
from fugu.policy.squashed import Around
from fugu.rollout.acting import Act, Seen
from fugu.rollout.batch import Batch
from fugu.rollout.envs import Envs
from fugu.rollout.source import Source


class TD3BC(Algorithm):
    Config = TD3BCSettings
    scale: Tensor
    steps: Tensor

    def __init__(self, policy: ActorCritic, settings: TD3BCSettings, *, critic: Judges, **rest: object) -> None:
        super().__init__(policy, settings, **rest)  # type: ignore[arg-type]
        self.config = settings.td3bc
        self.critic = critic
        self.slow = copy.deepcopy(critic).requires_grad_(False)
        self.slow_policy = copy.deepcopy(policy).requires_grad_(False)
        self.register_buffer("scale", torch.ones((), device=self.device))
        """factor on rewards"""
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        """gradient steps of the critics"""

    @classmethod
    def build(cls, setup: Setup) -> TD3BC:
        policy = with_actor(setup, "td3bc")
        actions = policy.distribution
        assert isinstance(actions, Around)
        if actions.reals != actions.dims or not actions.bounded.all():
            raise ConfigError(
                f"td3bc acts in Boxes with bounds on both sides, not in {setup.envs.action_space}; use --algorithm iql"
            )
        made = seeded(setup.seeds.critic, lambda: Judges(Judge(policy, setup.net) for _ in range(2)))
        return cls(policy, setup.settings, critic=setup.placed(made), seed=setup.seeds.act, ranks=setup.ranks)

    def source(self, envs: Envs) -> Source:
        source = envs.recorded(self, self.settings.data)
        self.scale.fill_(self.config.scale_reward or return_scale(source.data))
        return source

    @greedy_is_mode
    def act(self, seen: Seen) -> Act:
        """Take the policy's action, which is never drawn."""
        return act_alone(self, seen, greedy=True)

    def prepare(self, batch: Batch, progress: float | Tensor) -> Batch:
        self.policy.observe(batch["obs"], batch["mask"])
        return batch

    def losses(self, batch: Batch) -> Iterator[tuple[Tensor, Metrics]]:
        c, rows = self.config, rows_of(batch, self.ranks)
        obs, after = (seen_by(self.policy, each) for each in (rows.obs, rows.next_obs))
        action = rows.action.clamp(-1, 1)
        with torch.no_grad():
            chosen = self._chosen(self.slow_policy, after)
            noise = torch.empty_like(chosen).normal_(generator=self.generator).mul_(c.noise)
            chosen = (chosen + noise.clamp_(-c.noise_clip, c.noise_clip)).clamp_(-1, 1)
            value = self.slow(after, chosen).amin(0)
            target = self.scale * rows.reward + c.gamma * torch.where(rows.terminated, 0.0, value)
        said = self.critic(obs, action)
        missed = torch.where(rows.valid, said - target, 0.0)
        loss = (rows.share * missed.square()).sum()
        yield loss, {"loss/critic": loss.detach(), "loss/q": (rows.share * said.detach().mean(0)).sum()}
        self.steps += 1
        if int(self.steps) % c.delay:
            return
        chosen = self._chosen(self.policy, obs)
        self.critic.requires_grad_(False)  # the gradient passes through
        value = self.critic[0](obs, chosen)
        self.critic.requires_grad_(True)
        size = self.ranks.sum((rows.share * value.detach().abs()).sum()).clamp(min=1e-8)
        off = (chosen - action).square().mean(-1)
        loss = torch.where(rows.valid, rows.share * (off - c.alpha / size * value), 0.0).sum()
        yield loss, {}
        follow(self.slow, self.critic, c.tau)
        follow(self.slow_policy, self.policy, c.tau)

    @staticmethod
    def _chosen(policy: ActorCritic, obs: list[Tensor]) -> Tensor:
        """Return the policy's actions on observations that are normalised already."""
        structured = obs[0] if policy.obs_layout.plain else policy.obs_layout.assemble(obs)
        params, _ = (
            policy.net.whole(structured) if hasattr(policy.net, "whole") else policy.net.decode(policy.net.encode(structured))
        )
        return policy.distribution.mode(params)
