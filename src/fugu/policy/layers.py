"""Fully connected layers and how they start: orthogonal weights, zero biases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from torch import Tensor, nn

from fugu.ops.kernels import mlp
from fugu.ops.linear import linear, takes_half

HIDDEN_GAIN = math.sqrt(2)
POLICY_GAIN = 0.01
"""small, so that the first policy is close to uniform"""
VALUE_GAIN = 1.0


class Linear(nn.Linear):
    """torch's, with kernels of our own where products are in bfloat16 on a GPU."""

    def forward(self, input: Tensor) -> Tensor:
        if takes_half(input, self.weight, self.bias):
            return linear(input, self.weight, self.bias)
        return super().forward(input)


Layer = TypeVar("Layer", bound=nn.Linear | nn.Conv1d | nn.Conv2d)


class MLP(nn.Module):
    """``[rows, size_in]`` -> ``[rows, hidden[-1]]``, an activation after every layer; without layers the input itself."""

    def __init__(self, size_in: int, hidden: Sequence[int], activation: str, *, natively: bool = True) -> None:
        """``natively``: by kernels of our own on a CPU. They are for many rows of few numbers; what comes out of convolutions is the
        opposite, and torch is faster with it."""
        super().__init__()
        self.activation, self.natively = activation, natively
        sizes = [size_in, *hidden]
        self.layers = nn.ModuleList(orthogonal(nn.Linear(i, o)) for i, o in pairwise(sizes))

    def forward(self, x: Tensor, head: nn.Linear | None = None) -> Tensor:
        """With ``head``, a last layer without activation follows in the same pass."""
        linear = [*self.layers, *([head] if head is not None else [])]
        if not linear:
            return x
        weights, biases = [layer.weight for layer in linear], [layer.bias for layer in linear]
        last = None if head is None else "none"
        return mlp(x, weights, biases, self.activation, last=last, natively=self.natively)


def orthogonal(layer: Layer, gain: float = HIDDEN_GAIN) -> Layer:
    """The same layer with orthogonal rows (columns) of length ``gain`` and no bias."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
