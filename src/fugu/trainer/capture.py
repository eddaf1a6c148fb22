"""Training that does not wait for the host: a batch and what is learned from it, recorded once as CUDA graphs and replayed.

Where the environments are on the CPU only what is learned is recorded here; the source has graphs of its own (``rollout/feed.py``).

The work is that of ``Trainer.collect``, ``prepare`` and ``learn``, the same Python code that runs eagerly on a CPU. What would have
to be asked of the host (how far training is, whether a loss is finite, what the metrics are) stays in tensors on the device, and
the host looks at them now and then.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fugu.algorithm.contract import Metrics
from fugu.gpu.graph import Recorded
from fugu.ops.half import weights_stay
from fugu.rollout.batch import Batch
from fugu.trainer.diverged import Diverged
from fugu.trainer.interrupt import Interrupt

if TYPE_CHECKING:
    from fugu.trainer.loop import Trainer

LOOK_ROWS = 2**23
"""rows between two looks at which training may end; how many updates that is depends on the config alone"""
LOOK_UPDATES = 256
"""updates between such looks, at most"""
LEAST_LOOKS = 16
"""in a run, so that a short one ends about where it should"""
LOOK_SECONDS = 0.25
"""after which there is something new to see in any case"""


class Unattended:
    """The trainer's updates on a device whose environments and policy need nobody. ``run`` does some, then looks."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        device = self.device = trainer.source.device
        self.steps = torch.zeros((), dtype=torch.int64, device=device)
        self._rate: Tensor = torch.zeros((), device=device)
        self._rows: Batch | None = None
        """as the source gave it; it lies in the same memory every time, which a recording relies on"""
        self._batch: Batch | None = None
        """ready to be learned from"""
        self._names: list[str] = []
        """of the metrics that minibatches have"""
        self._sums: Tensor | None = None
        """of these metrics since the last look; one that was not finite makes its sum so"""
        self._batches = 0
        """since the last look"""
        self._last_names: list[str] = []
        self._last: Tensor | None = None
        """the same of what ``finish`` says of a batch"""
        generators = [g for g in (trainer.generator, *trainer.algorithm.generators) if g.device.type == "cuda"]
        alone = self._alone = trainer.source.unattended
        pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._collect = Recorded(self._do_collect, device, generators, pool) if alone else self._do_collect
        self._learn = Recorded(self._do_learn, device, generators, pool)
        rows = trainer.source.segments * trainer.source.horizon
        looks = (LOOK_UPDATES, LOOK_ROWS // rows, trainer.config.steps // rows // LEAST_LOOKS)
        self.every = max(1, min(looks)) if alone else 1
        """updates between two looks at which training may end"""
        self._half = bool(getattr(trainer.algorithm.modules["policy"], "in_bf16", False))
        self._said = False
        self._stop: Callable[[], bool] = bool
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @property
    def at_look(self) -> bool:
        return self.trainer.updates % self.every == 0

    # --- what is recorded ---

    def _do_collect(self) -> None:
        if self._alone:  # weights are rounded once for all steps, not again at each of them
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self._half), weights_stay():
                self._rows = self.trainer.collect(self._stop)
        else:  # a source with graphs of its own rounds in each; even a disabled autocast here would let them share what it keeps
            self._rows = self.trainer.collect(self._stop)

    def _do_learn(self) -> None:
        assert self._rows is not None
        trainer = self.trainer
        progress = (self.steps.double() / trainer.config.steps).clamp(max=1.0).float()
        rate = trainer.optimizer.set_progress(progress)
        self._rate.copy_(torch.as_tensor(rate, device=self.device))
        self._batch = trainer.prepare(self._rows, progress)
        self.steps += self._batch["mask"].sum()
        last = trainer.learn(self._batch, self._watch)
        values = torch.stack(list(last.values()))
        if self._last is None:
            self._last_names, self._last = list(last), torch.zeros_like(values)
        self._last += values

    def _watch(self, minibatch: Batch, loss: Tensor, metrics: Metrics) -> bool:
        values = torch.stack(list(metrics.values())).detach()
        if self._sums is None:
            self._names, self._sums = list(metrics), torch.zeros_like(values)
        self._sums += values
        return False

    # --- what the host does ---

    def run(self, interrupt: Interrupt) -> dict[str, float]:
        """Update until it is time to look; the metrics since the last look."""
        self.steps.fill_(self.trainer.steps)
        if self._stream is None:
            self._updates(interrupt)
            return self._look()
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            self._updates(interrupt)
            return self._look()

    def _updates(self, interrupt: Interrupt) -> None:
        trainer, began = self.trainer, time.monotonic()
        waiting: list[tuple[str, Any]] = []
        self._stop = interrupt.overdue
        while True:
            for phase, work in (("rollout", self._collect), ("update", self._learn)):
                with trainer.clock(phase), interrupt.hurry(phase):
                    work()
                    if self._stream is not None:
                        event = torch.cuda.Event()
                        event.record()
                        waiting.append((phase, event))
            while len(waiting) > 2:  # the device has one update in reserve; the time goes to what it is busy with
                phase, event = waiting.pop(0)
                with trainer.clock(phase):
                    event.synchronize()
            trainer.updates += 1
            self._batches += 1
            if self.at_look or interrupt.asked or time.monotonic() - began > LOOK_SECONDS:
                break
        for phase, event in waiting:
            with trainer.clock(phase):
                event.synchronize()
        self._say_why()

    def _look(self) -> dict[str, float]:
        assert self._sums is not None and self._last is not None and self._batch is not None
        read = torch.cat(
            [self._sums.double(), self._last.double(), self.steps.double()[None], self._rate.double()[None]]
        ).tolist()
        split, batches = len(self._names), max(self._batches, 1)
        minibatches = batches * self.trainer.count * self.trainer.config.epochs
        means = {name: total / minibatches for name, total in zip(self._names, read[:split], strict=True)}
        if not all(math.isfinite(value) for value in means.values()):
            tensors = {name: torch.tensor(value) for name, value in means.items()}
            raise Diverged(self._batch, tensors, self.trainer.algorithm.modules["policy"])
        self._sums.zero_()
        self._last.zero_()
        self._batches = 0
        self.trainer.steps = round(read[-2])
        means.update({name: total / batches for name, total in zip(self._last_names, read[split:-2], strict=True)})
        return {"learning_rate": read[-1], **means}

    def _say_why(self) -> None:
        works = (("rollout", self._collect), ("update", self._learn))
        failures = [(work.failure, name) for name, work in works if isinstance(work, Recorded) and work.failure]
        if failures and not self._said:
            self._said = True
            why, what = failures[0]
            warnings.warn(
                f"the {what} could not be recorded as a CUDA graph and runs step by step, which is slower: {why}",
                RuntimeWarning,
                stacklevel=2,
            )
