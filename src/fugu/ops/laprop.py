"""LaProp (Ziyin et al. 2020, arXiv:2002.04839): gradients are scaled by their own size first, then averaged. With adaptive clipping
(Brock et al. 2021, arXiv:2102.06171): a gradient longer than a share of its tensor is shortened to that.

Steps have so nearly the same length for losses of any size, which is what lets one learning rate serve a model of any world.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from fugu import native as core

SHORTEST = 1e-3
"""length that a tensor counts as at least, so that one of zeros can learn"""


class LaProp:
    def __init__(
        self, parameters: Iterable[Tensor], *, learning_rate: float, betas: tuple[float, float], eps: float, clip: float
    ) -> None:
        """``clip``: the share of a tensor's length that its gradient may have."""
        self.parameters = list(parameters)
        self.learning_rate, self.betas, self.eps, self.clip = learning_rate, betas, eps, clip
        self.steps = 0
        self.mean = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        """running means of scaled gradients"""
        self.square = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        """running means of squared gradients"""

    @torch.no_grad()
    def step(self) -> None:
        """Follow the gradients that the parameters have; one without counts as 0."""
        self.steps += 1
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        if core.native is not None and all(_plain(p) and _plain(grad) for p, grad in zip(self.parameters, grads, strict=True)):
            self._native(grads)
        else:
            self._reference(grads)

    def _native(self, grads: list[Tensor]) -> None:
        """Compute a step in one pass over each tensor."""
        beta1, beta2 = self.betas
        columns = [[x.detach().numpy() for x in each] for each in (grads, self.parameters, self.mean, self.square)]
        rate, correction = float(self.learning_rate) / (1 - beta1**self.steps), 1 / math.sqrt(1 - beta2**self.steps)
        core.native.laprop(*columns, rate, beta1, beta2, self.eps, self.clip, SHORTEST, correction)

    def _reference(self, grads: list[Tensor]) -> None:
        beta1, beta2 = self.betas
        allowed = torch._foreach_norm(self.parameters)
        torch._foreach_maximum_(allowed, SHORTEST)
        torch._foreach_mul_(allowed, self.clip)
        excess = torch._foreach_div(torch._foreach_norm(grads), allowed)
        torch._foreach_maximum_(excess, 1.0)
        grads = list(torch._foreach_div(grads, excess))
        torch._foreach_mul_(self.square, beta2)
        torch._foreach_addcmul_(self.square, grads, grads, 1 - beta2)
        deviation = torch._foreach_sqrt(self.square)
        torch._foreach_div_(deviation, math.sqrt(1 - beta2**self.steps))  # the means start at 0; this undoes it
        torch._foreach_add_(deviation, self.eps)
        torch._foreach_div_(grads, deviation)
        torch._foreach_lerp_(self.mean, grads, 1 - beta1)
        torch._foreach_add_(self.parameters, self.mean, alpha=-self.learning_rate / (1 - beta1**self.steps))

    def state(self) -> dict[str, Tensor]:
        """Return the state, each of the means as one vector."""
        flat = {name: torch.cat([part.reshape(-1) for part in getattr(self, name)]) for name in ("mean", "square")}
        return {"steps": torch.tensor(self.steps), **flat}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.steps = int(state["steps"])
        for name in ("mean", "square"):
            mine = getattr(self, name)
            for part, saved in zip(mine, state[name].split([part.numel() for part in mine]), strict=True):
                part.copy_(saved.view(part.shape))


def _plain(x: Tensor) -> bool:
    return x.is_cpu and x.dtype is torch.float32 and x.is_contiguous()
