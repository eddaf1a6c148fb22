"""Adam with decoupled weight decay (Kingma & Ba 2015, arXiv:1412.6980; Loshchilov & Hutter 2019, arXiv:1711.05101).

It computes what ``torch.optim.AdamW`` does, on all parameters as one vector: a dozen calls however many layers there are. And its
import is free, where torch's own optimizers load a compiler that takes longer to import than CartPole takes to be solved.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class Adam:
    def __init__(
        self,
        parameters: Iterable[Tensor],
        *,
        learning_rate: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        self.parameters = list(parameters)
        self.learning_rate, self.betas, self.eps, self.weight_decay = learning_rate, betas, eps, weight_decay
        self.sizes = [p.numel() for p in self.parameters]
        first = self.parameters[0]
        self.steps = 0
        self.mean = torch.zeros(sum(self.sizes), dtype=first.dtype, device=first.device)
        """running mean of the gradients, parameter after parameter"""
        self.square = torch.zeros_like(self.mean)
        """running mean of the squared gradients"""

    @torch.no_grad()
    def step(self) -> None:
        """Follow the gradients that the parameters have; one without counts as 0."""
        self.steps += 1
        beta1, beta2 = self.betas
        grad = torch.cat([torch.zeros_like(p).view(-1) if p.grad is None else p.grad.reshape(-1) for p in self.parameters])
        self.mean.lerp_(grad, 1 - beta1)
        self.square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        # both means start at 0; these factors undo it
        deviation = self.square.sqrt().mul_((1 - beta2**self.steps) ** -0.5).add_(self.eps)
        change = torch.div(self.mean, deviation, out=deviation).mul_(-self.learning_rate / (1 - beta1**self.steps))
        for p, part in zip(self.parameters, change.split(self.sizes), strict=True):
            if self.weight_decay:
                p.mul_(1 - self.learning_rate * self.weight_decay)
            p.add_(part.view(p.shape))

    def state(self) -> dict[str, Tensor]:
        return {"steps": torch.tensor(self.steps), "mean": self.mean, "square": self.square}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.steps = int(state["steps"])
        self.mean.copy_(state["mean"])
        self.square.copy_(state["square"])
