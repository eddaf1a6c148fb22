"""Which segments each gradient step sees: all of them once per epoch in random order, or drawn by priority."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fugu.rollout.batch import Batch


def minibatches(batch: Batch, count: int, epochs: int, generator: torch.Generator) -> Iterator[Batch]:
    """``epochs * count`` minibatches of ``segments / count`` whole segments each. ``generator`` is on the CPU."""
    segments = batch.segments
    each = segments // count
    for _ in range(epochs):
        if "priority" in batch:
            for _ in range(count):
                yield batch.rows(draw(batch["priority"].cpu(), each, generator))
        elif count == 1:
            yield batch
        else:
            order = torch.randperm(segments, generator=generator)
            for start in range(0, segments, each):
                yield batch.rows(order[start : start + each])


def draw(probability: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """``count`` segments in proportion to ``probability``, with replacement, so that the importance weights are right.

    One random offset and even steps through the cumulated probabilities: a segment is drawn ``count * p`` times, give or take
    less than one, which varies less between minibatches than independent draws do.
    """
    cumulated = probability.double().cumsum(0)
    offset = torch.rand((), dtype=torch.float64, generator=generator)
    points = (torch.arange(count, dtype=torch.float64) + offset) / count * cumulated[-1]
    return torch.searchsorted(cumulated, points, right=True).clamp(max=len(probability) - 1)
