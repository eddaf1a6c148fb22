"""A network that returns values alone, separate from the policy: like the default network, but with heads for values only.

In: an observation in the structure of its space, as ``ActorCritic.structured`` gives it. Out: ``[rows, outputs]``.
"""

from __future__ import annotations

from typing import Any

from gymnasium import spaces as gs
from torch import Tensor, nn

from fugu.policy.config import PolicyConfig
from fugu.policy.encoder import Encoder
from fugu.policy.layers import VALUE_GAIN, orthogonal
from fugu.policy.net import MLP, Linear, leaves
from fugu.spaces import Layout


class Critic(nn.Module):
    def __init__(self, observation_space: gs.Space, config: PolicyConfig, outputs: int) -> None:
        super().__init__()
        self.encoder = Encoder(Layout(observation_space), config.embedding, config.kinds)
        self.trunk = MLP(self.encoder.size, config.hidden, config.activation)
        width = config.hidden[-1] if config.hidden else self.encoder.size
        self.head = orthogonal(Linear(width, outputs), VALUE_GAIN)

    def forward(self, obs: Any) -> Tensor:
        return self.trunk(self.encoder(leaves(obs)), self.head)
