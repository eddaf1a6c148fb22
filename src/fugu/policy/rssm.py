"""The recurrent state-space model: how a state follows from the one before, and what an observation adds to it.

A state is ``deter [*batch, deter]``, which a recurrent layer computes, and ``stoch [*batch, stoch * classes]``, one class out of each
of several categorical variables, one-hot. ``prior`` says how likely the classes are from ``deter`` alone, ``posterior`` from ``deter``
and the features of an observation. Probabilities are ``[*batch, stoch, classes]``, of which 1% is spread evenly, so that no logarithm
is infinite (Hafner et al. 2023, arXiv:2301.04104).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Generator, Tensor, nn

from fugu.ops import observe
from fugu.ops.mixed import mixed
from fugu.ops.stack import stack
from fugu.policy.config_world import WorldSize

UNIMIX = 0.01
"""share of a distribution that is spread evenly"""


class Layer(nn.Module):
    """Linear, RMS norm, SiLU."""

    def __init__(self, size_in: int, size: int) -> None:
        super().__init__()
        self.linear = trunc_normal(nn.Linear(size_in, size))
        self.scale = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return stack(x, self.params())

    def params(self) -> list[Tensor]:
        return [self.linear.weight, self.linear.bias, self.scale]


class Stack(nn.Sequential):
    """Layers from ``sizes[0]`` numbers to ``sizes[-1]``."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__(*(Layer(size_in, size) for size_in, size in pairwise(sizes)))

    def forward(self, x: Tensor) -> Tensor:
        return stack(x, self.params())

    def params(self) -> list[Tensor]:
        layers: list[Any] = list(self)
        return [p for layer in layers for p in layer.params()]


class Head(nn.Module):
    """``layers`` layers and a linear one after them, whose weights start ``gain`` times as large as usual."""

    def __init__(self, size_in: int, units: int, layers: int, size: int, gain: float = 1.0) -> None:
        super().__init__()
        self.layers = Stack([size_in, *[units] * layers])
        self.out = trunc_normal(nn.Linear(units, size), gain)

    def forward(self, x: Tensor) -> Tensor:
        return stack(x, self.params())

    def params(self) -> list[Tensor]:
        return [*self.layers.params(), self.out.weight, self.out.bias]


class Blocks(nn.Module):
    """Weights of a linear layer of ``blocks`` blocks beside each other, which share nothing."""

    def __init__(self, blocks: int, size_in: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(trunc_normal_(torch.empty(blocks, size_in, size), size_in, size))
        self.bias = nn.Parameter(torch.zeros(blocks, 1, size))


class RSSM(nn.Module):
    def __init__(self, size: WorldSize, features: int, action: int, remember: int = 0) -> None:
        """``features``: numbers of an encoded observation. ``action``: numbers of an action, as ``ActionInput`` makes it.
        ``remember``: rows over which ``deter`` keeps things at first, at most; 0: about 4, for all of it."""
        super().__init__()
        self.size = size
        width = size.deter // size.blocks
        self.from_deter, self.from_stoch = Layer(size.deter, size.hidden), Layer(size.random, size.hidden)
        self.from_action = Layer(action, size.hidden)
        self.mix = Blocks(size.blocks, width + 3 * size.hidden, width)
        self.mix_scale = nn.Parameter(torch.ones(size.deter))
        self.gates = Blocks(size.blocks, width, 3 * width)
        if remember:
            self.gates.bias.data[..., -width:] = keeping(width, remember)
        self.seen = trunc_normal(nn.Linear(features, size.hidden))
        self.expected = trunc_normal(nn.Linear(size.deter, size.hidden, bias=False))
        self.seen_scale = nn.Parameter(torch.ones(size.hidden))
        self.posterior_out = trunc_normal(nn.Linear(size.hidden, size.random))
        self.prior_net = Head(size.deter, size.hidden, 2, size.random)

    def step(self, deter: Tensor, stoch: Tensor, action: Tensor) -> Tensor:
        """Return the ``deter`` that follows; ``action`` is already ``from_action`` of what was done. All are ``[rows, ...]``."""
        return observe.step(self.cell(), deter, stoch, action)

    def prior(self, deter: Tensor) -> Tensor:
        """Return the probabilities of the classes before anything is observed."""
        return mixed(self.prior_net(deter), self.size.classes, UNIMIX)

    def posterior(self, deter: Tensor, seen: Tensor) -> Tensor:
        """Return them after an observation; ``seen`` is ``self.seen`` of its features."""
        return observe.posterior(self._observing(), self.size.classes, UNIMIX, deter, seen)

    def observe(
        self, features: Tensor, action: Tensor, first: Tensor, deter: Tensor, stoch: Tensor, generator: Generator | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``deter``, ``stoch`` and ``posterior`` of each row of ``features [time, segments, features]``.

        ``action [time, segments, action]`` is what was done before the row, ``deter`` and ``stoch`` the state of the row before the
        first. Where ``first`` is True all of that is zero.
        """
        seen, action = self.seen(features), self.from_action(action * ~first.unsqueeze(-1))
        chosen = uniform(*first.shape, self.size.stoch, like=deter, generator=generator)
        return observe.observe(self._observing(), self.size.classes, UNIMIX, action, seen, first, deter, stoch, chosen)

    def cell(self) -> list[Tensor]:
        """Return the parameters of the recurrent cell, as ``ops/observe.py`` has them."""
        read = [*self.from_deter.params(), *self.from_stoch.params()]
        return [*read, self.mix.weight, self.mix.bias, self.mix_scale, self.gates.weight, self.gates.bias]

    def _observing(self) -> list[Tensor]:
        out = self.posterior_out
        return [*self.cell(), self.expected.weight, self.seen_scale, out.weight, out.bias]


def keeping(width: int, rows: int) -> Tensor:
    """Return biases of the update gate with which the numbers of a block keep things for 1 to ``rows`` rows (Tallec & Ollivier 2018,
    arXiv:1804.11188)."""
    share = 1 / torch.logspace(0.1, max(0.1, math.log10(rows)), width)
    return torch.logit(share) + 1


def draw(chance: Tensor, generator: Generator | None, *, greedy: bool = False) -> Tensor:
    """Draw a class of each variable, or take the most probable: one-hot ``[*batch, stoch * classes]``, with the gradient of the
    probabilities."""
    if greedy:
        return observe.through(chance.detach().argmax(-1, keepdim=True), chance)
    return observe.drawn(chance, uniform(*chance.shape[:-1], like=chance, generator=generator))


def uniform(*shape: int, like: Tensor, generator: Generator | None) -> Tensor:
    """Return random numbers in [0, 1)."""
    return torch.rand(shape, generator=generator, dtype=torch.float32, device=like.device)


def trunc_normal(layer: nn.Linear, gain: float = 1.0) -> nn.Linear:
    """Give ``layer`` its initial weights, and no bias."""
    trunc_normal_(layer.weight.data, layer.in_features, layer.out_features).mul_(gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def trunc_normal_(weight: Tensor, size_in: int, size: int) -> Tensor:
    """Fill ``weight`` with a normal cut off at two deviations, of the variance 1 / mean of the sizes after that."""
    deviation = math.sqrt(2 / (size_in + size)) / 0.8796
    return nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)
