"""Observation -> features: the default encoder, built from the layout of the observation space.

In: one tensor ``[rows, *leaf.shape]`` per leaf. Out: ``features [rows, size]``, what each leaf became, side by side:

    Box of reals                         flattened as it is
    image                                convolutions: three as in Nature DQN (32, 64, 64 channels) from 36 pixels a side, else two
                                         of 3 x 3
    small grid of bytes                  under 16 cells a side and at most 4 numbers a cell: they are taken for symbols; each has
                                         an embedding, summed per cell, and two convolutions of 3 x 3 follow (32 channels)
    Box of integers or bools             scaled to 0..1 by its bounds, as it is where it has none; one-hot if it has few values and
                                         ``kinds`` says so
    Discrete, MultiDiscrete              one-hot up to 64 choices in all, beyond that an embedding per element
    MultiBinary                          zeros and ones
    Text                                 character embeddings, a convolution over five characters, the maximum over the text

An image is a Box of bytes with three axes, or any Box with two or three axes and at least 16 x 16 pixels. Its channels are the last
axis, or the first where that is shorter. It is scaled to 0..1 by its bounds (bytes: by 1/255).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from gymnasium import spaces as gs
from torch import Tensor, nn
from torch.nn import functional as F

from fugu.policy.layers import orthogonal
from fugu.spaces import Layout, Leaf

ONE_HOT_CHOICES = 64
"""up to this many choices a one-hot vector is cheaper than an embedding and says the same"""
IMAGE_SIDE = 16
NATURE_SIDE = 36
GRID_CHANNELS = 4
GRID_SIDE = 7
"""cells a side from which a grid's convolutions do without padding"""


class Encoder(nn.Module):
    """Leaves of a batch of observations -> ``[rows, size]``."""

    def __init__(self, layout: Layout, embedding: int, kinds: int = 0) -> None:
        super().__init__()
        self.parts = nn.ModuleList(_part(leaf, embedding, kinds) for leaf in layout.leaves)
        self.size = sum(width(part, leaf) for part, leaf in zip(self.parts, layout.leaves, strict=True))
        """features of one row"""
        self.convolves = any(isinstance(module, nn.Conv1d | nn.Conv2d) for module in self.parts.modules())

    def forward(self, leaves: Sequence[Tensor]) -> Tensor:
        if len(self.parts) == 1:
            return self.parts[0](leaves[0])
        return torch.cat([part(leaf) for part, leaf in zip(self.parts, leaves, strict=True)], -1)


def is_vector(space: gs.Space) -> bool:
    """Say whether an observation is one flat vector of float32, which layers read as it is."""
    return isinstance(space, gs.Box) and space.dtype == np.float32 and len(space.shape) == 1


def is_image(leaf: Leaf) -> bool:
    """Say whether convolutions read this leaf."""
    if not isinstance(leaf.space, gs.Box) or leaf.lead or 0 in leaf.shape:
        return False
    if len(leaf.shape) == 3 and leaf.dtype == np.uint8:
        return True
    return len(leaf.shape) in (2, 3) and min(_sides(leaf.shape)) >= IMAGE_SIDE


def is_real(leaf: Leaf) -> bool:
    """Say whether the leaf holds measured numbers, which may be normalised; images are scaled by their bounds instead."""
    return isinstance(leaf.space, gs.Box) and leaf.dtype.kind == "f" and not is_image(leaf)


def width(part: nn.Module, leaf: Leaf) -> int:
    """Count the features that ``part`` makes of ``leaf``, by trying it on one row of zeros."""
    with torch.no_grad():
        return part(torch.from_numpy(np.zeros((1, *leaf.shape), leaf.dtype))).shape[-1]


def _part(leaf: Leaf, embedding: int, kinds: int) -> nn.Module:
    space = leaf.space
    if 0 in leaf.shape:
        return Reals()  # there is nothing in it
    if is_image(leaf):
        sides, channels = _sides(leaf.shape), _channels(leaf.shape)
        if leaf.dtype == np.uint8 and max(sides) < IMAGE_SIDE and channels <= GRID_CHANNELS:
            return Grid(leaf, embedding)
        return Image(leaf)
    if isinstance(space, gs.Box):
        if leaf.dtype.kind == "f":
            return Reals()
        values = np.ravel(space.high).astype(np.float64) - np.ravel(space.low).astype(np.float64) + 1  # 64 bits could overflow
        return OneHot(values.astype(np.int64), np.ravel(space.low), 1) if values.max() <= kinds else Scaled(leaf)
    if isinstance(space, gs.MultiBinary):
        return Reals()
    if isinstance(space, gs.Discrete | gs.MultiDiscrete):
        counts = np.ravel(space.n if isinstance(space, gs.Discrete) else space.nvec).astype(np.int64)
        repeats = math.prod(leaf.shape[: leaf.lead])
        if counts.sum() * repeats <= ONE_HOT_CHOICES:
            return OneHot(counts, np.ravel(space.start), repeats)
        return Choices(counts, np.ravel(space.start), repeats, embedding)
    return Characters(embedding)


