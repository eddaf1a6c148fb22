"""An update: play a batch, prepare it, learn from its minibatches, finish it. There is one such loop; it knows no algorithm.

``run`` does an update and looks at every minibatch. ``trainer/capture.py`` wraps the same steps to do many on a device before it looks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise

import torch
from torch import Tensor

from fugu.algorithm.contract import Algorithm, Metrics
from fugu.emulation.env import cost_metric
from fugu.errors import ConfigError
from fugu.gpu import use
from fugu.ranks import ALONE, Ranks
from fugu.rollout.acting import Actor
from fugu.rollout.agreed import agreed
from fugu.rollout.batch import Batch
from fugu.rollout.source import Experience, Source
from fugu.trainer.config import TrainConfig
from fugu.trainer.diverged import Diverged
from fugu.trainer.interrupt import Interrupt
from fugu.trainer.optimizer import Optimizer
from fugu.trainer.recorded import RecordedSteps, Step
from fugu.trainer.score import Score, all_episodes
from fugu.trainer.state import parts
from fugu.vector.vecenv import EpisodeLog

Clock = Callable[[str], AbstractContextManager[None]]
Watch = Callable[[Batch, Tensor, Metrics], bool]
"""function that sees a minibatch, its loss and its metrics; True: this was the last one"""


class Update:
    def __init__(
        self, config: TrainConfig, source: Source, algorithm: Algorithm, *, seed: int, clock: Clock, ranks: Ranks = ALONE
    ) -> None:
        """``seed``: of the order of minibatches."""
        self.config, self.source, self.algorithm = config, source, algorithm
        self.clock, self.ranks = clock, ranks
        self.count = config.minibatches(source.segments)
        self.optimizer = Optimizer(parts(algorithm), config.optimizer, ranks, rates=algorithm.rates)
        self.generator = torch.Generator(source.device if source.static else "cpu").manual_seed(seed)
        self.score = Score(0 if source.vec is None else source.vec.num_agents, source.device, ranks)
        self.step: Step = self._step
        """learns from a minibatch"""
        if source.uniform and not source.static and ranks.size == 1 and (algorithm.device.type == "cuda" or use.emulated):
            self.step = RecordedSteps(self._step, algorithm)
        self.steps = 0
        """rows of environments that were played"""
        self.learned = 0
        """rows that were learned from"""
        self.updates = 0
        self.episodes = 0

    @property
    def progress(self) -> float:
        return min(1.0, self.steps / self.config.steps)

    def run(self, interrupt: Interrupt) -> dict[str, float]:
        """Do one update. Returns its metrics."""
        rate = self.optimizer.set_progress(self.progress)
        experience, batch = self._ready(interrupt)
        rows = torch.stack([torch.as_tensor(experience.rows, dtype=torch.int64).cpu(), batch["mask"].sum().cpu()])
        rows = self.ranks.sum(rows)
        seen, last = Tally(), Tally()
        with self.clock("update"), interrupt.hurry("update") as hurry:
            last.add(self.learn(batch, self._watch(seen, hurry)))
        steps, learned = rows.tolist()
        self.steps += steps
        self.learned += learned
        lag = {"policy/lag": float(self.updates - experience.version)} if self.source.lag else {}
        self.updates += 1
        return {**self.counts(experience.episodes()), **lag, "learning_rate": rate, **seen.read(), **last.read()}

    def _ready(self, interrupt: Interrupt) -> tuple[Experience, Batch]:
        """Return what was played, and the batch made of it. What several ranks do together is out of reach of a signal's handler, which
        would leave the others waiting."""
        if self.ranks.size == 1:
            with interrupt.hurry("rollout"):
                experience = self.collect(interrupt.overdue)
                self.score.see(experience)
                return experience, self.prepare(experience.batch, self.progress)

        def play() -> Experience:
            with interrupt.hurry("rollout"):
                return self.collect(interrupt.overdue)

        experience = agreed(self.ranks, play)
        self.score.see(experience)
        return experience, self.prepare(experience.batch, self.progress)

    def counts(self, log: EpisodeLog) -> dict[str, float]:
        """Count the episodes that ended, and return the counts and the episodes' metrics."""
        log = all_episodes(log, self.ranks)
        self.episodes += log.episodes
        self.score.add(log)
        counts: dict[str, float] = {
            "steps": self.steps,
            "updates": self.updates,
            "episodes": self.episodes,
            "learned": self.learned,
        }
        score = self.score.value
        if score is not None:
            counts["score"] = score
        if log.episodes:
            counts["episode/return"] = log.mean_return
            counts["episode/length"] = log.mean_length
            counts.update({cost_metric("episode/cost", name, log.mean_costs): cost for name, cost in log.mean_costs.items()})
            counts.update({f"env/{name}": value for name, value in log.mean_values.items()})
            counts.update({f"env/{name}": mean for name, (had, mean) in log.infos.items() if had})
            for name, (had, mean_return, mean_length) in log.agents.items():
                if had:
                    counts |= {f"episode/return/{name}": mean_return, f"episode/length/{name}": mean_length}
        return counts

    def collect(self, stop: Callable[[], bool]) -> Experience:
        """Return the next batch of environments and policy."""
        with torch.no_grad():
            return self.source.next(Actor(self.algorithm.act, self.updates), stop)

    def prepare(self, batch: Batch, progress: float | Tensor) -> Batch:
        """Return the batch, ready to be learned from."""
        with self.clock("advantage"), torch.no_grad():
            return self.algorithm.prepare(batch.to(self.algorithm.device), progress)

    def learn(self, batch: Batch, watch: Watch) -> Metrics:
        """Learn from the minibatches until ``watch`` says that it is enough. Returns batch-level metrics."""
        count = self.count if self.ranks.size == 1 else self.ranks.least(min(self.count, batch.segments))
        for minibatch in minibatches(batch, count, self.config.epochs, self.generator):
            if watch(minibatch, *self.step(minibatch)):
                break
        with torch.no_grad():
            return self.algorithm.finish(batch)

    def _step(self, minibatch: Batch) -> tuple[Tensor, Metrics]:
        """Minimise the losses of a minibatch, one after the other. Returns their sum, and all metrics with the length of all
        gradients."""
        algorithm = self.algorithm
        if algorithm.losses is None:
            loss, metrics = algorithm.loss(minibatch)
            return loss.detach(), {**metrics, "loss/grad_norm": self.optimizer.step(loss)}
        total: list[Tensor] = []
        norms: list[Tensor] = []
        metrics = {}
        for loss, found in algorithm.losses(minibatch):
            norms.append(self.optimizer.step(loss))
            total.append(loss.detach())
            metrics |= found
        return torch.stack(total).sum(), {**metrics, "loss/grad_norm": torch.stack(norms).square().sum().sqrt()}

    def _watch(self, seen: Tally, hurry: Callable[[], bool]) -> Watch:
        def watch(minibatch: Batch, loss: Tensor, metrics: Metrics) -> bool:
            norm = metrics.pop("loss/grad_norm")
            finite = math.isfinite(norm.item()) and math.isfinite(loss.item())
            metrics, (broken, hurried) = added_up(metrics, (not finite, hurry()), self.ranks)
            metrics = {**metrics, "loss/grad_norm": norm}
            if broken:
                raise Diverged(minibatch, metrics, self.algorithm.policy)
            seen.add(metrics)
            enough = self.algorithm.enough
            return hurried or (enough is not None and enough(metrics))

        return watch


