"""The gradient of a sum whose parts do not fit into memory together: each is computed and freed in turn.

The result is a loss like any other, so the code that minimises it need not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from fugu.algorithm.contract import Metrics
from fugu.rollout.batch import Batch


def in_parts(loss: Callable[[Batch], Any], batch: Batch, size: int, parameters: Iterable[Tensor]) -> tuple[Tensor, Metrics]:
    """Return the loss of ``batch`` and its metrics, computed ``size`` segments at a time. ``loss`` returns a NamedTuple of scalars
    with a ``total``, each a sum over rows that are already weighted."""
    if size >= batch.segments:
        whole = loss(batch)
        return whole.total, _named([whole])
    seen: list[Any] = []

    def part(start: int) -> Tensor:
        found = loss(batch.part(start, start + size))
        seen.append(type(found)(*(value.detach() for value in found)))
        return found.total

    total = accumulated([lambda at=at: part(at) for at in range(0, batch.segments, size)], parameters)  # type: ignore[misc]
    return total, _named(seen)


def _named(parts: list[Any]) -> Metrics:
    sums: dict[str, Any] = {field: sum(getattr(part, field) for part in parts) for field in parts[0]._fields}
    return {f"loss/{name}": value.detach() for name, value in sums.items()}


def accumulated(parts: Iterable[Callable[[], Tensor]], parameters: Iterable[Tensor]) -> Tensor:
    """Return the sum of ``parts``, each of which computes a scalar, differentiable with respect to ``parameters`` alone."""
    known = [p for p in parameters if p.requires_grad]
    total: Tensor | float = 0.0
    sums: list[Tensor | None] = [None] * len(known)
    for part in parts:
        loss = part()
        total = total + loss.detach()
        gradients = torch.autograd.grad(loss, known, allow_unused=True)
        sums = [a if b is None else b if a is None else a + b for a, b in zip(sums, gradients, strict=True)]
    assert isinstance(total, Tensor)
    return _Known.apply(total, sums, *known)


class _Known(torch.autograd.Function):
    """A number whose gradient is known already."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, gradients: list[Tensor | None], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return total.clone()

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        return None, None, *(None if gradient is None else outer[0] * gradient for gradient in ctx.gradients)
