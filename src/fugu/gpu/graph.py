"""CUDA graphs of work that is the same every time."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
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
        if self.device.type != "cuda" or self.failure is not None:
            self.function()
        elif self._calls == 1:
            with _waits_of(self.device) as waits:
                self.function()
            if waits:  # recording it would fail, and a recording that fails leaves torch's memory in disorder
                self.failure = f"it waits for the GPU ({waits[0]})"
        else:
            if self._graph is None:
                self._record()
            self._graph.replay() if self._graph is not None else self.function()

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
        _failed.append(graph)
        with contextlib.suppress(RuntimeError):
            graph.capture_end()  # fails as well, but ends the recording
        torch.cuda.synchronize(self.device)
        for generator, state in zip(self.generators, before, strict=True):
            generator.set_state(state)


_failed: list[Any] = []
"""recordings that failed: what they had allocated may still be in use, so they are kept"""


@contextlib.contextmanager
def _waits_of(device: torch.device) -> Iterator[list[str]]:
    """Collect where the host waits for the device inside, as far as torch notices: file and line."""
    waits: list[str] = []
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield waits
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    for warning in caught:
        if "synchronizing CUDA operation" in str(warning.message):
            waits.append(f"{Path(warning.filename).name}, line {warning.lineno}")
        elif "debug mode is a prototype" not in str(warning.message):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


@contextlib.contextmanager
def _any_other_stream(device: torch.device) -> Iterator[None]:
    """Leave the default stream, which cannot be recorded, for another; any other stays."""
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
