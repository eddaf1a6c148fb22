"""Behaviour learned from what a world model imagines: returns, their scale, and the losses of actor and critic.

All is ``[time, rows]``; row t of time holds what *came with* a state: its reward, and whether the episode goes on after it. So what
follows from state t begins at t + 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from fugu.ops import roll
from fugu.policy.rssm import uniform
from fugu.policy.symlog import TwoHot
from fugu.policy.world import World
from fugu.ranks import ALONE, Ranks


@dataclass(frozen=True, slots=True)
class Dream:
    """What was imagined, ``[ahead + 1, rows, ...]``; the first are the states it began from."""

    features: Tensor
    action: Tensor
    action_mask: Tensor | None
    reward: Tensor
    goes_on: Tensor


@torch.no_grad()
def imagine(world: World, deter: Tensor, stoch: Tensor, ahead: int, generator: Generator, *, masked: bool = False) -> Dream:
    """Let the actor act in the model for ``ahead`` steps from states ``[rows, ...]``. ``masked``: the model knows which choices are
    allowed."""
    model = world.model()
    if masked or not roll.takes(model, deter):
        return _step_by_step(world, deter, stoch, ahead, generator, masked=masked)
    classes = uniform(ahead, len(deter), world.size.stoch, like=deter, generator=generator)
    noise = uniform(ahead + 1, len(deter), model.dims, like=deter, generator=generator)
    if model.reals:
        noise[..., -model.reals :].normal_(generator=generator)
    features, action = roll.roll(model, deter, stoch, classes, noise)
    return Dream(features, action.to(world.distribution.dtype), None, world.reward(features), world.goes_on(features))


def _step_by_step(world: World, deter: Tensor, stoch: Tensor, ahead: int, generator: Generator, *, masked: bool) -> Dream:
    """Imagine with torch."""
    features: list[Tensor] = []
    actions: list[Tensor] = []
    masks: list[Tensor] = []
    for t in range(ahead + 1):
        state = torch.cat([deter, stoch], -1)
        allowed = world.allowed(state) if masked else None
        action = world.distribution.sample(world.params(state, allowed), allowed, generator)
        features.append(state)
        actions.append(action)
        masks += [] if allowed is None else [allowed]
        if t < ahead:
            deter, stoch = world.follow(deter, stoch, world.action_input(action), generator)
    seen = torch.stack(features)
    return Dream(seen, torch.stack(actions), torch.stack(masks) if masks else None, world.reward(seen), world.goes_on(seen))


def lambda_returns(reward: Tensor, value: Tensor, goes_on: Tensor, lam: float | Tensor) -> Tensor:
    """Return the returns expected from all states but the last, ``[time - 1, rows]``.

    ``goes_on`` is the discount and what an ending leaves of it. ``lam``, also per state, is how much of the estimate from there on
    counts beside that state's ``value``.
    """
    lam = lam.to(value.dtype).expand_as(value) if isinstance(lam, Tensor) else torch.full_like(value, lam)
    sure = reward + goes_on * (1 - lam) * value
    found, after = [], value[-1]
    for t in range(len(reward) - 1, 0, -1):
        after = sure[t] + goes_on[t] * lam[t] * after
        found.append(after)
    return torch.stack(found[::-1])


class ReturnScale(nn.Module):
    """The range of returns, from the 5th percentile to the 95th, followed slowly. Advantages are divided by it where it is above 1."""

    low: Tensor
    high: Tensor
    RATE = 0.01

    def __init__(self, ranks: Ranks = ALONE) -> None:
        super().__init__()
        self.ranks = ranks
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))

    def forward(self) -> Tensor:
        return (self.high - self.low).clamp(min=1)

    @torch.no_grad()
    def update(self, returns: Tensor) -> None:
        flat = returns.flatten()
        both = torch.stack([flat.quantile(0.05), flat.quantile(0.95)])  # shares in a tensor would have to go to the device
        low, high = (self.ranks.sum(both) / self.ranks.size).unbind()
        self.low.lerp_(low, self.RATE)
        self.high.lerp_(high, self.RATE)


def value_loss(two_hot: TwoHot, logits: Tensor, slow: Tensor, returns: Tensor) -> Tensor:
    """Return the critic's loss ``[*batch]``: towards ``returns``, and not far from ``slow``, the values of its slow copy."""
    return two_hot.loss(logits, returns, slow)
