"""The training loop. There is one; algorithms, sources and policies plug into it.

An update is in ``trainer/update.py``. Around it ``Trainer.run`` keeps the score, evaluates, saves, and stops. Everything a checkpoint
needs is gathered in ``save`` and put back in ``load``, so a run that goes on from a checkpoint does, bit for bit, what the
uninterrupted run does.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch

from fugu.algorithm.contract import Algorithm
from fugu.algorithm.setup import Seeds
from fugu.errors import CallOrderError, EnvError, FuguError
from fugu.ranks import ALONE, Ranks
from fugu.rollout.agreed import agreed
from fugu.rollout.source import Source, Stopped
from fugu.trainer import checkpoint
from fugu.trainer.callbacks import Callbacks
from fugu.trainer.capture import Unattended, warn_attended
from fugu.trainer.config import TrainConfig
from fugu.trainer.diverged import Diverged
from fugu.trainer.evaluate import Evaluation, Evaluator
from fugu.trainer.interrupt import Interrupt
from fugu.trainer.saving import EVALUATIONS, RETURNS, load, write
from fugu.trainer.state import load_own_state, own_state, saved_state
from fugu.trainer.update import Clock, Update

FEWEST = 10
"""updates between two checkpoints, by default: environments that cannot be saved lose their episodes each time"""

LATEST = 3
"""factor on those updates after which a checkpoint is taken even if not all episodes have come to an end"""

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
        clock: Clock | None = None,
        ranks: Ranks = ALONE,
        evaluate: Evaluator | None = None,
        env: Mapping[str, Any] | None = None,
    ) -> None:
        """``evaluate``: plays whole episodes with the current policy, in environments of its own. ``env``: what checkpoints say of
        the environments (``emulation/spec_json.py``)."""
        self.config, self.source, self.algorithm, self.ranks = config, source, algorithm, ranks
        self.folder = folder
        """folder of the checkpoints; None: nowhere, or another rank writes them"""
        self._saves: bool | None = None
        """whether any rank has such a folder; asked when training begins"""
        self.clock: Clock = clock or nullcontext  # type: ignore[assignment]
        self.seeds = Seeds(run=config.seed, ranks=ranks)
        self.engine = Update(config, source, algorithm, seed=self.seeds.minibatches, clock=self.clock, ranks=ranks)
        self.unattended: Unattended | None = None
        """does the updates if environments and policy live on one device"""
        self.update: Callable[[Interrupt], dict[str, float]] = self.engine.run
        """does one update, or several if nothing needs the host; returns the metrics since the last time"""
        self.best: float | None = None
        self.score = self.engine.score
        self._evaluate, self.env = evaluate, env
        self.evaluated: float | None = None
        """mean return of the last evaluation"""
        self.evaluated_at = 0
        """updates when that was"""
        self.callbacks = Callbacks()
        """who is told of updates, evaluations and checkpoints"""
        self._watched = False
        """whether any rank has callbacks; asked when training begins"""
        self.ended = False  # by a callback
        self._started = 0
        """updates when the environments were last started anew"""
        self._cut_off = False
        """True once it was reported that episodes do not come to an end"""
        self.saved_step: int | None = None
        self._saved_at = time.monotonic()
        self._empty = 0
        """updates in a row without a row to learn from"""
        self._failures = 0
        """checkpoints in a row that could not be written"""
        rows = source.played * ranks.size
        self._every = config.checkpoint.every or max(FEWEST, config.steps // rows // 10)
        if source.static and algorithm.enough is None and ranks.size == 1:
            self.unattended = Unattended(self.engine)
            self.update = self.unattended.run
        elif source.static:
            warn_attended(config.algorithm, algorithm.enough)

    @property
    def best_by(self) -> str:
        """Return what checkpoints are compared by."""
        return RETURNS if self.config.eval.every is None else EVALUATIONS

    @property
    def steps(self) -> int:
        """Return the number of rows that environments played."""
        return self.engine.steps

    @property
    def updates(self) -> int:
        return self.engine.updates

    @property
    def episodes(self) -> int:
        return self.engine.episodes

    @property
    def progress(self) -> float:
        return self.engine.progress

    @property
    def learning_rate(self) -> float | None:
        """Return the learning rate that was set here; None: the config's schedule decides."""
        return self.engine.optimizer.own_rate

    @learning_rate.setter
    def learning_rate(self, rate: float | None) -> None:
        """Set the learning rate from the next update on, in place of the config's schedule; None: as the schedule has it again."""
        if self.unattended is not None and not self.callbacks:
            raise CallOrderError("updates on a device read the learning rate only where callbacks were given: watch() first")
        self.engine.optimizer.set_own_rate(rate)

    def watch(self, callbacks: Callbacks) -> None:
        """Let ``callbacks`` see the training and set its learning rate. To be called before anything else."""
        self.callbacks = callbacks
        if callbacks and self.unattended is not None:
            self.engine.optimizer.keep_own_rate_on(self.unattended.device)

    # --- running ---

    def start(self) -> None:
        """Begin a new run: reset the environments."""
        self.source.restart(self.seeds.envs)

    def run(self, report: Report, interrupt: Interrupt) -> None:
        """Train until the steps are done, the target is reached, or ``interrupt`` asks to end; then save."""
        self._saves = self.ranks.any(self.folder is not None)
        self._watched = self.ranks.any(bool(self.callbacks))
        while not self.finished and not self.ranks.any(bool(interrupt.asked)):
            before = own_state(self.algorithm)  # for a rollout that is given up
            learned, updates = self.engine.learned, self.updates
            try:
                metrics = self.update(interrupt)
                self._empty = 0 if self.engine.learned > learned else self._empty + self.updates - updates
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
            except (Diverged, KeyboardInterrupt):
                raise
            except BaseException as error:  # a network of the user's own may raise anything
                if self.ranks.size > 1 and not getattr(error, "agreed", False):  # the others would not save
                    raise
                with suppress(Exception):  # the reason why training ended matters more
                    self._save_unfinished(before)
                raise
            found = self._evaluation(interrupt)
            self._tell(metrics if found is None else metrics | found.metrics(), found, report, interrupt)
            if not self.finished:
                due = self._due(updates)
                if due or self._long_ago():
                    self._save_if_possible(best=due)
        if self.saved_step != self.steps:
            self.save(ending=True)

    def _tell(self, metrics: dict[str, float], found: Evaluation | None, report: Report, interrupt: Interrupt) -> None:
        """Report an update, with what callbacks log of it; one of them may end the training. Looks that the clock decided are not
        told to them, so that what they do does not hang on it."""
        if not self._watched or (self.unattended is not None and not self.unattended.at_look):
            report(metrics)
            return
        try:
            asked = agreed(self.ranks, lambda: bool(self.callbacks) and self.callbacks.updated(metrics, found))
            self.ended = self.ranks.any(asked)
            if self.ranks.size > 1:
                self.engine.optimizer.set_own_rate(self.ranks.broadcast(self.learning_rate))
        except BaseException as error:  # of Ctrl-C only a second one to this training ends it without saving
            if self.saved_step != self.steps and (isinstance(error, Exception) or not interrupt.asked):
                with suppress(Exception):  # the reason why training ended matters more
                    self.save(ending=True)
            raise
        finally:
            report(metrics)

    def _due(self, before: int) -> bool:
        """Return whether it is time for a checkpoint, after ``before`` updates and those since. Environments that cannot be saved
        first finish an episode each: otherwise episodes longer than the time between two checkpoints would never end."""
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
        """Return whether much would be lost if the process ended now. The speed of a machine must not change what is learned, so
        this is only for environments that need not start anew."""
        minutes = (time.monotonic() - self._saved_at) / 60
        late = self.folder is not None and self.source.can_snapshot and minutes > self.config.checkpoint.minutes
        return self.ranks.any(late)

    def _save_unfinished(self, before: Mapping[str, torch.Tensor]) -> None:
        """Save what was learned up to a rollout that was given up; its environments are lost."""
        load_own_state(self.algorithm, before)
        if self.saved_step != self.steps:  # otherwise a checkpoint of this very moment exists, with its environments
            self.save(envs=False)

    @property
    def finished(self) -> bool:
        if self.ended:
            return True
        if self.unattended is not None and not self.unattended.at_look:
            return False
        if self.steps >= self.config.steps:
            return True
        if self.config.target is None:
            return False
        merit = self.merit
        return merit is not None and merit >= self.config.target

    @property
    def merit(self) -> float | None:
        """Return what the target is compared with; None as long as there is no such number."""
        mean = self.score.value if self.config.eval.every is None else self.evaluated
        return None if mean is None else self.algorithm.merit(mean, {})

    def _evaluation(self, interrupt: Interrupt) -> Evaluation | None:
        """Evaluate if it is due, which the config alone decides, and at the end."""
        every = self.config.eval.every
        if every is None or (self.unattended is not None and not self.unattended.at_look):
            return None
        if self.updates // every == self.evaluated_at // every and self.steps < self.config.steps:
            return None
        found = self.ranks.broadcast(self._evaluated_now(interrupt) if self.ranks.rank == 0 else None)
        if found is None:
            return None
        self.evaluated, self.evaluated_at = found.mean, self.updates
        merit = self.algorithm.merit(found.mean, found.mean_costs)
        if merit is not None and (self.best is None or merit > self.best) and self._keep_best(merit):
            self.best = merit
        return found

    def _evaluated_now(self, interrupt: Interrupt) -> Evaluation | None:
        """Play the episodes of an evaluation; on the first of several ranks. None if it was given up."""
        if self._evaluate is None or interrupt.asked:
            return None
        try:
            return self._evaluate(lambda: bool(interrupt.asked))
        except Stopped:
            return None
        except FuguError as error:  # of its own environments; what was learned is as good as before
            warnings.warn(f"not evaluated after {self.updates} updates: {error}", RuntimeWarning, stacklevel=2)
            return None

    def _keep_best(self, merit: float) -> bool:
        """Keep the policy that an evaluation found to be the best, in a separate folder: environments are left alone, so that
        evaluating changes nothing in what is learned. Returns whether that worked."""
        if self.folder is None:
            return True
        try:
            state = {"steps": self.steps, "updates": self.updates, "best": merit, "env": self.env}
            checkpoint.save(self.folder / checkpoint.BEST, self.steps, saved_state(self.algorithm), state, keep=1, best=True)
        except checkpoint.CheckpointError as error:
            warnings.warn(
                f"the best policy so far, of step {self.steps:,}, was not kept: {error}", RuntimeWarning, stacklevel=2
            )
            return False
        return True

    def close(self) -> None:
        """Close all environments."""
        try:
            self.source.close()
        finally:
            if self._evaluate is not None:
                self._evaluate.close()

    # --- saving and loading ---

    def save(self, *, envs: bool = True, ending: bool = False, best: bool = True) -> None:
        """Write a checkpoint, which may be the ``best``. Environments that cannot be saved are restarted here as well as in the run
        that loads it, so that both go on alike; not if the run ends anyway."""
        if not (self.folder is not None if self._saves is None else self._saves):
            return
        path = write(self, envs=envs, best=best)
        self._saved_at = time.monotonic()
        if not ending and envs:
            self._restart_unsaved()
        if self.callbacks:
            self.callbacks.saved(path, only_warn=not envs)

    @property
    def restart_seed(self) -> int:
        """Return the seed of environments that start anew now."""
        return self.seeds.restart(self.steps)

    def _restart_unsaved(self) -> None:
        """Start environments anew that a checkpoint cannot hold; the same in every run, whether or not it was written."""
        if not self.source.can_snapshot:
            self.start_anew(self.restart_seed)

    def start_anew(self, seed: int) -> None:
        """Start all environments anew."""
        self.source.restart(seed)
        self.algorithm.restarted()
        self.score.restart()
        self._started = self.updates

    def _save_if_possible(self, *, best: bool = True) -> None:
        """Save, and go on if that fails, but not for ever: a disk that is full now may not be at the next checkpoint."""
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
        load(self, path)
