"""The default network: encoder, fully connected layers, heads for policy and value.

It follows the same contract as a network of the user's own: ``encode(obs) -> hidden [rows, hidden_size]``, with ``obs`` in the
structure of the observation space, and ``decode(hidden) -> (params [rows, distribution.size], value [rows])``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces as gs
from torch import Tensor, nn

from fugu.policy.config import PolicyConfig
from fugu.policy.distribution import Distribution
from fugu.policy.encoder import Encoder
from fugu.policy.layers import POLICY_GAIN, VALUE_GAIN, mlp, orthogonal
from fugu.spaces import Layout


class DefaultNet(nn.Module):
    """Policy and value share the layers, or each has its own (``share=False``) and ``hidden`` holds both, side by side."""

    def __init__(self, observation_space: gs.Space, action_space: gs.Space, config: PolicyConfig) -> None:
        super().__init__()
        distribution = Distribution(action_space)
        self.encoder = Encoder(Layout(observation_space), config.embedding)
        self.trunk = mlp(self.encoder.size, config.hidden, config.activation)
        width = config.hidden[-1] if config.hidden else self.encoder.size
        self.value_trunk = None if config.share else mlp(self.encoder.size, config.hidden, config.activation)
        self.hidden_size = width if config.share else 2 * width
        features = config.core_size if config.core != "none" else width
        free = distribution.reals if config.std == "free" else 0
        self.policy_head = orthogonal(nn.Linear(features, distribution.size - free), POLICY_GAIN)
        self.value_head = orthogonal(nn.Linear(features, 1), VALUE_GAIN)
        self.log_std = nn.Parameter(torch.full((free,), math.log(config.initial_std))) if free else None
        if distribution.reals and not free:
            nn.init.constant_(self.policy_head.bias[-distribution.reals :], math.log(config.initial_std))

    def encode(self, obs: Any) -> Tensor:
        features = self.encoder(leaves(obs))
        hidden = self.trunk(features)
        return hidden if self.value_trunk is None else torch.cat([hidden, self.value_trunk(features)], -1)

    def decode(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        for_policy, for_value = (hidden, hidden) if self.value_trunk is None else hidden.chunk(2, -1)
        params = self.policy_head(for_policy)
        if self.log_std is not None:
            params = torch.cat([params, self.log_std.expand(*params.shape[:-1], -1)], -1)
        return params, self.value_head(for_value).squeeze(-1)


def leaves(obs: Any) -> list[Tensor]:
    """The tensors of a structured observation, in the order of the layout's leaves."""
    if isinstance(obs, Tensor):
        return [obs]
    parts = obs.values() if isinstance(obs, dict) else obs
    return [leaf for part in parts for leaf in leaves(part)]
