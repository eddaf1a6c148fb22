"""Fully connected layers and how they start: orthogonal weights, zero biases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from torch import nn

HIDDEN_GAIN = math.sqrt(2)
POLICY_GAIN = 0.01
"""small, so that the first policy is close to uniform"""
VALUE_GAIN = 1.0

Layer = TypeVar("Layer", nn.Linear, nn.Conv1d, nn.Conv2d)

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


def mlp(size_in: int, hidden: Sequence[int], activation: str) -> nn.Sequential:
    """``[*, size_in]`` -> ``[*, hidden[-1]]``, an activation after every layer; without layers the input itself."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [orthogonal(nn.Linear(size_in, width)), ACTIVATIONS[activation]()]
        size_in = width
    return nn.Sequential(*layers)


def orthogonal(layer: Layer, gain: float = HIDDEN_GAIN) -> Layer:
    """The same layer with orthogonal rows (columns) of length ``gain`` and no bias."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
