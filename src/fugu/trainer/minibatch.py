"""Which segments each gradient step sees: all of them once per epoch in random order, or drawn by priority."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch

from fugu.rollout.batch import Batch


def minibatches(batch: Batch, count: int, epochs: int, generator: torch.Generator) -> Iterator[Batch]:
    """``epochs * count`` minibatches of whole segments, each of ``segments / count`` or, where that is no whole number, one more or
    less. ``generator`` is where the batch is.

    On a GPU a batch that is gone through once is not shuffled: no segment is seen twice, and neighbours have nothing in common.
    """
    segments = batch.segments
    count = min(count, segments)
    borders = [segments * i // count for i in range(count + 1)]
    for _ in range(epochs):
        if "priority" in batch:
            for _ in range(count):
                yield batch.rows(draw(batch["priority"].to(generator.device), segments // count, generator))
        elif count == 1:
            yield batch
        elif epochs == 1 and generator.device.type == "cuda":
            for start, end in pairwise(borders):
                yield batch.part(start, end)
        else:
            order = _shuffled(segments, generator)
            for start, end in pairwise(borders):
                yield batch.rows(order[start:end])


def draw(probability: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """``count`` segments in proportion to ``probability``, with replacement, so that the importance weights are right.

    One random offset and even steps through the cumulated probabilities: a segment is drawn ``count * p`` times, give or take
    less than one, which varies less between minibatches than independent draws do.
    """
    device = generator.device
    cumulated = probability.double().cumsum(0)
    offset = torch.rand((), dtype=torch.float64, generator=generator, device=device)
    points = (torch.arange(count, dtype=torch.float64, device=device) + offset) / count * cumulated[-1]
    return torch.searchsorted(cumulated, points, right=True).clamp(max=len(probability) - 1)


def _shuffled(count: int, generator: torch.Generator) -> torch.Tensor:
    """0 to ``count - 1`` in random order; on a GPU by sorting, which a CUDA graph can record."""
    if generator.device.type == "cpu":
        return torch.randperm(count, generator=generator)
    return torch.rand(count, generator=generator, device=generator.device).argsort()
