"""LaProp (``ops/laprop.py``) that never waits for the host, so that a CUDA graph can replay a step."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from fugu.gpu import use
from fugu.ops.laprop import SHORTEST, LaProp


def make_laprop(
    parameters: Iterable[Tensor], *, learning_rate: float, betas: tuple[float, float], eps: float, clip: float
) -> LaProp | DeviceLaProp:
    """Return the optimizer for where ``parameters`` are."""
    parameters = list(parameters)
    kind = DeviceLaProp if parameters[0].is_cuda or use.emulated else LaProp
    return kind(parameters, learning_rate=learning_rate, betas=betas, eps=eps, clip=clip)


class DeviceLaProp:
    """LaProp with the bound on the gradient inside; step count, learning rate and lengths stay on the device.

    The parameters become views of one flat vector: they must not be moved or replaced.
    """

    def __init__(
        self, parameters: Iterable[Tensor], *, learning_rate: float, betas: tuple[float, float], eps: float, clip: float
    ) -> None:
        """``clip``: the share of a tensor's length that its gradient may have."""
        self.parameters = list(parameters)
        self.betas, self.eps, self.clip = betas, eps, clip
        device = self.parameters[0].device
        self.sizes = [p.numel() for p in self.parameters]
        self.flat = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        for p, view in zip(self.parameters, self.flat.split(self.sizes), strict=True):
            p.data = view.view(p.shape)
        self.mean, self.square = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        sizes = torch.tensor(self.sizes, device=device)
        self.owner = torch.arange(len(sizes), device=device).repeat_interleave(sizes)
        """the tensor that each number belongs to"""
        self.rate = torch.full((), learning_rate, device=device)
        """the learning rate; may be written while a graph that was captured waits to be replayed"""
        self.steps = torch.zeros((), dtype=torch.float64, device=device)

    @property
    def learning_rate(self) -> float:
        return self.rate.item()

    @learning_rate.setter
    def learning_rate(self, rate: float | Tensor) -> None:
        self.rate.copy_(rate) if isinstance(rate, Tensor) else self.rate.fill_(rate)

    @torch.no_grad()
    def step(self, max_norm: float = math.inf) -> Tensor:
        """Follow the gradients that the parameters have, shortened to ``max_norm`` where they are longer together; one without counts
        as 0.

        Return their length before that, on the device. If it is not finite, nothing is changed.
        """
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        lengths = torch.stack(torch._foreach_norm(grads))
        norm = torch.linalg.vector_norm(lengths)
        moves = norm.isfinite()
        shrink = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        allowed = self.clip * torch.stack(torch._foreach_norm(self.parameters)).clamp(min=SHORTEST)
        factor = shrink / (shrink * lengths / allowed).clamp(min=1.0)
        grad = torch.where(moves, torch.cat([grad.reshape(-1) for grad in grads]) * factor[self.owner], 0.0)
        self.steps += moves
        beta1, beta2 = self.betas
        self.square.lerp_(torch.where(moves, grad.square(), self.square), 1 - beta2)
        deviation = (self.square / (1 - beta2**self.steps)).sqrt_().add_(self.eps)
        self.mean.lerp_(torch.where(moves, grad / deviation, self.mean), 1 - beta1)
        size = torch.where(moves, self.rate / (1 - beta1**self.steps), 0.0)
        self.flat.sub_(torch.where(moves, self.mean, 0.0) * size)
        return norm

    def state(self) -> dict[str, Tensor]:
        """Return what ``LaProp.state`` does: a run may go on elsewhere."""
        return {"steps": self.steps.long().cpu(), "mean": self.mean.clone(), "square": self.square.clone()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.steps.fill_(int(state["steps"]))
        self.mean.copy_(state["mean"])
        self.square.copy_(state["square"])
