"""CUDA graphs of work that is the same every time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch


class Recorded:
    """A function that does the same work on the same memory at every call: run at the first, recorded at the second, then replayed.

    The first call is the warm-up that a recording needs, and as real as the others. Where recording fails, and on a CPU, it is
    run every time. ``generators`` are those the function draws from. Call it with a stream of one's own as the current one.
    """

    def __init__(self, function: Callable[[], None], device: torch.device, generators: Sequence[torch.Generator] = ()) -> None:
        self.function, self.device, self.generators = function, device, generators
        self.failure: str | None = None
        """why it could not be recorded"""
        self._calls = 0
        self._graph: Any = None

    @property
    def recorded(self) -> bool:
        return self._graph is not None

    def __call__(self) -> None:
        self._calls += 1
        if self._graph is None and self._calls == 2 and self.device.type == "cuda":
            self._record()
        if self._graph is not None:
            self._graph.replay()
        else:
            self.function()

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        before = [generator.get_state() for generator in self.generators]
        torch.cuda.synchronize(self.device)
        graph.capture_begin(pool=_pool(self.device), capture_error_mode="thread_local")
        try:
            self.function()
        except RuntimeError as error:
            self.failure = str(error).strip().splitlines()[0]
            self._give_up(graph, before)
            return
        graph.capture_end()
        self._graph = graph

    def _give_up(self, graph: Any, before: Sequence[torch.Tensor]) -> None:
        with contextlib.suppress(RuntimeError):
            graph.capture_end()  # fails as well, but ends the recording
        torch.cuda.synchronize(self.device)
        for generator, state in zip(self.generators, before, strict=True):
            generator.set_state(state)


_pools: dict[torch.device, Any] = {}


def _pool(device: torch.device) -> Any:
    """One pool of memory for all graphs of a device: they are replayed one after the other, on one stream."""
    if device not in _pools:
        _pools[device] = torch.cuda.graph_pool_handle()
    return _pools[device]
