"""Implicit Q-learning (Kostrikov et al. 2021, arXiv:2110.06169): the value-based way to learn from recorded episodes.

It asks for the value of no action that nobody took. A state's value is an expectile of the values of the actions taken in it, towards
the best of them; critics learn towards ``reward + gamma * value(next)``; the policy imitates, and the better an action was than the
state, the more it counts. So pieces of different episodes are put together, which imitation cannot do.

All losses of a minibatch are of the same weights, and each reaches its own network.
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
from fugu.algorithm.settings import IQLSettings
from fugu.algorithm.setup import Setup, seeded
from fugu.policy.action_input import ActionInput
from fugu.policy.actor_critic import ActorCritic
from fugu.rollout.acting import Act, Seen
from fugu.rollout.batch import Batch
from fugu.rollout.envs import Envs
from fugu.rollout.source import Source


class IQL(Algorithm):
    Config = IQLSettings
    scale: Tensor

    def __init__(self, policy: ActorCritic, settings: IQLSettings, *, critic: Judges, value: Judge, **rest: object) -> None:
        super().__init__(policy, settings, **rest)  # type: ignore[arg-type]
        self.config = settings.iql
        self.critic, self.value = critic, value
        self.slow = copy.deepcopy(critic).requires_grad_(False)
        self.action_input = ActionInput(policy.distribution).to(self.device)
        self.register_buffer("scale", torch.ones((), device=self.device))
        """factor on rewards"""

    @classmethod
    def build(cls, setup: Setup) -> IQL:
        policy = with_actor(setup, "iql")
        reads = ActionInput(policy.distribution).size

        def networks() -> tuple[Judges, Judge]:
            critics = Judges(Judge(policy, setup.net, reads=reads) for _ in range(2))
            return critics, Judge(policy, setup.net, reads=0)

        critic, value = seeded(setup.seeds.critic, networks)
        setup.placed(critic), setup.placed(value)
        return cls(policy, setup.settings, critic=critic, value=value, seed=setup.seeds.act, ranks=setup.ranks)

    def source(self, envs: Envs) -> Source:
        source = envs.recorded(self, self.settings.data)
        self.scale.fill_(self.config.scale_reward or return_scale(source.data))
        return source

    @greedy_is_mode
    def act(self, seen: Seen) -> Act:
        return act_alone(self, seen)

    def prepare(self, batch: Batch, progress: float | Tensor) -> Batch:
        self.policy.observe(batch["obs"], batch["mask"])
        return batch

    def losses(self, batch: Batch) -> Iterator[tuple[Tensor, Metrics]]:
        c, rows = self.config, rows_of(batch, self.ranks)
        obs, action = seen_by(self.policy, rows.obs), self.action_input(rows.action)
        nothing = action.new_empty(len(action), 0)
        value = self.value(obs, nothing)
        with torch.no_grad():
            next_value = self.value(seen_by(self.policy, rows.next_obs), nothing)
            target = self.scale * rows.reward + c.gamma * torch.where(rows.terminated, 0.0, next_value)
            judged = self.slow(obs, action).amin(0)
            weight = (c.beta * (judged - value)).exp().clamp(max=c.most)
        error = torch.where(rows.valid, judged - value, 0.0)
        of_value = (rows.share * torch.where(error > 0, c.expectile, 1 - c.expectile) * error.square()).sum()
        missed = torch.where(rows.valid, self.critic(obs, action) - target, 0.0)
        of_critic = (rows.share * missed.square()).sum()
        params = self.policy(rows.obs, None, torch.zeros_like(rows.valid)).params
        logprob = self.policy.distribution.logprob(params, rows.action, rows.action_mask)
        of_policy = -torch.where(rows.valid, rows.share * weight * logprob, 0.0).sum()
        found = {"value": of_value, "critic": of_critic, "policy": of_policy, "q": (rows.share * judged).sum()}
        yield of_value + of_critic + of_policy, {f"loss/{name}": loss.detach() for name, loss in found.items()}
        follow(self.slow, self.critic, c.tau)
