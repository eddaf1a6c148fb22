"""The price of a cost, and how it is found: a multiplier per constraint that rises while episodes cost more than they may.

Once per batch ``update`` gets the mean cost of the episodes that finished in it, ``cost [costs]``, and moves ``value [costs]``, the
multipliers, by the violation in units of the limit::

    e = (cost - limit) / limit, between -1 and 4; with a limit of 0: 1 if anything was paid, else 0

- ``sgd``: ``value += rate * e``
- ``adam``: the same step by Adam (Kingma & Ba 2015, arXiv:1412.6980), which moves about ``rate`` whatever the size of the violation
- ``pid``: ``kp * P + I + kd * D`` (Stooke, Achiam & Abbeel 2020, arXiv:2007.03964) with ``P`` the smoothed violation, ``I`` the sum of
  ``ki * e`` (never below 0), and ``D`` how far the smoothed violation has risen over the last ``delay`` updates. The integral alone
  swings about the limit; the other two damp it

always cut to 0 .. ``largest``. Where no episode finished nothing is known, and nothing changes. No step asks the host, so that a CUDA
graph can hold it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fugu.algorithm.config import SafeConfig

BETAS = (0.9, 0.999)
EPSILON = 1e-8
WORST = 4.0
"""highest violation that counts, in units of the limit: a policy that knows no limit yet would drive the price far beyond what is
needed. Batches with a high mean cost are rarer than low ones, so a lower bound would leave the mean above the limit"""


class Multiplier(nn.Module):
    value: Tensor
    integral: Tensor
    smoothed: Tensor
    history: Tensor
    mean: Tensor
    square: Tensor
    count: Tensor

    def __init__(self, limits: Sequence[float], config: SafeConfig) -> None:
        super().__init__()
        self.config = config
        many = len(limits)
        self.limit: Tensor
        self.register_buffer("limit", torch.tensor(limits, dtype=torch.float64), persistent=False)
        start = min(config.multiplier_start, config.multiplier_max)
        self.register_buffer("value", torch.full((many,), start, dtype=torch.float64))
        self.register_buffer("integral", self.value.clone())
        for name in ("smoothed", "mean", "square"):
            self.register_buffer(name, torch.zeros(many, dtype=torch.float64))
        self.register_buffer("history", torch.zeros((config.delay, many), dtype=torch.float64))
        """``smoothed`` after the last updates, oldest first"""
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, cost: Tensor, finished: Tensor) -> None:
        """Move the price by ``cost [costs]``, the mean over ``finished`` episodes, a number on the device; 0: nothing changes."""
        error = violation(cost.double(), self.limit)
        after = {"sgd": self._by_sgd, "adam": self._by_adam, "pid": self._by_pid}[self.config.multiplier](error)
        after["value"] = after["value"].clamp(0.0, self.config.multiplier_max)
        after["smoothed"] = self._smooth(error)
        for name, changed in after.items():
            now = getattr(self, name)
            now.copy_(torch.where(finished > 0, changed, now))

    def _by_sgd(self, error: Tensor) -> dict[str, Tensor]:
        return {"value": self.value + self.config.multiplier_rate * error}

    def _by_adam(self, error: Tensor) -> dict[str, Tensor]:
        count = self.count + 1
        mean = BETAS[0] * self.mean + (1 - BETAS[0]) * error
        square = BETAS[1] * self.square + (1 - BETAS[1]) * error.square()
        unbiased = mean / (1 - BETAS[0] ** count), square / (1 - BETAS[1] ** count)
        step = self.config.multiplier_rate * unbiased[0] / (unbiased[1].sqrt() + EPSILON)
        return {"value": self.value + step, "mean": mean, "square": square, "count": count}

    def _by_pid(self, error: Tensor) -> dict[str, Tensor]:
        c = self.config
        integral = (self.integral + c.ki * error).clamp(0.0, c.multiplier_max)  # bounded, or it would take long to come back
        smoothed = self._smooth(error)
        rise = (smoothed - self.history[0]).clamp(min=0.0)
        history = torch.cat([self.history[1:], smoothed[None]])
        value = c.kp * smoothed + integral + c.kd * rise
        return {"value": value, "integral": integral, "history": history}

    def _smooth(self, error: Tensor) -> Tensor:
        return self.config.smoothing * self.smoothed + (1 - self.config.smoothing) * error


def violation(cost: Tensor, limit: Tensor) -> Tensor:
    """Return the violation as a share of the limit: 0 if it is met exactly, -1 if nothing was paid, at most ``WORST``."""
    relative = (cost - limit) / torch.where(limit > 0, limit, 1.0)
    return torch.where(limit > 0, relative, (cost > 0).double()).clamp(-1.0, WORST)


class CostMeter(nn.Module):
    """Sums the cost of each episode over the rows of consecutive batches."""

    running: Tensor

    def __init__(self, num_agents: int, costs: int) -> None:
        super().__init__()
        self.register_buffer("running", torch.zeros((num_agents, costs), dtype=torch.float64))
        """cost of each agent's running episode so far"""

    @torch.no_grad()
    def forward(self, cost: Tensor, ended: Tensor) -> Tensor:
        """Return the cost of a whole episode in the rows where one ``ended``; the other rows hold nothing meaningful.

        ``cost`` is ``[passes * num_agents, horizon, costs]``, ``ended`` is ``[passes * num_agents, horizon]``.
        """
        agents = len(self.running)
        parts = [self._of_a_pass(cost[i : i + agents], ended[i : i + agents]) for i in range(0, len(cost), agents)]
        return torch.cat(parts)

    def _of_a_pass(self, cost: Tensor, ended: Tensor) -> Tensor:
        total = self.running[:, None] + cost.double().cumsum(1)  # [agents, horizon, costs], since before the segment
        row = torch.arange(ended.shape[1], device=ended.device)
        last = torch.where(ended, row, -1).cummax(1).values  # [agents, horizon]: the last row so far that ended an episode
        before = torch.cat([torch.full_like(last[:, :1], -1), last[:, :-1]], 1)
        paid = torch.where((before >= 0)[..., None], _at(total, before), 0.0)  # in episodes that had ended before this row
        self.running.copy_(total[:, -1] - torch.where(last[:, -1:] >= 0, _at(total, last[:, -1:])[:, 0], 0.0))
        return total - paid


def _at(total: Tensor, row: Tensor) -> Tensor:
    """Return ``total [agents, horizon, costs]`` at ``row [agents, n]``; at row 0 where there is none."""
    return total.gather(1, row.clamp(min=0)[..., None].expand(-1, -1, total.shape[2]))
