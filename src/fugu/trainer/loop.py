"""The training loop. There is one; algorithms, sources and policies plug into it.

``Trainer.update`` is the whole of it: ``collect`` a batch from the source and ``prepare`` it, ``learn`` from minibatches of
it, and ``finish``. Around it ``run`` keeps the count, saves, and stops. Everything a checkpoint needs is gathered in ``save``
and put back in ``load``, so a run that goes on from a checkpoint does, bit for bit, what the uninterrupted run does.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fugu.algorithm.contract import Algorithm, Metrics
from fugu.emulation.env import cost_metric
from fugu.errors import EnvError, FuguError
from fugu.rollout.batch import Batch
from fugu.rollout.onpolicy import Stopped
from fugu.rollout.source import Source
from fugu.trainer import checkpoint
from fugu.trainer.capture import Unattended
from fugu.trainer.config import TrainConfig
from fugu.trainer.diverged import Diverged
from fugu.trainer.interrupt import Interrupt
from fugu.trainer.minibatch import minibatches
from fugu.trainer.optimizer import Optimizer
from fugu.trainer.score import Score

FEWEST = 10
"""updates between two checkpoints, unless told otherwise: environments that cannot be saved lose their episodes each time"""

LATEST = 3
"""times as many after which a checkpoint is taken although not all of these episodes have come to an end"""

MOST_EMPTY = 100
"""updates in a row that may have had no row to learn from before training stops"""

MAX_FAILURES = 3
"""checkpoints in a row that may fail before training stops"""

Report = Callable[[dict[str, float]], None]


class Trainer:
    def __init__(
        self,
        config: TrainConfig,
        source: Source,
        algorithm: Algorithm,
        *,
        folder: Path | None = None,
        clock: Callable[[str], AbstractContextManager[None]] | None = None,
    ) -> None:
        self.config, self.source, self.algorithm = config, source, algorithm
        self.folder = folder
        """where checkpoints go; None: nowhere"""
        self.clock = clock or (lambda _: nullcontext())
        self.count = config.minibatches(source.segments)
        self.optimizer = Optimizer(algorithm.modules, config.optimizer)
        self.unattended: Unattended | None = None
        """does the updates where environments and policy live on one device"""
        self.generator = torch.Generator(source.device if source.static else "cpu").manual_seed(config.seed + 1)
        """of the order of minibatches"""
        self.steps = 0
        self.updates = 0
        self.episodes = 0
        self.best: float | None = None
        self.score = Score(source.vec.num_agents, source.device, whole=algorithm.groups is not None)
        self._started = 0
        """updates when the environments were last started anew"""
        self._cut_off = False
        """whether it was said that episodes do not come to an end"""
        self.saved_step: int | None = None
        self._saved_at = time.monotonic()
        self._empty = 0
        """updates in a row without a row to learn from"""
        self._failures = 0
        """checkpoints in a row that could not be written"""
        rows = source.segments * source.horizon
        self._every = config.checkpoint.every or max(FEWEST, config.steps // rows // 10)
        if source.static and algorithm.asks is None:
            self.unattended = Unattended(self)
        elif source.static:
            warnings.warn(
                f"{algorithm.asks}, so that training on the GPU waits for the host each time, which is slower",
                RuntimeWarning,
                stacklevel=2,
            )

    # --- running ---

    def start(self) -> None:
        """Begin a new run: reset the environments."""
        self.source.restart(self.config.seed)

    def run(self, report: Report, interrupt: Interrupt) -> None:
        """Train until the steps are done, the target is reached, or ``interrupt`` says to end; then save."""
        while not self.finished and not interrupt.asked:
            before = self.algorithm.state()  # for a rollout that is given up
            steps, updates = self.steps, self.updates
            try:
                metrics = self.update(interrupt)
                self._empty = 0 if self.steps > steps else self._empty + self.updates - updates
                if self._empty >= MOST_EMPTY:
                    raise FuguError(
                        f"the last {self._empty} updates had nothing to learn from: no agent was to act in any of their rows; "
                        f"fugu check {self.config.env} may find out why"
                    )
            except Stopped:
                self._save_unfinished(before)
                return
            except EnvError:
                self._save_unfinished(before)
                if interrupt.asked:  # the signal reached the workers as well
                    return
                raise
            except Diverged:
                raise
            except Exception:  # a network of the user's own may raise anything
                with suppress(Exception):  # what is told is why training ended
                    self._save_unfinished(before)
                raise
            report(metrics)
            if not self.finished:
                due = self._due(updates)
                if due or self._long_ago():
                    self._save_if_possible(best=due)
        if self.saved_step != self.steps:
            self.save(ending=True)

    def _due(self, before: int) -> bool:
        """Whether it is time for a checkpoint, after ``before`` updates and those since. Environments that cannot be saved are first
        let come to the end of an episode each: else those longer than the time between two checkpoints would never be."""
        if self.source.can_snapshot:
            return self.updates // self._every > before // self._every
        if self.updates // self._every == self._started // self._every:
            return False
        late = self.updates - self._started >= LATEST * self._every
        if late and not self.score.settled and not self._cut_off:
            self._cut_off = True
            warnings.warn(
                f"environments start anew at every checkpoint, and in {LATEST * self._every} updates not all agents came to the end of "
                f"an episode: longer ones are missing from all means; to let them end, type --checkpoint.every {10 * self._every}",
                RuntimeWarning,
                stacklevel=3,
            )
        return self.score.settled or late

    def _long_ago(self) -> bool:
        """Whether much would be lost if the process ended now. How fast a machine is must not change what is learned, so this is
        only for environments that need not start anew."""
        minutes = (time.monotonic() - self._saved_at) / 60
        return self.folder is not None and self.source.can_snapshot and minutes > self.config.checkpoint.minutes

    def _save_unfinished(self, before: Mapping[str, torch.Tensor]) -> None:
        """Save what was learned up to a rollout that came to nothing; its environments are lost."""
        self.algorithm.load_state(before)
        if self.saved_step != self.steps:  # else there is a checkpoint of this very moment, with its environments
            self.save(envs=False)

    @property
    def finished(self) -> bool:
        if self.unattended is not None and not self.unattended.at_look:
            return False
        if self.steps >= self.config.steps:
            return True
        return self.config.target is not None and self.score.value is not None and self.score.value >= self.config.target

    @property
    def progress(self) -> float:
        return min(1.0, self.steps / self.config.steps)

    def update(self, interrupt: Interrupt) -> dict[str, float]:
        """One batch. Returns its metrics."""
        if self.unattended is not None:
            metrics = self.unattended.run(interrupt)
            return {**self._counts(), **metrics}
        rate = self.optimizer.set_progress(self.progress)
        with interrupt.hurry("rollout"):
            batch = self.prepare(self.collect(interrupt.overdue), self.progress)
        rows = int(batch["mask"].sum())
        seen: list[Metrics] = []
        with self.clock("update"), interrupt.hurry("update") as hurry:

            def watch(minibatch: Batch, loss: Tensor, metrics: Metrics) -> bool:
                if not (math.isfinite(metrics["loss/grad_norm"].item()) and math.isfinite(loss.item())):
                    raise Diverged(minibatch, metrics, self.algorithm.modules["policy"])
                seen.append(metrics)
                return self.algorithm.enough(metrics) or hurry()

            last = self.learn(batch, watch)
        self.steps += rows
        self.updates += 1
        return {**self._counts(), "learning_rate": rate, **_means(seen), **_means([last])}

    def collect(self, stop: Callable[[], bool]) -> Batch:
        """A batch, as the environments and the policy filled it."""
        return self.source.next(self.algorithm.act, stop)

    def prepare(self, batch: Batch, progress: float | Tensor) -> Batch:
        """The batch, ready to be learned from."""
        with self.clock("advantage"):
            self.score.see(batch)
            return self.algorithm.prepare(batch, progress)

    def learn(self, batch: Batch, watch: Callable[[Batch, Tensor, Metrics], bool]) -> Metrics:
        """Go through the minibatches until ``watch``, which sees each with its loss and metrics, says that it is enough."""
        for minibatch in minibatches(batch, self.count, self.config.epochs, self.generator):
            loss, metrics = self.algorithm.loss(minibatch)
            norm = self.optimizer.step(loss)
            if watch(minibatch, loss.detach(), {**metrics, "loss/grad_norm": norm}):
                break
        return self.algorithm.finish(batch)

    def _counts(self) -> dict[str, float]:
        log = self.source.drain_log()
        counts: dict[str, float] = {"steps": self.steps, "updates": self.updates}
        self.episodes += log.episodes
        counts["episodes"] = self.episodes
        self.score.add(log)
        if log.episodes:
            counts["episode/return"] = log.mean_return
            counts["episode/length"] = log.mean_length
            counts.update({cost_metric("episode/cost", name, log.mean_costs): cost for name, cost in log.mean_costs.items()})
            counts.update({f"env/{name}": value for name, value in log.mean_values.items()})
        return counts

    # --- saving and loading ---

    def save(self, *, envs: bool = True, ending: bool = False, best: bool = True) -> None:
        """Write a checkpoint, which may be the ``best``. Environments that cannot be saved are restarted here as well as in the run
        that loads it, so that both go on alike; not where the run ends anyway."""
        if self.folder is None:
            return
        saved = self.source.snapshot() if envs else {}
        tensors = {
            **{name: module.state_dict() for name, module in self.algorithm.modules.items()},
            "optimizer": self.optimizer.state(),
            "algorithm": {**self.algorithm.state(), "minibatch_generator": self.generator.get_state()},
            "envs": saved,
            "score": self.score.tensors(),
        }
        state: dict[str, Any] = {
            "steps": self.steps,
            "updates": self.updates,
            "episodes": self.episodes,
            "score": self.score.state(),
            "best": self.best,
            "restart_seed": None if saved else self._restart_seed,
        }
        merit = None if self.score.value is None else self.algorithm.merit(self.score.value)
        best = best and merit is not None and (self.best is None or merit > self.best)
        if best:
            state["best"] = merit
        checkpoint.save(self.folder, self.steps, tensors, state, keep=self.config.checkpoint.keep, best=best)
        self.saved_step, self.best = self.steps, state["best"]
        self._saved_at = time.monotonic()
        if not ending and envs:
            self._restart_unsaved()

    @property
    def _restart_seed(self) -> int:
        return self.config.seed + self.steps + 1

    def _restart_unsaved(self) -> None:
        """Start environments anew that a checkpoint cannot hold; the same in every run, whether or not it was written."""
        if not self.source.can_snapshot:
            self._restart(self._restart_seed)

    def _restart(self, seed: int) -> None:
        self.source.restart(seed)
        self.algorithm.restarted()
        self.score.restart()
        self._started = self.updates

    def _save_if_possible(self, *, best: bool = True) -> None:
        """A disk that is full now may not be at the next checkpoint, so training goes on; but not for ever."""
        try:
            self.save(best=best)
            self._failures = 0
        except checkpoint.CheckpointError as error:
            self._failures += 1
            if self._failures >= MAX_FAILURES:
                raise
            warnings.warn(f"step {self.steps:,} was not saved: {error}", RuntimeWarning, stacklevel=2)
            self._restart_unsaved()

    def load(self, path: Path) -> None:
        """Go on from a checkpoint of a run with the same config."""
        saved = checkpoint.load(path)
        with checkpoint.fitting_into(path):
            for name, module in self.algorithm.modules.items():
                module.load_state_dict(saved.tensors[name])
            self.optimizer.load_state(saved.tensors["optimizer"])
            algorithm = dict(saved.tensors["algorithm"])
            self.generator.set_state(algorithm.pop("minibatch_generator"))
            self.algorithm.load_state(algorithm)
        state = saved.state
        self.steps, self.updates, self.episodes = state["steps"], state["updates"], state["episodes"]
        if "score" in state:  # else it is of an earlier version, and counts anew
            self.score.load(state["score"], saved.tensors["score"])
        self.best = state["best"]
        self.saved_step = self.steps
        envs = saved.tensors.get("envs") or {}
        if envs and self.source.can_snapshot and self.source.took(envs):
            self.source.restore(envs)
        else:
            self._restart(state["restart_seed"] if not envs else self._restart_seed)


def _means(seen: list[Metrics]) -> dict[str, float]:
    names = list(seen[0])
    table = torch.stack([metrics[name] for metrics in seen for name in names]).view(len(seen), len(names))
    return dict(zip(names, table.mean(0).tolist(), strict=True))
