"""Means of metrics over several minibatches or batches: on the host, or on a device that nobody waits for."""

from __future__ import annotations

import torch
from torch import Tensor

from fugu.algorithm.contract import Metrics
from fugu.ranks import ALONE, Ranks


class Tally:
    """Keeps metrics until they are read."""

    def __init__(self) -> None:
        self._rows: list[Metrics] = []

    def add(self, metrics: Metrics) -> None:
        self._rows.append(metrics)

    def read(self) -> dict[str, float]:
        """Return the means of all that was added since the last time."""
        rows, self._rows = self._rows, []
        names = list(rows[0])
        if not names:
            return {}
        table = torch.stack([metrics[name] for metrics in rows for name in names]).view(len(rows), len(names))
        return dict(zip(names, table.mean(0).tolist(), strict=True))


class DeviceTally:
    """Keeps the sums of metrics on their device, in the same memory each time, so that ``add`` can be recorded."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._names: list[str] = []
        self.sums: Tensor | None = None

    def add(self, metrics: Metrics) -> None:
        if self.sums is None:
            self._names, self.sums = list(metrics), torch.zeros(len(metrics), device=self._device)
        if metrics:
            self.sums += torch.stack(list(metrics.values())).detach()

    def read(self, values: list[float], count: int) -> dict[str, float]:
        """Return the means over ``count`` additions of the sums as they were read, and begin anew."""
        assert self.sums is not None
        self.sums.zero_()
        return {name: total / count for name, total in zip(self._names, values, strict=True)}


def added_up(metrics: Metrics, ranks: Ranks = ALONE) -> Metrics:
    """Return the metrics of a minibatch over all ranks: they are parts of a sum, as the loss is."""
    if ranks.size == 1:
        return metrics
    names = list(metrics)
    return dict(zip(names, ranks.sum(torch.stack([metrics[name].float() for name in names])).unbind(), strict=True))
