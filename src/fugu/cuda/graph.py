"""CUDA graphs of work that is the same every time."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch


class Recorded:
    """A function that does the same work on the same memory at every call: run at the first, recorded at the second, then replayed.

    The first call is the warm-up that a recording needs, and as real as the others. Where recording fails, and on a CPU, it is
    run every time. ``generators`` are those the function draws from. Those with the same ``pool`` (``torch.cuda.graph_pool_handle()``)
    share memory: they must be replayed one after the other, on one stream.
    """

    def __init__(
        self,
        function: Callable[[], None],
        device: torch.device,
        generators: Sequence[torch.Generator] = (),
        pool: Any = None,
    ) -> None:
        self.function, self.device, self.generators, self.pool = function, device, generators, pool
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
        # what the collector frees in the middle (an older graph, say) would spoil the recording
        with _any_other_stream(self.device), _no_collector():
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
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


@contextlib.contextmanager
def _any_other_stream(device: torch.device) -> Iterator[None]:
    """The default stream cannot be recorded; any other stays."""
    if torch.cuda.current_stream(device) != torch.cuda.default_stream(device):
        yield
        return
    with torch.cuda.stream(torch.cuda.Stream(device)):
        yield


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
