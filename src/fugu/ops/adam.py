"""Adam with decoupled weight decay (Kingma & Ba 2015, arXiv:1412.6980; Loshchilov & Hutter 2019, arXiv:1711.05101).

It computes what ``torch.optim.AdamW`` does, on all parameters as one vector. And its import is free, where torch's own optimizers load
a compiler that takes longer to import than CartPole takes to be solved.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable

import torch
from torch import Tensor

from fugu import native as core
from fugu.errors import FuguError
from fugu.gpu import use
from fugu.ops.mlp import Arrays

TENSORS, ALIGN = 128, 32
"""how many gradients a call takes as they lie, and the multiple each parameter starts at; as in adam.h"""
THREADS, MAX_BLOCKS = 256, 512
_GRADIENTS = struct.Struct(f"={TENSORS}Q{TENSORS + 1}i{TENSORS}ii")


def make_adam(
    parameters: Iterable[Tensor],
    *,
    learning_rate: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    alone: bool = True,
) -> Adam | DeviceAdam:
    """Return the optimizer for where ``parameters`` are. ``alone``: no other shares the bound on the length of their gradient."""
    parameters = list(parameters)
    on_device = alone and (parameters[0].is_cuda or use.emulated) and use.ready(*parameters)
    kind = DeviceAdam if on_device else Adam
    return kind(parameters, learning_rate=learning_rate, betas=betas, eps=eps, weight_decay=weight_decay)


class Adam:
    """Adam on any device, with torch in a dozen calls however many layers there are, or natively on a CPU."""

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
        self._arrays = Arrays(self.parameters)
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
        undo, change = (1 - beta2**self.steps) ** -0.5, -self.learning_rate / (1 - beta1**self.steps)  # both means start at 0
        decay = 1 - self.learning_rate * self.weight_decay
        if core.native is not None and self._arrays.plain:
            self._step_natively(undo, change, decay)
            return
        grad = torch.cat([torch.zeros_like(p).view(-1) if p.grad is None else p.grad.reshape(-1) for p in self.parameters])
        self.mean.lerp_(grad, 1 - beta1)
        self.square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        deviation = self.square.sqrt().mul_(undo).add_(self.eps)
        steps = torch.div(self.mean, deviation, out=deviation).mul_(change)
        for p, part in zip(self.parameters, steps.split(self.sizes), strict=True):
            if self.weight_decay:
                p.mul_(decay)
            p.add_(part.view(p.shape))

    def _step_natively(self, undo: float, change: float, decay: float) -> None:
        """Do the same in two passes. The root is torch's, whose last bit is not always that of the processor's, so that steps are the
        same to the bit."""
        beta1, beta2 = self.betas
        grads = [None if p.grad is None else p.grad.contiguous().numpy() for p in self.parameters]
        mean = self.mean.numpy()
        core.native.adam_means(grads, self.sizes, mean, self.square.numpy(), 1 - beta1, beta2, 1 - beta2)
        core.native.adam_follow(self._arrays(), mean, self.square.sqrt().numpy(), undo, self.eps, change, decay)

    def state(self) -> dict[str, Tensor]:
        return {"steps": torch.tensor(self.steps), "mean": self.mean, "square": self.square}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.steps = int(state["steps"])
        self.mean.copy_(state["mean"])
        self.square.copy_(state["square"])


class DeviceAdam:
    """Adam in two launches, with the bound on the gradient inside, over float32 parameters of one device.

    They become views of one flat vector: they must not be moved or replaced. Step count, learning rate and the gradient's length stay
    on the device, so that a CUDA graph can replay a step.
    """

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
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        device = self.parameters[0].device
        self.starts = [0]
        for p in self.parameters:
            self.starts.append(self.starts[-1] + (p.numel() + ALIGN - 1) // ALIGN * ALIGN)
        self.flat = torch.zeros(self.starts[-1], device=device)
        """all parameters, each from its start on, zeros between them"""
        for p, view in zip(self.parameters, self._views(self.flat), strict=True):
            view.copy_(p.detach())
            p.data = view
        self.places = [p.data_ptr() for p in self.parameters]
        self.mean, self.square = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.gathered = torch.zeros_like(self.flat) if len(self.parameters) > TENSORS else None
        self.rate = torch.full((), learning_rate, device=device)
        """the learning rate; may be written while a graph that was captured waits to be replayed"""
        self.steps = torch.zeros(2, dtype=torch.int64, device=device)
        """taken: before and after the last call; adam.h says why there are two"""
        self.partial = torch.zeros(min(use.blocks(len(self.flat), THREADS), MAX_BLOCKS), device=device)

    @property
    def learning_rate(self) -> float:
        return self.rate.item()

    @learning_rate.setter
    def learning_rate(self, rate: float | Tensor) -> None:
        self.rate.copy_(rate) if isinstance(rate, Tensor) else self.rate.fill_(rate)

    @torch.no_grad()
    def step(self, max_norm: float = math.inf) -> Tensor:
        """Follow the gradients that the parameters have, shortened to ``max_norm`` where they are longer; one without counts as 0.

        Return their length before that, on the device. If it is not finite, nothing is changed.
        """
        gradients = self._gradients()
        device, grid = self.flat.device, len(self.partial)
        use.kernel("adam.h", "adam_norm", "spp", device)(grid, THREADS, gradients, self.partial, self.steps)
        beta1, beta2 = self.betas
        logs = [math.log(beta) if beta > 0 else -math.inf for beta in self.betas]
        norm = torch.empty_like(self.rate)
        use.kernel("adam.h", "adam_step", "spippppppfffffff", device)(
            grid, THREADS, gradients, self.partial, grid, self.steps, self.rate, self.flat, self.mean, self.square, norm,
            max_norm, beta1, beta2, *logs, self.eps, self.weight_decay,
        )  # fmt: skip
        return norm

    def state(self) -> dict[str, Tensor]:
        """Return what ``Adam.state`` does: a run may go on elsewhere."""
        return {"steps": self.steps[1].cpu(), "mean": self._packed(self.mean), "square": self._packed(self.square)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.steps.fill_(int(state["steps"]))
        for name, mine in (("mean", self.mean), ("square", self.square)):
            parts = state[name].to(mine.device).split([p.numel() for p in self.parameters])
            for view, part in zip(self._views(mine), parts, strict=True):
                view.copy_(part.view(view.shape))

    def _gradients(self) -> bytes:
        """Return ``struct Gradients``, where each gradient is now. Those that do not lie in one piece are copied."""
        for p, place in zip(self.parameters, self.places, strict=True):
            if p.data_ptr() != place:
                raise FuguError(
                    "a parameter has moved since its optimizer was made; move the policy first, then make the optimizer"
                )
        if self.gathered is not None:
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
            torch._foreach_copy_(self._views(self.gathered), grads)
            return _packed_gradients([self.gathered.data_ptr()], [0, len(self.flat)], [len(self.flat)])
        self._held = [None if p.grad is None else p.grad.contiguous() for p in self.parameters]  # alive until they are read
        pointers = [0 if grad is None else grad.data_ptr() for grad in self._held]
        return _packed_gradients(pointers, self.starts, [p.numel() for p in self.parameters])

    def _views(self, flat: Tensor) -> list[Tensor]:
        return [flat[start : start + p.numel()].view(p.shape) for start, p in zip(self.starts, self.parameters, strict=False)]

    def _packed(self, flat: Tensor) -> Tensor:
        return torch.cat([view.reshape(-1) for view in self._views(flat)])


def _packed_gradients(pointers: list[int], starts: list[int], sizes: list[int]) -> bytes:
    rest = [0] * (TENSORS - len(pointers))
    return _GRADIENTS.pack(*pointers, *rest, *starts, *rest, *sizes, *rest, len(pointers))
