"""Initial weights of the layers of a network: orthogonal, with zero biases."""

from __future__ import annotations

import math
from typing import TypeVar

from torch import nn

HIDDEN_GAIN = math.sqrt(2)
POLICY_GAIN = 0.01
"""small, so that the first policy is close to uniform"""
VALUE_GAIN = 1.0

Layer = TypeVar("Layer", bound=nn.Linear | nn.Conv1d | nn.Conv2d)


def orthogonal(layer: Layer, gain: float = HIDDEN_GAIN) -> Layer:
    """Give ``layer`` orthogonal rows (columns) of length ``gain`` and no bias, and return it."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
