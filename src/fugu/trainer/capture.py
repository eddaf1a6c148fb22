"""Training that does not wait for the host: playing a batch and learning from it, recorded once as CUDA graphs and replayed.

If the environments are on the CPU, only learning is recorded here; the source has graphs of its own (``rollout/feed.py``).

The work is that of ``Update.collect``, ``prepare`` and ``learn``, the same Python code that runs eagerly on a CPU. What the host
would have to be asked for (progress, finite losses, metrics) stays in tensors on the device, and the host looks at them now and
then.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fugu.algorithm.contract import Metrics
from fugu.gpu.graph import Recorded
from fugu.ops.half import weights_stay
from fugu.rollout.acting import generators
from fugu.rollout.batch import Batch
from fugu.rollout.source import Experience
from fugu.trainer.diverged import Diverged
from fugu.trainer.interrupt import Interrupt
from fugu.trainer.update import Update

LOOK_ROWS = 2**23
"""rows between two looks at which training may end; the number of updates this makes depends on the config alone"""
LOOK_UPDATES = 256
"""updates between such looks, at most"""
LEAST_LOOKS = 16
"""looks in a run, at least, so that a short one ends about where it should"""
LOOK_SECONDS = 0.25
"""seconds after which there is something new to see in any case"""


class Unattended:
    """Updates on a device whose environments and policy need no host. ``run`` does some of them, then looks."""

    def __init__(self, update: Update) -> None:
        self.update = update
        device = self.device = update.source.device
        self.played = torch.zeros((), dtype=torch.int64, device=device)
        """rows of environments, since training began"""
        self._learned = torch.zeros((), dtype=torch.int64, device=device)
        """rows learned from, since the last look"""
        self._rate: Tensor = torch.zeros((), device=device)
        self._experience: Experience | None = None
        """experience as the source gave it; it lies in the same memory every time, which a recording relies on"""
        self._batch: Batch | None = None
        """batch that is ready to be learned from"""
        self._minibatches, self._wholes = DeviceTally(device), DeviceTally(device)
        self._batches = 0
        """batches since the last look"""
        found = (update.generator, *generators(update.algorithm).values())
        on_card = [generator for generator in found if generator.device.type == "cuda"]
        alone = self._alone = update.source.unattended
        pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._collect = Recorded(self._do_collect, device, on_card, pool) if alone else self._do_collect
        self._learn = Recorded(self._do_learn, device, on_card, pool)
        rows = update.source.segments * update.source.horizon
        looks = (LOOK_UPDATES, LOOK_ROWS // rows, update.config.steps // rows // LEAST_LOOKS)
        self.every = max(1, min(looks)) if alone else 1
        """updates between two looks at which training may end"""
        self._half = update.config.precision == "bf16"
        self._said = False
        self._stop: Callable[[], bool] = bool
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @property
    def at_look(self) -> bool:
        return self.update.updates % self.every == 0

    # --- what is recorded ---

    def _do_collect(self) -> None:
        if self._alone:  # weights are rounded once for all steps, not again at each of them
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self._half), weights_stay():
                self._experience = self.update.collect(self._stop)
        else:  # a source with graphs of its own rounds in each; even a disabled autocast here would let them share what it keeps
            self._experience = self.update.collect(self._stop)

    def _do_learn(self) -> None:
        assert self._experience is not None
        update = self.update
        progress = (self.played.double() / update.config.steps).clamp(max=1.0).float()
        rate = update.optimizer.set_progress(progress)
        self._rate.copy_(torch.as_tensor(rate, device=self.device))
        update.score.see(self._experience)
        self._batch = update.prepare(self._experience.batch, progress)
        self.played += self._experience.rows
        self._learned += self._batch["mask"].sum()
        self._wholes.add(update.learn(self._batch, self._watch))

    def _watch(self, minibatch: Batch, loss: Tensor, metrics: Metrics) -> bool:
        self._minibatches.add(metrics)
        return False

    # --- what the host does ---

    def run(self, interrupt: Interrupt) -> dict[str, float]:
        """Update until it is time to look. Returns the metrics since the last look."""
        self.played.fill_(self.update.steps)
        if self._stream is None:
            self._updates(interrupt)
            return self._look()
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            self._updates(interrupt)
            return self._look()

    def _updates(self, interrupt: Interrupt) -> None:
        update, began = self.update, time.monotonic()
        waiting: list[tuple[str, Any]] = []
        self._stop = interrupt.overdue
        while True:
            for phase, work in (("rollout", self._collect), ("update", self._learn)):
                with update.clock(phase), interrupt.hurry(phase):
                    work()
                    if self._stream is not None:
                        event = torch.cuda.Event()
                        event.record()
                        waiting.append((phase, event))
            while len(waiting) > 2:  # the device has one update in reserve; the time goes to what it is busy with
                phase, event = waiting.pop(0)
                with update.clock(phase):
                    event.synchronize()
            update.updates += 1
            self._batches += 1
            if self.at_look or interrupt.asked or time.monotonic() - began > LOOK_SECONDS:
                break
        for phase, event in waiting:
            with update.clock(phase):
                event.synchronize()
        self._say_why()

    def _look(self) -> dict[str, float]:
        update, inner, whole = self.update, self._minibatches, self._wholes
        assert inner.sums is not None and whole.sums is not None and self._batch is not None and self._experience is not None
        counts = torch.stack([self.played.double(), self._learned.double(), self._rate.double()])
        read = torch.cat([counts, inner.sums.double(), whole.sums.double()]).tolist()
        split, batches = 3 + len(inner.sums), max(self._batches, 1)
        means = inner.read(read[3:split], batches * update.count * update.config.epochs)
        if not all(math.isfinite(value) for value in means.values()):
            tensors = {name: torch.tensor(value) for name, value in means.items()}
            raise Diverged(self._batch, tensors, update.algorithm.policy)
        self._batches = 0
        self._learned.zero_()
        update.steps = round(read[0])
        update.learned += round(read[1])
        wholes = whole.read(read[split:], batches)
        return {**update.counts(self._experience.episodes()), "learning_rate": read[2], **means, **wholes}

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
        """Return the means of the sums as they were read, over ``count`` additions, and begin anew."""
        assert self.sums is not None
        self.sums.zero_()
        return {name: total / count for name, total in zip(self._names, values, strict=True)}


def warn_attended(algorithm: str, enough: object) -> None:
    """Warn that the updates of ``algorithm`` are not recorded, because it may have learned ``enough``."""
    why = getattr(enough, "why", f"{algorithm} is asked after every minibatch whether it has learned enough")
    text = f"{why}, so that training on the GPU waits for the host each time, which is slower"
    warnings.warn(text, RuntimeWarning, stacklevel=3)
