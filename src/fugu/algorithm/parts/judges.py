"""Critics that judge an action: one value for each action of numbers, or one for every choice."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fugu.policy.actor_critic import ActorCritic
from fugu.policy.config import PolicyConfig
from fugu.policy.encoder import Encoder
from fugu.policy.net import MLP, Linear


class Judge(nn.Module):
    """A critic: observations, and actions if they are numbers -> the value of that action, or of every choice."""

    def __init__(self, policy: ActorCritic, config: PolicyConfig, *, reads: int | None = None) -> None:
        """``reads``: numbers of an action; None: real numbers are read, and choices are valued all at once."""
        super().__init__()
        actions = policy.distribution
        self.encoder = Encoder(policy.obs_layout, config.embedding, config.kinds)
        size = self.encoder.size + (actions.reals if reads is None else reads)
        outputs = (actions.choices or 1) if reads is None else 1
        self.trunk = MLP(size, config.hidden, config.activation, natively=not self.encoder.convolves)
        self.head = Linear(config.hidden[-1] if config.hidden else size, outputs)
        # as torch begins a layer: larger weights exaggerate values before they are learned, which costs half the return on HalfCheetah
        for layer in self.trunk.layers:
            layer.reset_parameters()  # type: ignore[operator]

    def forward(self, obs: list[Tensor], action: Tensor | None) -> Tensor:
        features = self.encoder(obs)
        out = self.trunk(features if action is None else torch.cat([features, action], -1), self.head)
        return out.squeeze(-1) if action is not None else out


class Judges(nn.ModuleList):
    def forward(self, obs: list[Tensor], action: Tensor | None) -> Tensor:
        """Return the values of all critics, ``[critics, rows]`` or ``[critics, rows, choices]``."""
        return torch.stack([judge(obs, action) for judge in self])

    def of(self, obs: list[Tensor], action: Tensor) -> Tensor:
        """Return what all critics say of these actions, ``[critics, rows]``, whichever kind they are."""
        if action.is_floating_point():
            return self(obs, action)
        return self(obs, None).gather(-1, action.expand(len(self), -1, -1)).squeeze(-1)
