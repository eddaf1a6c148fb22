"""The losses of soft actor-critic for small MLPs on a CPU, each with its gradient in one native call.

What they compute is what ``SAC`` in ``algorithm/sac.py`` does with torch, for actions that are numbers (``policy/squashed.py``): the
critics' loss towards the target of their slow copies, and the policy's loss through the critics. Noise is given, so both draw the same
actions. Columns are ``[rows]`` or ``[rows, numbers]``; rows that are not ``valid`` reach nothing, be they NaN.

With networks of a few thousand weights most of torch's time is overhead, and with those of a hundred thousand our products are faster
than torch's on processors with vectors of 512 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fugu import native as core
from fugu.ops.mlp import ACTIVATIONS, MAX_LAYERS, Arrays


@dataclass(frozen=True, slots=True)
class Drawn:
    """Rows on which the policy acts."""

    obs: Tensor
    """[rows, features] that the losses are about"""
    noise: Tensor
    """[rows, reals] standard normal numbers"""
    weight: Tensor
    """[rows] weight in the loss"""
    valid: Tensor
    """[rows] True where a row counts"""
    temperature: float
    bounds: tuple[float, float]
    """bounds of the logarithm of a deviation"""


class SoftNetworks:
    """Policy, critics and their slow copies: MLPs whose parameters are given as weight and bias of each layer in turn, the critics' one
    critic after the other. ``activation`` comes after every layer but the last."""

    def __init__(
        self, policy: Sequence[Tensor], critics: Sequence[Tensor], slow: Sequence[Tensor], *, count: int, activation: str
    ) -> None:
        """``count``: of critics."""
        self.count, self.activation = count, ACTIVATIONS[activation]
        self.policy, self.critics, self.slow = Arrays(policy), Arrays(critics), Arrays(slow)

    def critic_loss(
        self, drawn: Drawn, *, next_obs: Tensor, action: Tensor, reward: Tensor, terminated: Tensor, gamma: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, with a gradient for the critics, and what they say and what that is off by, ``[critics, rows]``. ``drawn``
        has noise for the actions on ``next_obs``."""
        critics = self.critics
        value, error = drawn.weight.new_empty(2, self.count, len(drawn.weight)).unbind()
        gradient = _memory(critics)
        loss = core.native.soft_critics(
            self.policy(), critics(), self.slow(), self.activation, *_arrays(drawn),
            _array(next_obs), _array(action), _array(reward), _array(terminated), gamma,
            value.numpy(), error.numpy(), gradient.numpy(), _threads(),
        )  # fmt: skip
        return _Known.apply(loss, gradient, *critics.tensors), value, error

    def policy_loss(self, drawn: Drawn) -> tuple[Tensor, Tensor]:
        """Return the loss, with a gradient for the policy, and the sum of ``weight`` times entropy. ``drawn`` has noise for the actions
        on its observations."""
        gradient = _memory(self.policy)
        loss, entropy = core.native.soft_policy(
            self.policy(), self.critics(), self.count, self.activation, *_arrays(drawn), gradient.numpy(), _threads()
        )
        return _Known.apply(loss, gradient, *self.policy.tensors), drawn.weight.new_tensor(entropy)


def takes(parameters: Sequence[Tensor], activation: str) -> bool:
    """Say whether the kernels take a network with these parameters."""
    known = activation in ACTIVATIONS and 1 <= len(parameters) // 2 <= MAX_LAYERS
    return core.native is not None and known and Arrays(parameters).plain


class _Known(torch.autograd.Function):
    """A loss whose gradient is known: a number, and the gradient of all parameters one after the other."""

    @staticmethod
    def forward(ctx: Any, loss: float, gradient: Tensor, *parameters: Tensor) -> Tensor:
        ctx.gradient, ctx.shapes = gradient, [p.shape for p in parameters]
        return gradient.new_tensor(loss)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        factor = grad_loss.item()
        gradient = ctx.gradient if factor == 1 else ctx.gradient * factor
        parts = gradient.split([shape.numel() for shape in ctx.shapes])
        return None, None, *[part.view(shape) for part, shape in zip(parts, ctx.shapes, strict=True)]


def _memory(parameters: Arrays) -> Tensor:
    """Return memory for the gradient of all parameters, one after the other."""
    return torch.empty(sum(p.numel() for p in parameters.tensors))


def _threads() -> int:
    return core.threads or torch.get_num_threads()


def _arrays(drawn: Drawn) -> tuple[Any, ...]:
    columns = (drawn.obs, drawn.noise, drawn.weight, drawn.valid)
    return *map(_array, columns), drawn.temperature, drawn.bounds


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()
