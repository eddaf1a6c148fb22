"""Actions as a policy stores them -> numbers that a network reads: choices one-hot, bits as they are, real numbers bounded.

In: ``action [*batch, dims]`` of a ``Distribution``. Out: ``[*batch, size]``. Real numbers beyond 1 are shortened to it, so that what
the environment clips looks the same to a network.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fugu.policy.distribution import Distribution


class ActionInput(nn.Module):
    begin: Tensor

    def __init__(self, distribution: Distribution) -> None:
        super().__init__()
        counts = torch.tensor(distribution.counts, dtype=torch.int64)
        self.heads, self.choices = distribution.heads, distribution.choices
        self.size = distribution.choices + distribution.binaries + distribution.reals
        """numbers of an action"""
        self.register_buffer("begin", counts.cumsum(0) - counts, persistent=False)

    def forward(self, action: Tensor) -> Tensor:
        parts: list[Tensor] = []
        if self.heads:
            zeros = torch.zeros(*action.shape[:-1], self.choices, device=action.device)
            parts.append(zeros.scatter_(-1, action[..., : self.heads].long() + self.begin, 1.0))
        if self.heads < action.shape[-1]:
            rest = action[..., self.heads :].float()
            parts.append(rest / rest.abs().clamp(min=1))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)
