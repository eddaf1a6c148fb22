"""Inputs for the kernels of a learner, and their gradients in one format."""

from __future__ import annotations

import torch
from gymnasium import spaces as gs

from fugu.ops.ppo_loss import Loss, ppo_loss
from fugu.ops.sample import sample_categorical_reference
from fugu.policy.distribution import Distribution

SETTINGS = {"clip": 0.2, "value_clip": 0.3, "value_coef": 0.5, "entropy_coef": 0.1}


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gradients(function, tensors, *rest, **settings):
    """Outputs, and the gradients of a random weighting of them for each of ``tensors``."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    outputs = function(*leaves, *rest, **settings)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    total = sum((out * random(*out.shape, seed=i).to(out.dtype)).sum() for i, out in enumerate(outputs))
    return outputs, torch.autograd.grad(total, leaves)


def assert_same(function, reference, tensors, *rest, tolerance: float = 3e-6, **settings) -> None:
    """``function`` in float32 equals ``reference`` in float64, relative to the largest number of each output and gradient."""
    exact = gradients(reference, [tensor.double() for tensor in tensors], *rest, **settings)
    found = gradients(function, tensors, *rest, **settings)
    for ours, theirs in zip((*found[0], *found[1]), (*exact[0], *exact[1]), strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == torch.float32
        if ours.numel():
            scale = max(1e-3, theirs.abs().max().item())
            assert (ours.double() - theirs).abs().max().item() <= tolerance * scale


def layers(*widths: int) -> list[torch.Tensor]:
    sizes = list(zip(widths[1:], widths[:-1], strict=True))
    weights = [random(out, into, seed=9 + i, scale=into**-0.5) for i, (out, into) in enumerate(sizes)]
    return [*weights, *(random(out, seed=19 + i) for i, (out, _) in enumerate(sizes))]


def call_mlp(function, activation="tanh", last=None):
    def call(x, *parameters):
        half = len(parameters) // 2
        return function(x, parameters[:half], parameters[half:], activation, last=last)

    return call


def lstm_case(batch: int, time: int, inputs: int, hidden: int, often: float = 0.2):
    weights = [random(4 * hidden, size, seed=size, scale=size**-0.5) for size in (inputs, hidden)]
    first = torch.rand(batch, time, generator=torch.Generator().manual_seed(5)) < often
    return [random(batch, time, inputs), *weights, random(4 * hidden, seed=3), random(batch, 2 * hidden, seed=4)], first


def ppo_case(rows: int, choices: int, masked: bool = False):
    mask = None
    if masked:
        mask = random(rows, choices, seed=8) > 0
        mask[torch.arange(rows), torch.arange(rows) % choices] = True
    logits = random(rows, choices, scale=2)
    action, logprob = sample_categorical_reference(logits, torch.rand(rows, generator=torch.Generator().manual_seed(2)), mask)
    weight = torch.rand(rows, generator=torch.Generator().manual_seed(3))
    advantage, old_value, value_target = (random(rows, seed=4 + i) for i in range(3))
    old_logprob = logprob + random(rows, seed=7, scale=0.3)
    rest = [action, old_logprob, advantage, old_value, value_target, weight / weight.sum()]
    return [logits, random(rows, seed=10)], rest, mask


def doubles(columns: list[torch.Tensor]) -> list[torch.Tensor]:
    return [column.double() if column.is_floating_point() else column for column in columns]


def ppo(tensors, rest, mask, **settings) -> Loss:
    names = ("action", "old_logprob", "advantage", "old_value", "value_target", "weight")
    columns = dict(zip(names, [rest[0][:, None], *rest[1:]], strict=True))
    distribution = Distribution(gs.Discrete(tensors[0].shape[1]))
    return ppo_loss(distribution, *tensors, **columns, action_mask=mask, **{**SETTINGS, **settings})


def ppo_gradients(tensors, rest, mask, **settings):
    """Loss, its parts and its gradients: those of the kernel for float32, by the definition for float64."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    loss = ppo(leaves, rest, mask, **settings)
    return [*(part.detach() for part in loss), *torch.autograd.grad(3 * loss.total, leaves)]


def forbidden(logits: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return logits if mask is None else logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