class Tally:
    """Keeps metrics until they are read."""

    def __init__(self) -> None:
        self._rows: list[Metrics] = []

    def add(self, metrics: Metrics) -> None:
        if self._rows and metrics.keys() != self._rows[0].keys():
            odd = sorted(metrics.keys() ^ self._rows[0].keys())
            raise ConfigError(f"the metrics {odd} are there in some minibatches only; give all of them every time")
        self._rows.append(metrics)

    def read(self) -> dict[str, float]:
        """Return the means of all that was added since the last time."""
        rows, self._rows = self._rows, []
        names = list(rows[0])
        if not names:
            return {}
        table = torch.stack([torch.as_tensor(metrics[name]) for metrics in rows for name in names]).view(len(rows), len(names))
        return dict(zip(names, table.mean(0).tolist(), strict=True))


def added_up(metrics: Metrics, flags: Sequence[bool] = (), ranks: Ranks = ALONE) -> tuple[Metrics, list[bool]]:
    """Return the metrics of a minibatch over all ranks, as parts of a sum like the loss, and which of ``flags`` are set on any."""
    if ranks.size == 1:
        return metrics, list(flags)
    names = list(metrics)
    numbers = [torch.tensor([float(flag) for flag in flags])]
    if names:
        numbers.append(torch.stack([metrics[name].detach().float() for name in names]).cpu())
    found = ranks.sum(torch.cat(numbers)).unbind()
    said, found = found[: len(flags)], found[len(flags) :]
    return dict(zip(names, found, strict=True)), [bool(each > 0) for each in said]


def minibatches(batch: Batch, count: int, epochs: int, generator: torch.Generator) -> Iterator[Batch]:
    """Yield ``epochs * count`` minibatches of whole segments, each of ``segments / count``, rounded up or down if that is no whole
    number. ``generator`` lives on the batch's device.

    On a GPU a batch that is used for one epoch is not shuffled: no segment is seen twice, and neighbours have nothing in common.
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
    """Return ``count`` segments in proportion to ``probability``, with replacement, so that the importance weights are right.

    One random offset and even steps through the cumulated probabilities: a segment is drawn ``count * p`` times, give or take less
    than one, which varies less between minibatches than independent draws do.
    """
    device = generator.device
    cumulated = probability.double().cumsum(0)
    offset = torch.rand((), dtype=torch.float64, generator=generator, device=device)
    points = (torch.arange(count, dtype=torch.float64, device=device) + offset) / count * cumulated[-1]
    return torch.searchsorted(cumulated, points, right=True).clamp(max=len(probability) - 1)


def _shuffled(count: int, generator: torch.Generator) -> torch.Tensor:
    """Return 0 to ``count - 1`` in random order; on a GPU by sorting, which a CUDA graph can record."""
    if generator.device.type == "cpu":
        return torch.randperm(count, generator=generator)
    return torch.rand(count, generator=generator, device=generator.device).argsort()
