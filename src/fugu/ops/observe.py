"""The states of a world model along observed rows: the recurrent cell, the classes that are drawn, and all rows of a sequence.

``cell`` are weight, bias and scale of the layers that read ``deter`` and ``stoch``, of the mix of both with an action, and weight and
bias of the gates; mix and gates in blocks (``[blocks, in, out]``), which share nothing. What reads observations comes after them:
``expected`` (a weight), the scale of its norm, and weight and bias of ``posterior``. Probabilities have ``even`` of them spread evenly.

torch's form has a hundred autograd nodes for each row of time; the native kernel goes through all rows and back in a call each, and
computes the weights' gradients as products over all rows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fugu import native as core
from fugu.ops.mixed import mixed
from fugu.ops.norm import EPSILON, norm_silu
from fugu.ops.stack import array, arrays, plain, takes

CELL = 11
"""parameters of a cell"""


def step(cell: Sequence[Tensor], deter: Tensor, stoch: Tensor, action: Tensor) -> Tensor:
    """Return the ``deter`` that follows; ``action`` has had its layer. All are ``[rows, ...]``."""
    of_deter, of_stoch, (mix, mix_bias, mix_scale), (gate, gate_bias) = cell[:3], cell[3:6], cell[6:9], cell[9:]
    seen = [norm_silu(F.linear(x, weight, bias), scale) for x, (weight, bias, scale) in ((deter, of_deter), (stoch, of_stoch))]
    common = torch.cat([*seen, action], -1)
    own = _split(deter, len(mix))
    mixed = _join(torch.baddbmm(mix_bias, torch.cat([own, common.expand(len(mix), *common.shape)], -1), mix))
    gates = torch.baddbmm(gate_bias, _split(norm_silu(mixed, mix_scale), len(gate)), gate)
    reset, candidate, update = (_join(part) for part in gates.chunk(3, -1))
    return torch.lerp(deter, torch.tanh(reset.sigmoid() * candidate), torch.sigmoid(update - 1))


def drawn(chance: Tensor, uniform: Tensor) -> Tensor:
    """Return the class of each variable that ``uniform [*batch, variables]`` in [0, 1) falls on: one-hot ``[*batch, variables *
    classes]``, with the gradient of the probabilities."""
    plain = chance.detach()
    chosen = (plain.cumsum(-1) <= uniform.unsqueeze(-1)).sum(-1, keepdim=True).clamp_(max=chance.shape[-1] - 1)
    return through(chosen, chance)


def through(chosen: Tensor, chance: Tensor) -> Tensor:
    """Return classes ``[*batch, variables, 1]`` one-hot and flat, with the gradient of the probabilities."""
    one_hot = torch.zeros_like(chance.detach()).scatter_(-1, chosen, 1.0)  # torch's one_hot looks for errors first
    if chance.requires_grad:
        one_hot = one_hot + chance - chance.detach()
    return one_hot.flatten(-2)


def observe(
    params: Sequence[Tensor],
    classes: int,
    even: float,
    action: Tensor,
    seen: Tensor,
    first: Tensor,
    deter: Tensor,
    stoch: Tensor,
    uniform: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``deter``, ``stoch`` and the probabilities of each row, ``[time, segments, ...]``.

    ``action`` and ``seen [time, segments, hidden]`` have had their layers; ``deter`` and ``stoch`` are the state of the row before the
    first, which is forgotten where ``first`` is True; ``uniform [time, segments, variables]`` decides on the classes.
    """
    ours = takes(action, params) and all(map(plain, (seen, deter, stoch, uniform)))
    if not ours or (torch.is_grad_enabled() and (deter.requires_grad or stoch.requires_grad)):
        return observe_reference(params, classes, even, action, seen, first, deter, stoch, uniform)
    deters, stochs, chance = _Native.apply(classes, even, first, deter, stoch, uniform, action, seen, *params)
    return deters, stochs, chance.unflatten(-1, (-1, classes))


def observe_reference(
    params: Sequence[Tensor],
    classes: int,
    even: float,
    action: Tensor,
    seen: Tensor,
    first: Tensor,
    deter: Tensor,
    stoch: Tensor,
    uniform: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ``observe`` row by row."""
    keep = ~first.unsqueeze(-1)
    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    for t in range(len(action)):
        deter = step(params[:CELL], deter * keep[t], stoch * keep[t], action[t])
        chance = posterior(params, classes, even, deter, seen[t])
        stoch = drawn(chance, uniform[t])
        rows.append((deter, stoch, chance))
    deters, stochs, chances = zip(*rows, strict=True)
    return torch.stack(deters), torch.stack(stochs), torch.stack(chances)


def posterior(params: Sequence[Tensor], classes: int, even: float, deter: Tensor, seen: Tensor) -> Tensor:
    """Return the probabilities of the classes after an observation."""
    expected, scale, weight, bias = params[CELL:]
    return mixed(F.linear(norm_silu(F.linear(deter, expected) + seen, scale), weight, bias), classes, even)


class _Native(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        classes: int,
        even: float,
        first: Tensor,
        deter: Tensor,
        stoch: Tensor,
        uniform: Tensor,
        action: Tensor,
        seen: Tensor,
        *params: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        time, segments, hidden = action.shape
        blocks, size, random = len(params[6]), deter.shape[-1], stoch.shape[-1]
        deters = action.new_empty(time, segments, size)
        stochs, chances = (action.new_empty(time, segments, random) for _ in range(2))
        kept = action.new_empty(time * segments, core.native.observe_kept(size, random, hidden, blocks))
        given = arrays((action, seen, first, deter, stoch, uniform))
        found = arrays((deters, stochs, chances, kept))
        core.native.observe_forward(arrays(params), EPSILON, even, classes, *given, *found)
        ctx.save_for_backward(action, first, deters, chances, kept, *params)
        ctx.classes, ctx.even = classes, even
        return deters, stochs, chances

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_deter: Tensor, grad_stoch: Tensor, grad_chance: Tensor) -> tuple[Tensor | None, ...]:
        action, first, deters, chances, kept, *params = ctx.saved_tensors
        grad_action, grad_seen = torch.empty(action.shape), torch.empty(action.shape)
        grads = [torch.empty(p.shape) for p in params]
        core.native.observe_backward(
            arrays(params),
            EPSILON,
            ctx.even,
            ctx.classes,
            *arrays((action, first, deters, chances, kept, grad_deter, grad_stoch, grad_chance)),
            array(grad_action),
            array(grad_seen),
            arrays(grads),
        )
        return (*[None] * 6, grad_action, grad_seen, *grads)


def _split(x: Tensor, blocks: int) -> Tensor:
    """Return ``[blocks, rows, width]`` of ``[rows, blocks * width]``."""
    return x.unflatten(-1, (blocks, -1)).transpose(0, 1)


def _join(x: Tensor) -> Tensor:
    return x.transpose(0, 1).flatten(1)
