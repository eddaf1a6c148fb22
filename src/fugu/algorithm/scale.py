"""Units that follow the data: rewards in units of the spread of returns, values in units of the spread of their targets.

Both are modules, so that their statistics are saved with the policy.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fugu.policy.normalize import RunningMoments


class RewardScale(nn.Module):
    """Divides rewards by the running deviation of the discounted return, which keeps them in proportion and their sign."""

    def __init__(self, num_agents: int, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma
        self.moments = RunningMoments(())
        self.running: Tensor
        self.register_buffer("running", torch.zeros(num_agents))
        """discounted return of each agent's running episode"""

    def forward(self, reward: Tensor, ended: Tensor, mask: Tensor) -> Tensor:
        """``reward``, ``ended``, ``mask``: ``[passes * num_agents, horizon]`` of consecutive passes."""
        agents = len(self.running)
        returns = torch.empty_like(reward)
        for start in range(0, len(reward), agents):
            rows = slice(start, start + agents)
            for t in range(reward.shape[1]):
                self.running = self.running * self.gamma + reward[rows, t]
                returns[rows, t] = self.running
                self.running = torch.where(ended[rows, t], 0.0, self.running)
        self.moments.update(returns, mask)
        return reward / (self.moments.var.sqrt() + 1e-8).to(reward.dtype)


class ValueScale(nn.Module):
    """Between what the network says (mean 0, deviation 1) and real values (the value normalisation of MAPPO, arXiv:2103.01955)."""

    def __init__(self) -> None:
        super().__init__()
        self.moments = RunningMoments(())

    def update(self, target: Tensor, mask: Tensor) -> None:
        self.moments.update(target, mask)

    def real(self, scaled: Tensor) -> Tensor:
        return scaled * self._deviation(scaled) + self.moments.mean.to(scaled.dtype)

    def scaled(self, real: Tensor) -> Tensor:
        return (real - self.moments.mean.to(real.dtype)) / self._deviation(real)

    def _deviation(self, like: Tensor) -> Tensor:
        return (self.moments.var.sqrt().clamp(min=1e-4)).to(like.dtype)
