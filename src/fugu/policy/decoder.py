"""Features of a state -> what was observed: the losses of a world model's picture of it, and that picture for people.

What each leaf of the observation is compared with, and how:

    numbers (reals, integers)        the numbers as the encoder reads them; squared error, summed
    choices, bits                    one-hot columns and bits; cross entropy of each
    symbols (text, small grids of    the bits of each symbol's number; cross entropy of each
    bytes, large choices)
    images                           pixels scaled to 0..1; squared error, summed

In: ``features [rows, size]`` and leaves as the encoder gets them. Out: ``loss [rows]``; ``shown`` gives a leaf back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces as gs
from torch import Tensor, nn
from torch.nn import functional as F

from fugu.policy.encoder import Encoder, Image, OneHot, Reals, Scaled
from fugu.policy.rssm import Layer, Stack, trunc_normal
from fugu.spaces import Layout, Leaf

SMALLEST = 4
"""pixels a side from which a picture is made, by doubling"""


class Decoder(nn.Module):
    def __init__(self, layout: Layout, encoder: Encoder, size_in: int, units: int, layers: int, depth: int) -> None:
        super().__init__()
        self.layers = Stack([size_in, *[units] * layers])
        self.parts = nn.ModuleList(
            _part(leaf, part, units, depth) for leaf, part in zip(layout.leaves, encoder.parts, strict=True)
        )

    def forward(self, features: Tensor, leaves: Sequence[Tensor]) -> Tensor:
        """Return the loss ``[rows]``."""
        hidden = self.layers(features)
        return torch.stack([part.loss(hidden, leaf) for part, leaf in zip(self._parts, leaves, strict=True)]).sum(0)

    def shown(self, features: Tensor) -> list[Tensor]:
        """Return the most probable leaves: ``[rows, numbers]`` as the encoder reads them, chances of bits ``[rows, bits]``, and
        ``[rows, channels, height, width]`` of pixels in 0..1."""
        hidden = self.layers(features)
        return [part.shown(hidden) for part in self._parts]

    def targets(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """Return leaves in the form of ``shown``."""
        return [part.target(leaf) for part, leaf in zip(self._parts, leaves, strict=True)]

    @property
    def _parts(self) -> list[Any]:
        return list(self.parts)


class Numbers(nn.Module):
    """Numbers that a part of the encoder makes without weights."""

    def __init__(self, target: nn.Module, count: int, units: int) -> None:
        super().__init__()
        self._target = [target]  # it belongs to the encoder
        self.out = trunc_normal(nn.Linear(units, count))

    def target(self, leaf: Tensor) -> Tensor:
        return self._target[0](leaf)

    def loss(self, hidden: Tensor, leaf: Tensor) -> Tensor:
        return (self.out(hidden) - self.target(leaf)).square().sum(-1)

    def shown(self, hidden: Tensor) -> Tensor:
        return self.out(hidden)


class Bits(nn.Module):
    """Zeros and ones that a part of the encoder makes without weights, or those of the numbers of symbols."""

    def __init__(self, target: nn.Module, count: int, units: int) -> None:
        super().__init__()
        self._target = [target]
        self.out = trunc_normal(nn.Linear(units, count))

    def target(self, leaf: Tensor) -> Tensor:
        return self._target[0](leaf)

    def loss(self, hidden: Tensor, leaf: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(self.out(hidden), self.target(leaf), reduction="none").sum(-1)

    def shown(self, hidden: Tensor) -> Tensor:
        return self.out(hidden).sigmoid()


class Binary(nn.Module):
    """Symbols -> the bits of their numbers, ``[rows, elements * bits]``."""

    start: Tensor

    def __init__(self, start: np.ndarray, bits: int) -> None:
        super().__init__()
        self.bits = bits
        self.register_buffer("start", torch.from_numpy(start.astype(np.int64)), persistent=False)

    def forward(self, leaf: Tensor) -> Tensor:
        codes = leaf.long().reshape(leaf.shape[0], -1) - self.start
        return (codes.unsqueeze(-1) >> torch.arange(self.bits, device=leaf.device) & 1).flatten(1).float()


class Pixels(nn.Module):
    """An image, from a few pixels that are doubled until it is large enough, with a convolution after each doubling."""

    def __init__(self, image: Image, shape: tuple[int, ...], units: int, depth: int) -> None:
        super().__init__()
        self._image = [image]
        channels, *self.sides = _first(torch.zeros(1, *shape), image.last).shape[1:]
        doublings = max(1, round(math.log2(max(self.sides) / SMALLEST)))
        self.small = tuple(math.ceil(side / 2**doublings) for side in self.sides)
        widths = [depth * 2 ** max(0, doublings - 1 - i) for i in range(doublings)]
        self.enter = Layer(units, widths[0] * math.prod(self.small))
        self.convolutions = nn.ModuleList(
            nn.Conv2d(i, o, 3, padding=1) for i, o in zip(widths, [*widths[1:], channels], strict=True)
        )

    def target(self, leaf: Tensor) -> Tensor:
        image = self._image[0]
        return _first((leaf.float() - image.low) * image.scale, image.last)

    def loss(self, hidden: Tensor, leaf: Tensor) -> Tensor:
        return (self._made(hidden) - self.target(leaf)).square().flatten(1).sum(-1)

    def shown(self, hidden: Tensor) -> Tensor:
        return self._made(hidden)

    def _made(self, hidden: Tensor) -> Tensor:
        x = self.enter(hidden).unflatten(-1, (-1, *self.small))
        for i, convolution in enumerate(self.convolutions):
            x = convolution(F.interpolate(F.silu(x) if i else x, scale_factor=2.0))
        return x[..., : self.sides[0], : self.sides[1]].sigmoid()


def _part(leaf: Leaf, part: nn.Module, units: int, depth: int) -> nn.Module:
    space = leaf.space
    count = math.prod(leaf.shape)
    if isinstance(part, Image):
        return Pixels(part, leaf.shape, units, depth)
    if isinstance(space, gs.MultiBinary):
        return Bits(part, count, units)
    if isinstance(part, OneHot):
        return Bits(part, len(part.value), units)
    if isinstance(part, Reals | Scaled):
        return Numbers(part, count, units)
    start, largest = np.zeros(1), 255
    if isinstance(space, gs.Discrete | gs.MultiDiscrete):
        repeats = math.prod(leaf.shape[: leaf.lead])
        start = np.tile(np.ravel(space.start), repeats)
        largest = int(np.max(space.n if isinstance(space, gs.Discrete) else space.nvec)) - 1
    binary = Binary(start, max(1, largest.bit_length()))
    return Bits(binary, count * binary.bits, units)


def _first(image: Tensor, last: bool) -> Tensor:
    """Return ``[rows, channels, height, width]``."""
    if image.dim() == 3:
        return image.unsqueeze(1)
    return image.permute(0, 3, 1, 2) if last else image
