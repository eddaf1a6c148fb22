"""Decision Transformer (Chen et al. 2021, arXiv:2106.01345): a policy that is told which return to reach.

It learns from recorded episodes to foretell each action from the rewards that were still to come, what was seen, and what was done
before. When it plays it is told a target, from which the rewards that it gets are taken away step by step. It imitates; what no
episode shows it cannot do, and where luck decides it takes luck for skill (``docs/offline.md``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fugu.algorithm.contract import Algorithm, Metrics
from fugu.algorithm.parts.imitated import imitation_loss
from fugu.algorithm.settings import DTSettings
from fugu.algorithm.setup import Setup, seeded
from fugu.errors import CallOrderError
from fugu.policy.decision_net import DecisionNet
from fugu.rollout.acting import Act, Carry, Seen
from fugu.rollout.batch import Batch
from fugu.rollout.envs import Envs
from fugu.rollout.source import Source


class DT(Algorithm):
    Config = DTSettings
    policy: DecisionNet

    def __init__(self, policy: DecisionNet, settings: DTSettings, **rest: object) -> None:
        super().__init__(policy, settings, **rest)  # type: ignore[arg-type]
        self._target = settings.dt.target

    @classmethod
    def build(cls, setup: Setup) -> DT:
        c = setup.settings.dt
        spaces = setup.envs.observation_space, setup.envs.action_space
        sizes = {"context": setup.horizon, "longest": c.longest, "dropout": c.dropout}
        made = seeded(setup.seeds.weights, lambda: DecisionNet(*spaces, setup.net, **sizes))
        return cls(setup.finished(made), setup.settings, seed=setup.seeds.act, ranks=setup.ranks)

    def source(self, envs: Envs) -> Source:
        source = envs.recorded(self, self.settings.data, to_go=True)
        returns = source.data.returns
        self.policy.best.fill_(float(returns.max()))
        self.policy.scale.fill_(max(float(abs(returns).max()) / 2, 1e-6))
        return source

    # --- playing ---

    def ask(self, target: float | None) -> None:
        """Ask for this return from the next episode on; None: for the best that was learned from."""
        self._target = target

    @property
    def target(self) -> float:
        """Return the return that the policy is asked for."""
        return float(self.policy.best) if self._target is None else self._target

    @torch.no_grad()
    def act(self, seen: Seen) -> Act:
        net, actions = self.policy, self.policy.distribution
        carry = seen.carry or self._begin(seen)
        left = self._still(seen, carry)
        params, after = net.step(seen.obs, left, seen.first, carry)
        if seen.greedy:
            action = actions.mode(params, seen.action_mask)
        else:
            action = actions.sample(params, seen.action_mask, seen.generator or self.generator)
        return Act(actions.to_env(action), {**after, "left": left, "before": net.action_input(action)}, {"action": action})

    def _begin(self, seen: Seen) -> Carry:
        rows, device = len(seen.first), seen.first.device
        return {**self.policy.begin(rows, device), "left": torch.zeros(rows, device=device)}

    def _still(self, seen: Seen, carry: Carry) -> Tensor:
        """Return what is still to be reached: the target, less what came since the episode began."""
        asked = torch.full_like(carry["left"], self.target)
        if seen.reward is None:
            if not seen.first.all():
                raise CallOrderError(
                    "a Decision Transformer must know what each action brought",
                    fix="Give it with the next observation: policy(obs, reward=reward)",
                )
            return asked
        return torch.where(seen.first, asked, carry["left"] - seen.reward)

    # --- learning ---

    def prepare(self, batch: Batch, progress: float | Tensor) -> Batch:
        self.policy.observe(batch["obs"], batch["mask"])
        return batch

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        params = self.policy(batch["to_go"], batch["obs"], batch["action"], batch["time"], self.generator)
        return imitation_loss(self.policy.distribution, params, batch, self.ranks)
