"""The default network: encoder, fully connected layers, heads for policy and value.

It follows the same contract as a network of the user's own: ``encode(obs) -> hidden [rows, hidden_size]``, with ``obs`` in the
structure of the observation space, and ``decode(hidden) -> (params [rows, distribution.size], value [rows])``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from gymnasium import spaces as gs
from torch import Tensor, nn

from fugu.ops.linear import linear
from fugu.ops.mlp import mlp
from fugu.policy.config import PolicyConfig
from fugu.policy.distribution import Distribution
from fugu.policy.encoder import Encoder, is_vector
from fugu.policy.layers import POLICY_GAIN, VALUE_GAIN, orthogonal
from fugu.spaces import Layout


class Linear(nn.Linear):
    """torch's layer, with our own kernels if there are any for it."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class MLP(nn.Module):
    """``[*rows, size_in]`` -> ``[*rows, hidden[-1]]``, an activation after every layer; without layers the input itself."""

    def __init__(self, size_in: int, hidden: Sequence[int], activation: str, *, natively: bool = True) -> None:
        """``natively``: use our own kernels on a CPU. They are for many rows of few numbers; the output of convolutions is the
        opposite, and torch is faster with it."""
        super().__init__()
        self.activation, self.natively = activation, natively
        sizes = [size_in, *hidden]
        self.layers = nn.ModuleList(orthogonal(nn.Linear(i, o)) for i, o in pairwise(sizes))

    def forward(self, x: Tensor, head: nn.Linear | None = None) -> Tensor:
        """Return ``x`` through the layers; with ``head``, a last layer without activation follows in the same pass."""
        layers = [*self.layers, *([head] if head is not None else [])]
        weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
        return mlp(x, weights, biases, self.activation, last=None if head is None else "none", natively=self.natively)


class DefaultNet(nn.Module):
    """Policy and value share the layers, or each has its own (``share=False``) and ``hidden`` holds both, side by side."""

    def __init__(self, observation_space: gs.Space, action_space: gs.Space, config: PolicyConfig) -> None:
        super().__init__()
        distribution = Distribution(action_space)
        self.encoder = Encoder(Layout(observation_space), config.embedding, config.kinds)
        self.reads_rows = is_vector(observation_space)
        """True if the features of a row are the row itself"""
        natively = not self.encoder.convolves
        self.trunk = MLP(self.encoder.size, config.hidden, config.activation, natively=natively)
        width = config.hidden[-1] if config.hidden else self.encoder.size
        self.value_trunk = None if config.share else MLP(self.encoder.size, config.hidden, config.activation, natively=natively)
        self.hidden_size = width if config.share else 2 * width
        features = config.core_size if config.core != "none" else width
        free = distribution.reals if config.std == "free" else 0
        policy = orthogonal(Linear(features, distribution.size - free), POLICY_GAIN)
        value = orthogonal(Linear(features, 1), VALUE_GAIN)
        if distribution.reals and not free:
            nn.init.constant_(policy.bias[-distribution.reals :], math.log(config.initial_std))
        # What both read is multiplied once: the value is the last output of a common head.
        self.heads = nn.ModuleList([_side_by_side(policy, value)] if config.share else [policy, value])
        self.log_std = nn.Parameter(torch.full((free,), math.log(config.initial_std))) if free else None

    def encode(self, obs: Any) -> Tensor:
        """Return ``hidden [rows, hidden_size]``; for a flat vector of float32 also ``[steps, rows, hidden_size]``."""
        features = obs if self.reads_rows else self.encoder(leaves(obs))
        hidden = self.trunk(features)
        return hidden if self.value_trunk is None else torch.cat([hidden, self.value_trunk(features)], -1)

    def decode(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return parameters of the distribution and values."""
        if self.value_trunk is None:
            return self._split(self.heads[0](hidden))
        for_policy, for_value = hidden.chunk(2, -1)
        return self._with_std(self.heads[0](for_policy)), self.heads[1](for_value).squeeze(-1)

    def whole(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Return ``decode(encode(obs))``, with layers and heads computed in one pass."""
        features = obs if self.reads_rows else self.encoder(leaves(obs))
        out = self.trunk(features, self.heads[0])
        if self.value_trunk is None:
            return self._split(out)
        return self._with_std(out), self.value_trunk(features, self.heads[1]).squeeze(-1)

    def _split(self, out: Tensor) -> tuple[Tensor, Tensor]:
        return self._with_std(out[..., :-1]), out[..., -1]

    def _with_std(self, params: Tensor) -> Tensor:
        return params if self.log_std is None else torch.cat([params, self.log_std.expand(*params.shape[:-1], -1)], -1)


def _side_by_side(*layers: nn.Linear) -> nn.Linear:
    """Return one layer whose outputs are those of all ``layers``, side by side."""
    joined = Linear(layers[0].in_features, sum(layer.out_features for layer in layers))
    joined.weight.data.copy_(torch.cat([layer.weight.data for layer in layers]))
    joined.bias.data.copy_(torch.cat([layer.bias.data for layer in layers]))
    return joined


def leaves(obs: Any) -> list[Tensor]:
    """Return the tensors of a structured observation, in the order of the layout's leaves."""
    if isinstance(obs, Tensor):
        return [obs]
    parts = obs.values() if isinstance(obs, dict) else obs
    return [leaf for part in parts for leaf in leaves(part)]
