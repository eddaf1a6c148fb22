"""Gradient steps recorded as a CUDA graph, for batches that lie in new memory each time: they are copied to one place first.

``trainer/capture.py`` records whole updates where the source allows that.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fugu.algorithm.contract import Algorithm, Metrics
from fugu.gpu.graph import Recorded
from fugu.rollout.acting import generators
from fugu.rollout.batch import Batch, Origin

Step = Callable[[Batch], tuple[Tensor, Metrics]]
"""function that learns from a minibatch and returns its loss and its metrics"""


class RecordedSteps:
    """A ``Step`` that is recorded as soon as two minibatches in a row have columns of the same form."""

    def __init__(self, step: Step, algorithm: Algorithm) -> None:
        self.step, self.algorithm, self.device = step, algorithm, algorithm.device
        self._batch: Batch | None = None
        """minibatch that is learned from, always in the same memory"""
        self._handed: dict[str, Tensor] = {}
        """what was found out about its segments"""
        self._names: list[str] = []
        self._found = torch.empty(0)
        """the loss and the metrics of these names"""
        self._recorded = self._new()
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._said = False

    @property
    def recorded(self) -> bool:
        return self._recorded.recorded

    def __call__(self, minibatch: Batch) -> tuple[Tensor, Metrics]:
        if self._stream is None:
            found = self._run(minibatch)
        else:
            around = torch.cuda.current_stream(self.device)
            self._stream.wait_stream(around)
            with torch.cuda.stream(self._stream):
                found = self._run(minibatch)
            around.wait_stream(self._stream)
        if self._handed:
            minibatch.hand_back(**self._handed)
        loss, *metrics = found.unbind()
        return loss, dict(zip(self._names, metrics, strict=True))

    def _run(self, minibatch: Batch) -> Tensor:
        self._take(minibatch)
        self._recorded()
        if self._recorded.failure and not self._said:
            self._said = True
            text = f"gradient steps could not be recorded as a CUDA graph, which is slower: {self._recorded.failure}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return self._found.clone()

    def _take(self, minibatch: Batch) -> None:
        batch = self._batch
        if batch is None or _forms(batch) != _forms(minibatch):
            columns = {name: column.clone() for name, column in minibatch.columns.items()}
            self._batch = Batch(columns, minibatch.once, Origin(self._catch))
            self._recorded = self._new()
            return
        for name, column in minibatch.columns.items():
            batch[name].copy_(column)

    def _new(self) -> Recorded:
        on_card = [generator for generator in generators(self.algorithm).values() if generator.device.type == "cuda"]
        return Recorded(self._do, self.device, on_card)

    def _do(self) -> None:
        assert self._batch is not None
        self._handed = {}
        loss, metrics = self.step(self._batch)
        self._names = list(metrics)
        self._found = torch.stack([loss.detach(), *(value.detach().float() for value in metrics.values())])

    def _catch(self, columns: Mapping[str, Tensor], segments: Tensor | None) -> None:
        self._handed = {**self._handed, **columns}


def _forms(batch: Batch) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (column.shape, column.dtype) for name, column in batch.columns.items()}