class Reals(nn.Module):
    """Numbers as they are, flattened."""

    def forward(self, leaf: Tensor) -> Tensor:
        return leaf.float().flatten(1) if leaf.dim() > 1 else leaf.float().unsqueeze(1)


class Scaled(nn.Module):
    """Integers scaled to 0..1 where they are bounded on both sides."""

    low: Tensor
    scale: Tensor

    def __init__(self, leaf: Leaf) -> None:
        super().__init__()
        assert isinstance(leaf.space, gs.Box)
        low, scale = _scaling(leaf.space)
        copies = math.prod(leaf.shape[: leaf.lead])
        self.register_buffer("low", torch.from_numpy(np.tile(low.ravel(), copies)), persistent=False)
        self.register_buffer("scale", torch.from_numpy(np.tile(scale.ravel(), copies)), persistent=False)

    def forward(self, leaf: Tensor) -> Tensor:
        numbers = leaf.float().flatten(1) if leaf.dim() > 1 else leaf.float().unsqueeze(1)
        return (numbers - self.low) * self.scale


class OneHot(nn.Module):
    """A column per choice, 1 where it was made. A value outside its range (padding) is all zeros."""

    owner: Tensor
    value: Tensor

    def __init__(self, counts: np.ndarray, start: np.ndarray, repeats: int) -> None:
        super().__init__()
        counts, start = np.tile(counts, repeats), np.tile(start, repeats)
        owner = np.repeat(np.arange(len(counts)), counts)  # element each column belongs to
        value = np.concatenate([np.arange(n) + np.int64(low) for n, low in zip(counts, start.astype(np.int64), strict=True)])
        self.single = len(counts) == 1
        self.register_buffer("owner", torch.from_numpy(owner), persistent=False)
        self.register_buffer("value", torch.from_numpy(value), persistent=False)

    def forward(self, leaf: Tensor) -> Tensor:
        elements = leaf.long().reshape(leaf.shape[0], -1)
        if not self.single:
            elements = elements.index_select(1, self.owner)
        return (elements == self.value).float()


class Choices(nn.Module):
    """An embedding per element and choice, side by side."""

    begin: Tensor
    start: Tensor
    last: Tensor

    def __init__(self, counts: np.ndarray, start: np.ndarray, repeats: int, size: int) -> None:
        super().__init__()
        begin = np.cumsum(counts) - counts  # of each element's rows in the table
        self.table = nn.Embedding(int(counts.sum()), size)
        self.register_buffer("begin", torch.from_numpy(np.tile(begin, repeats)), persistent=False)
        self.register_buffer("start", torch.from_numpy(np.tile(start.astype(np.int64), repeats)), persistent=False)
        self.register_buffer("last", torch.from_numpy(np.tile(counts - 1, repeats)), persistent=False)

    def forward(self, leaf: Tensor) -> Tensor:
        choice = leaf.long().reshape(leaf.shape[0], -1) - self.start
        # the padding of a Sequence may lie outside the range
        choice = torch.minimum(choice.clamp_min(0), self.last)
        return self.table(choice + self.begin).flatten(1)


