"""Imagination: an actor acts in a world model for some steps from many states. Nothing of it has gradients.

All randomness is given: ``uniform [ahead, rows, variables]`` decides on the classes of states, ``noise [ahead + 1, rows, dims]`` on
actions: uniform numbers for choices and bits, normal ones for real numbers.

The native kernel takes a few starts at a time through all of it. What it does not cover (masks of choices, other dtypes, a GPU, wide
layers) is for torch: ``takes``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fugu import native as core
from fugu.ops import observe, stack
from fugu.ops.mixed import mixed
from fugu.ops.norm import EPSILON


@dataclass(frozen=True, slots=True)
class Model:
    """Parameters as in ``ops/observe.py`` and ``ops/stack.py``, and what actions are made of."""

    cell: Sequence[Tensor]
    prior: Sequence[Tensor]
    actor: Sequence[Tensor]
    action: Sequence[Tensor]
    """layer that reads actions"""
    classes: int
    even: float
    counts: Sequence[int]
    """choices of each element that is one"""
    binaries: int
    reals: int
    deviation: tuple[float, float]
    """least and largest, of real numbers"""

    @property
    def dims(self) -> int:
        """Return the columns of an action."""
        return len(self.counts) + self.binaries + self.reals


def takes(model: Model, deter: Tensor) -> bool:
    """Say whether the native kernel covers it."""
    params = [*model.cell, *model.prior, *model.actor, *model.action]
    return stack.takes(deter, params)


@torch.no_grad()
def roll(model: Model, deter: Tensor, stoch: Tensor, uniform: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the states ``[ahead + 1, rows, deter + stoch]``, of which the first are given, and the actions ``[ahead + 1, rows, dims]``
    in them, float32."""
    if not takes(model, deter):
        return roll_reference(model, deter, stoch, uniform, noise)
    features = deter.new_empty(len(noise), len(deter), deter.shape[-1] + stoch.shape[-1])
    torch.cat([deter, stoch], -1, out=features[0])
    actions = torch.empty(noise.shape)
    params = (stack.arrays(each) for each in (model.cell, model.prior, model.actor, model.action))
    sizes = model.classes, list(model.counts), model.binaries, model.reals, *model.deviation
    columns = stack.arrays((uniform, noise, features, actions))
    core.native.roll(*params, EPSILON, model.even, *sizes, *columns, stack.threads())
    return features, actions


@torch.no_grad()
def roll_reference(model: Model, deter: Tensor, stoch: Tensor, uniform: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``roll`` step by step."""
    features: list[Tensor] = []
    actions: list[Tensor] = []
    for t in range(len(noise)):
        features.append(torch.cat([deter, stoch], -1))
        action, numbers = _acted(model, stack.stack_reference(features[-1], model.actor), noise[t])
        actions.append(action)
        if t + 1 < len(noise):
            deter = observe.step(model.cell, deter, stoch, stack.stack_reference(numbers, model.action))
            chance = mixed(stack.stack_reference(deter, model.prior), model.classes, model.even)
            stoch = observe.drawn(chance, uniform[t])
    return torch.stack(features), torch.stack(actions)


def _acted(model: Model, out: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions of what the actor puts out, and the numbers that the model reads of them."""
    heads = len(model.counts)
    *choices, bits, mean, deviation = out.split([*model.counts, model.binaries, model.reals, model.reals], -1)
    actions: list[Tensor] = []
    numbers: list[Tensor] = []
    for logits, count, uniform in zip(choices, model.counts, noise[:, :heads].unbind(-1), strict=True):
        one_hot = observe.drawn(mixed(logits, count, model.even), uniform.unsqueeze(-1))
        actions.append(one_hot.argmax(-1, keepdim=True).to(out.dtype))
        numbers.append(one_hot)
    taken = (noise[:, heads : heads + model.binaries] < bits.sigmoid()).to(out.dtype)
    low, high = model.deviation
    real = mean.tanh() + noise[:, heads + model.binaries :] * (low + (high - low) * (deviation + 2).sigmoid())
    return torch.cat([*actions, taken, real], -1), torch.cat([*numbers, taken, real / real.abs().clamp(min=1)], -1)
