"""An update: play a batch, prepare it, learn from its minibatches, finish it. There is one such loop; it knows no algorithm.

``run`` does an update and looks at every minibatch. ``trainer/capture.py`` wraps the same steps to do many on a device before it looks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from fugu.algorithm.contract import Algorithm, Metrics
from fugu.ranks import ALONE, Ranks
from fugu.rollout.acting import Live
from fugu.rollout.batch import Batch
from fugu.rollout.source import Experience, Source
from fugu.trainer.config import TrainConfig
from fugu.trainer.diverged import Diverged
from fugu.trainer.interrupt import Interrupt
from fugu.trainer.minibatch import minibatches
from fugu.trainer.optimizer import Optimizer
from fugu.trainer.state import parts
from fugu.trainer.tally import Tally, added_up

Clock = Callable[[str], AbstractContextManager[None]]
Watch = Callable[[Batch, Tensor, Metrics], bool]
"""sees a minibatch, its loss and its metrics; True: this was the last one"""


class Update:
    def __init__(
        self, config: TrainConfig, source: Source, algorithm: Algorithm, *, seed: int, clock: Clock, ranks: Ranks = ALONE
    ) -> None:
        """``seed``: of the order of minibatches."""
        self.config, self.source, self.algorithm = config, source, algorithm
        self.clock, self.ranks = clock, ranks
        self.count = config.minibatches(source.segments)
        self.optimizer = Optimizer(parts(algorithm), config.optimizer, ranks)
        self.generator = torch.Generator(source.device if source.static else "cpu").manual_seed(seed)
        self.actors = Live(algorithm.act)
        self.steps = 0
        """rows of environments that were played"""
        self.learned = 0
        """rows that were learned from"""
        self.updates = 0

    @property
    def progress(self) -> float:
        return min(1.0, self.steps / self.config.steps)

    def run(self, interrupt: Interrupt) -> tuple[Experience, dict[str, float]]:
        """Do one update. Returns what was played, and the metrics."""
        rate = self.optimizer.set_progress(self.progress)
        with interrupt.hurry("rollout"):
            experience = self.collect(interrupt.overdue)
            batch = self.prepare(experience.batch, self.progress)
        learned = self.ranks.sum(batch["mask"].sum())
        seen, last = Tally(), Tally()
        with self.clock("update"), interrupt.hurry("update") as hurry:
            last.add(self.learn(batch, self._watch(seen, hurry)))
        self.count_rows(self.ranks.sum(torch.as_tensor(experience.rows)), learned)
        return experience, {"learning_rate": rate, **seen.read(), **last.read()}

    def count_rows(self, played: Tensor, learned: Tensor) -> None:
        """Count an update that is done."""
        self.steps += int(played)
        self.learned += int(learned)
        self.updates += 1

    def collect(self, stop: Callable[[], bool]) -> Experience:
        """Return what environments and policy make of the next batch."""
        return self.source.next(self.actors.publish(), stop)

    def prepare(self, batch: Batch, progress: float | Tensor) -> Batch:
        """Return the batch, ready to be learned from."""
        with self.clock("advantage"), torch.no_grad():
            return self.algorithm.prepare(batch, progress)

    def learn(self, batch: Batch, watch: Watch) -> Metrics:
        """Go through the minibatches until ``watch`` says that it is enough. Returns the metrics of the batch as a whole."""
        for minibatch in minibatches(batch, self.count, self.config.epochs, self.generator):
            loss, metrics = self.algorithm.loss(minibatch)
            norm = self.optimizer.step(loss)
            if watch(minibatch, loss.detach(), {**metrics, "loss/grad_norm": norm}):
                break
        with torch.no_grad():
            return self.algorithm.finish(batch)

    def _watch(self, seen: Tally, hurry: Callable[[], bool]) -> Watch:
        def watch(minibatch: Batch, loss: Tensor, metrics: Metrics) -> bool:
            norm = metrics.pop("loss/grad_norm")
            finite = math.isfinite(norm.item()) and math.isfinite(loss.item())
            metrics = {**added_up(metrics, self.ranks), "loss/grad_norm": norm}
            if self.ranks.any(not finite):
                raise Diverged(minibatch, metrics, self.algorithm.policy)
            seen.add(metrics)
            enough = self.algorithm.enough
            return self.ranks.any((enough is not None and enough(metrics)) or hurry())

        return watch