class Characters(nn.Module):
    """A text of fixed length: which groups of five characters occur in it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(256, size, padding_idx=0)
        with torch.no_grad():
            # a text is often the same in every row: features of size 1 at most, or they drown what does change
            self.table.weight /= math.sqrt(size)
        self.convolution = orthogonal(nn.Conv1d(size, 64, 5, padding=2))

    def forward(self, leaf: Tensor) -> Tensor:
        codes = leaf.long().reshape(leaf.shape[0], -1) & 255  # sets of more than 255 characters share embeddings
        if codes.is_cuda:  # where shapes that depend on the data cannot be recorded, and this costs little
            return self._read(codes)
        texts, which = codes.unique(dim=0, return_inverse=True)  # most rows of a batch say the same as others
        return self._read(texts)[which]

    def _read(self, codes: Tensor) -> Tensor:
        return self.convolution(self.table(codes).transpose(1, 2)).relu().amax(-1)


class Image(nn.Module):
    """Convolutions over pixels scaled to 0..1."""

    low: Tensor
    scale: Tensor

    def __init__(self, leaf: Leaf) -> None:
        super().__init__()
        assert isinstance(leaf.space, gs.Box)
        self.last = _channels_last(leaf.shape)
        low, scale = (float(bound.flat[0]) if np.ptp(bound) == 0 else bound for bound in _scaling(leaf.space))
        self.from_zero = isinstance(low, float) and isinstance(scale, float) and low == 0
        self.register_buffer("low", torch.as_tensor(low, dtype=torch.float32), persistent=False)
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32), persistent=False)
        self.net = _convolutions(_channels(leaf.shape), min(_sides(leaf.shape)))

    def forward(self, leaf: Tensor) -> Tensor:
        if not (leaf.is_cpu and self.from_zero):
            return self.net(_channels_first((leaf.float() - self.low) * self.scale, self.last))
        # A CPU is faster with the channels of a pixel side by side, and with weights that are scaled instead of all the pixels. Bytes
        # are exact in bfloat16 too.
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
        first, *others = self.net
        assert isinstance(first, nn.Conv2d)
        hidden = _channels_first(leaf, self.last).to(dtype).contiguous(memory_format=torch.channels_last)
        hidden = F.conv2d(hidden, first.weight * self.scale, first.bias, first.stride, first.padding)
        for layer in others:
            hidden = layer(hidden)
        return hidden


class Grid(nn.Module):
    """A few cells holding symbols: an embedding per symbol, summed per cell, then convolutions."""

    begin: Tensor

    def __init__(self, leaf: Leaf, size: int) -> None:
        super().__init__()
        self.last = _channels_last(leaf.shape)
        self.table = nn.Embedding(256 * _channels(leaf.shape), size)
        self.register_buffer("begin", 256 * torch.arange(_channels(leaf.shape))[:, None, None], persistent=False)
        # what lies at the border is seen by the cells beside it: without padding a window of 7 x 7 takes less than half of the time
        padding = 0 if min(_sides(leaf.shape)) >= GRID_SIDE else 1
        self.net = _stack(size, [(32, 3, 1, padding), (32, 3, 1, padding)])

    def forward(self, leaf: Tensor) -> Tensor:
        symbols = _channels_first(leaf, self.last).long() + self.begin  # [rows, channels, height, width]
        return self.net(self.table(symbols).sum(1).permute(0, 3, 1, 2))


def _convolutions(channels: int, side: int) -> nn.Sequential:
    if side >= NATURE_SIDE:
        shapes = [(32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)]
    else:
        stride = 2 if side >= IMAGE_SIDE else 1
        shapes = [(32, 3, stride, 1), (64, 3, stride, 1)]
    return _stack(channels, shapes)


def _stack(channels: int, shapes: Sequence[tuple[int, int, int, int]]) -> nn.Sequential:
    """Stack convolutions of (filters, kernel, stride, padding), flattened at the end."""
    layers: list[nn.Module] = []
    for filters, kernel, stride, padding in shapes:
        layers += [orthogonal(nn.Conv2d(channels, filters, kernel, stride, padding)), nn.ReLU(inplace=True)]
        channels = filters
    return nn.Sequential(*layers, nn.Flatten())


def _channels_first(image: Tensor, last: bool) -> Tensor:
    """Return ``[rows, channels, height, width]``."""
    if image.dim() == 3:
        return image.unsqueeze(1)
    return image.permute(0, 3, 1, 2) if last else image


def _channels_last(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[2] <= shape[0]


def _channels(shape: tuple[int, ...]) -> int:
    return 1 if len(shape) == 2 else shape[2] if _channels_last(shape) else shape[0]


def _sides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if len(shape) == 2 else shape[:2] if _channels_last(shape) else shape[1:]


def _scaling(space: gs.Box) -> tuple[np.ndarray, np.ndarray]:
    """Return ``low`` and ``scale`` per element, float32, so that (x - low) * scale is in 0..1; 0 and 1 without two finite bounds."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    bounded = space.bounded_below & space.bounded_above & np.isfinite(low) & np.isfinite(high) & (high > low)
    with np.errstate(all="ignore"):
        scale = np.where(bounded, 1 / (high - low), 1.0)
    return np.where(bounded, low, 0.0).astype(np.float32), scale.astype(np.float32)
