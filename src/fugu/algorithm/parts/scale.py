"""Units that follow the data: rewards in units of the spread of returns, values in units of the spread of their targets.

Both are modules, so that their statistics are saved with the policy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fugu.ops.mingru import accumulate
from fugu.policy.normalize import DecayingMoments, RunningMoments


class RewardScale(nn.Module):
    """Divides rewards by the running deviation of the discounted return, which keeps them in proportion and their sign. As long as
    returns do not vary, rewards stay as they are."""

    def __init__(self, num_agents: int, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma
        self.moments = RunningMoments(())
        self.running: Tensor
        self.register_buffer("running", torch.zeros(num_agents))
        """discounted return of each agent's running episode"""

    def forward(self, reward: Tensor, ended: Tensor, mask: Tensor) -> Tensor:
        """Return scaled rewards; all columns are ``[passes * num_agents, horizon]``, of consecutive passes."""
        agents = len(self.running)
        returns = torch.empty_like(reward)
        for start in range(0, len(reward), agents):
            rows = slice(start, start + agents)
            if reward.is_cuda:
                self._in_rounds(reward[rows], ended[rows], returns[rows])
            else:
                self._row_by_row(reward[rows], ended[rows], returns[rows])
        self.moments.update(returns, mask)
        deviation = self.moments.var.sqrt()
        varies = deviation > 1e-4 * self.moments.mean.abs()  # else it is rounding error, or too little to be a unit
        return reward / torch.where(varies, deviation, 1.0).to(reward.dtype)

    def _row_by_row(self, reward: Tensor, ended: Tensor, returns: Tensor) -> None:
        running = self.running
        for t in range(reward.shape[1]):
            running = running * self.gamma + reward[:, t]
            returns[:, t] = running
            running = torch.where(ended[:, t], 0.0, running)
        self.running.copy_(running)

    def _in_rounds(self, reward: Tensor, ended: Tensor, returns: Tensor) -> None:
        """Do the same in a few large steps instead of many small ones, for a GPU."""
        keep = torch.where(ended, 0.0, self.gamma).t()
        decay = torch.cat([torch.full_like(keep[:1], self.gamma), keep[:-1]])  # what is left of row t - 1 in row t
        running = accumulate(decay, reward.t(), self.running)
        returns.copy_(running.t())
        self.running.copy_(torch.where(ended[:, -1], 0.0, running[-1]))


class ValueScale(nn.Module):
    """Converts between the network's units (mean 0, deviation 1) and real values (value normalisation of MAPPO, arXiv:2103.01955)."""

    lowest = 1e-4
    """smallest deviation used"""

    def __init__(self, shape: Sequence[int] = ()) -> None:
        super().__init__()
        self.moments = RunningMoments(shape)

    def update(self, target: Tensor, mask: Tensor, *values: Tensor) -> list[Tensor]:
        """Take the targets in. Returns what the network's outputs, worth ``values`` until now, are worth from now on."""
        said = [self.scaled(value) for value in values]
        self.moments.update(target, mask)
        return [self.real(value) for value in said]

    def real(self, scaled: Tensor) -> Tensor:
        return scaled * self._deviation(scaled) + self.moments.mean.to(scaled.dtype)

    def scaled(self, real: Tensor) -> Tensor:
        return (real - self.moments.mean.to(real.dtype)) / self._deviation(real)

    def _deviation(self, like: Tensor) -> Tensor:
        return (self.moments.var.sqrt().clamp(min=self.lowest)).to(like.dtype)


class DecayingValueScale(ValueScale):
    """A ``ValueScale`` with moments that forget: ``decay`` of them is kept per update; a variance below 0.01 counts as 0.01."""

    lowest = 0.1

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.moments = DecayingMoments(decay)


class PopArt(DecayingValueScale):
    """A ``DecayingValueScale`` that rescales the last layers of the critics at every update, so that the real values they predict
    stay the same (van Hasselt et al. 2016, arXiv:1602.07714)."""

    def __init__(self, decay: float, heads: Sequence[nn.Linear]) -> None:
        super().__init__(decay)
        self._heads = list(heads)  # in a list of their own: they are saved with the networks they belong to

    @torch.no_grad()
    def update(self, target: Tensor, mask: Tensor, *values: Tensor) -> list[Tensor]:
        mean, deviation = self.moments.mean.clone(), self._deviation(self.moments.var)
        super().update(target, mask)
        ratio = deviation / self._deviation(self.moments.var)
        shift = (mean - self.moments.mean) / self._deviation(self.moments.var)
        for head in self._heads:
            head.weight.mul_(ratio.to(head.weight.dtype))
            head.bias.copy_(head.bias * ratio + shift)
        return list(values)
