"""Overlap: the next batch is played by a thread while the learner learns from this one.

In: a source on the CPU, and the algorithm that acts in it. Out: its batches, one after the other, each played with the weights that
were published one update before it is learned from (``lag=1``); copies, so that the source may go on writing where it did. The first
batch after a start has no update before it.

When a batch is handed over the thread is idle: then the batch is copied, the weights are published and the next batch is begun. So
which weights play which batch, and which random numbers they draw, never depends on timing. The thread draws from generators of its
own. A checkpoint waits for the batch under way and holds it, so that it disturbs nothing, and a run that goes on from there does what
this one does.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from fugu.emulation.saved import unfit
from fugu.rollout.acting import Actor, Acts, Forms, Published
from fugu.rollout.batch import Batch
from fugu.rollout.pays import Pays
from fugu.rollout.pilot import Here, Pilot
from fugu.rollout.recalled import Rows
from fugu.rollout.room import rows_of
from fugu.rollout.source import Clock, Experience, Source, Stopped
from fugu.vector.seeds import env_seeds
from fugu.vector.vecenv import EpisodeLog, VecEnv

PREFIX = "ahead "
"""before the names of what a snapshot holds beside that of the source"""
GRACE_S = 1.0
"""seconds that a rollout which is to stop may take until it is left alone"""


class Ahead(Source):
    def __init__(
        self,
        inner: Source,
        algorithm: nn.Module,
        *,
        act: Callable[[Any], Acts] = lambda module: module.act,
        acted: Forms | None = None,
        lag: int = 1,
        threaded: bool = True,
        clock: Clock | None = None,
    ) -> None:
        """``act``: what plays, given a copy of the algorithm. ``acted``: columns that it keeps of a row. ``clock`` times how long the
        learner waits. For comparison: ``lag=0`` waits for each batch, with the algorithm's own generators; ``threaded=False`` plays in
        the calling thread."""
        self.inner, self.lag = inner, lag
        self.vec, self.device = inner.vec, inner.device
        self.segments, self.horizon, self.note = inner.segments, inner.horizon, inner.note
        self._clock = clock or nullcontext
        self._acted = acted or {}
        self._published = Published(algorithm, act, copies=1, apart=lag > 0)
        self._pilot: Pilot | Here = Pilot("fugu-rollout") if threaded else Here()
        self._landed: Experience | None = None
        """batch that was played and not handed on, in the memory of ``inner``"""
        self._failed: BaseException | None = None
        self._flying = self._halt = False
        self._asked: Callable[[], bool] = bool
        """what the loop has given to ask whether to stop"""
        self._kept: dict[str, Tensor] = {}
        self._pays = Pays() if threaded and lag else None

    @property
    def played(self) -> int:
        return self.inner.played

    # --- a batch ---

    def next(self, actor: Actor, stop: Callable[[], bool] = bool) -> Experience:
        """Return the batch that was played meanwhile, and begin the next with the weights of now."""
        self._asked = stop
        if self._pays is not None:
            self._pays.learned()
        if not self._flying and self._landed is None:
            self._launch(self._publish(actor.version))
        with self._clock("wait_rollout"):
            self._land()
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error
        assert self._landed is not None
        found, self._landed = self._copied(self._landed), None
        if self.lag:
            self._launch(self._publish(actor.version))
            if self._pays is not None and self._pays.alone:
                self._land()
        if self._pays is not None:
            self._pays.handed_over()
        return found

    def _publish(self, version: int) -> Actor:
        return self._published.publish(version)

    def _launch(self, actor: Actor) -> None:
        self._halt, self._flying = False, True
        self._pilot.start(lambda: self._play(actor))

    def _play(self, actor: Actor) -> Experience:
        """Play a batch; in the thread."""
        began = time.perf_counter()
        with torch.no_grad():
            found = self.inner.next(actor, lambda: self._halt or self._asked())
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        if self._pays is not None:
            self._pays.played(time.perf_counter() - began)
        return found

    def _land(self) -> None:
        """Wait for the batch under way. It, or why there is none, is kept."""
        if not self._flying:
            return
        try:
            late: float | None = None
            while not self._pilot.wait(0.1):
                if self._asked() and late is None:
                    late = time.monotonic() + GRACE_S
                if late is not None and time.monotonic() > late:
                    raise Stopped
        except BaseException:
            self._halt = True
            raise
        self._flying = False
        self._landed, self._failed = self._pilot.take()

    def _copied(self, found: Experience) -> Experience:
        """Return the batch in memory that stays as it is while the next is played."""
        batch = found.batch
        columns = {name: self._copy(name, column) for name, column in batch.columns.items()}
        acted, ended = (None if each is None else each.clone() for each in (found.acted, found.ended))
        return dataclasses.replace(found, batch=Batch(columns, batch.once, batch.origin), acted=acted, ended=ended)

    def _copy(self, name: str, column: Tensor) -> Tensor:
        mine = self._kept.get(name)
        if mine is None or mine.shape != column.shape or mine.dtype != column.dtype or mine.device != column.device:
            mine = self._kept[name] = torch.empty_like(column, pin_memory=column.device.type == "cpu" and column.is_pinned())
        return mine.copy_(column)

    def waited(self) -> Mapping[str, float]:
        """Return how long the thread had nothing to do, in seconds since the last call."""
        return {"wait_learner": self._pilot.idle()}

    # --- starting and restarting ---

    def restart(self, seed: int) -> None:
        self._drop()
        if self.lag:
            drawn = self._published.generators
            for generator, own in zip(drawn.values(), env_seeds(seed, max(1, len(drawn))).tolist(), strict=False):
                generator.manual_seed(own)
        self.inner.restart(seed)

    def _drop(self) -> None:
        """Give up the batch under way."""
        self._halt = True
        self._asked = bool
        self._land()
        self._landed = self._failed = None

    @property
    def can_snapshot(self) -> bool:
        return self.inner.can_snapshot

    def snapshot(self) -> dict[str, Tensor]:
        """Return what the source needs, with the batch under way, which is waited for; nothing if it does not come to its end."""
        try:
            self._land()
        except Stopped:
            return {}
        if self._failed is not None:
            return {}
        saved = self.inner.snapshot()
        if not saved or not self.lag:
            return saved
        saved |= {f"{PREFIX}generator {name}": each.get_state() for name, each in self._published.generators.items()}
        return saved if self._landed is None else saved | saved_experience(self._landed)

    def fits(self, saved: Mapping[str, Tensor]) -> bool:
        return self.inner.fits(saved)

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self._drop()
        self.inner.restore({name: each for name, each in saved.items() if not name.startswith(PREFIX)})
        if self.lag:
            for name, generator in self._published.generators.items():
                generator.set_state(saved[f"{PREFIX}generator {name}"].clone())
            self._landed = restored_experience(saved, self._checked)

    def _checked(self, columns: Mapping[str, Tensor], once: frozenset[str]) -> dict[str, Tensor]:
        """Return the columns of a saved batch, if this source can have played it."""
        assert isinstance(self.vec, VecEnv)
        spec, of = self.vec.spec, f"{self.segments} segments of {self.vec.spec.name}"
        forms = {**rows_of(spec), **self._acted}
        found = Rows(spec, self.segments, forms, self._acted, of).checked(
            {name: column for name, column in columns.items() if name not in once}
        )
        steps = found["mask"].shape[1]
        if steps > self.horizon:
            raise unfit("batch", of, f"has {steps} rows, and segments have {self.horizon}")
        for name, column in columns.items():
            if name in found:
                continue
            shape = (self.segments,) if name in once else (self.segments, steps)
            odd = column.is_floating_point() and name != "score" and bool(column.isnan().any())  # a score may be unknown
            if column.shape[: len(shape)] != shape or odd:
                raise unfit(f"batch {name}", of, f"is {list(column.shape)}{' with NaN' * odd} instead of {list(shape)}")
            found[name] = column
        return found

    def close(self) -> None:
        """End the thread, and close the environments. One that hangs is closed first, so that the thread comes to its end."""
        self._halt = True
        try:
            if self._flying and not self._pilot.wait(GRACE_S):
                self.inner.close()
        finally:
            self._flying = False
            self._pilot.close()
            self.inner.close()


def saved_experience(found: Experience) -> dict[str, Tensor]:
    """Return a batch, and what is said of it, as tensors for a checkpoint."""
    log = {name: dict(each) if isinstance(each, Mapping) else each for name, each in found.episodes()._asdict().items()}
    said = {"rows": int(found.rows), "version": found.version, "once": sorted(found.batch.once), "episodes": log}
    text = json.dumps(said, default=lambda number: number.item()).encode()
    saved = {f"{PREFIX}column {name}": column.detach().cpu().clone() for name, column in found.batch.columns.items()}
    marks = {"acted": found.acted, "ended": found.ended}
    saved |= {f"{PREFIX}{name}": each.cpu().clone() for name, each in marks.items() if each is not None}
    return {**saved, f"{PREFIX}said": torch.frombuffer(bytearray(text), dtype=torch.uint8)}


def restored_experience(
    saved: Mapping[str, Tensor], checked: Callable[[Mapping[str, Tensor], frozenset[str]], dict[str, Tensor]]
) -> Experience | None:
    """Return the batch that ``saved_experience`` made tensors of; None if there was none. ``checked``: refuses what cannot be one."""
    if f"{PREFIX}said" not in saved:
        return None
    said = json.loads(bytes(saved[f"{PREFIX}said"].tolist()))
    start = f"{PREFIX}column "
    columns = {name.removeprefix(start): column for name, column in saved.items() if name.startswith(start)}
    once = frozenset(said["once"])
    columns = checked(columns, once)
    log = dict(said["episodes"])
    for name in ("infos", "agents"):
        log[name] = {key: tuple(each) for key, each in log[name].items()}
    episodes = EpisodeLog(**log)
    marks = (saved.get(f"{PREFIX}acted"), saved.get(f"{PREFIX}ended"))
    return Experience(Batch(columns, once), said["rows"], said["version"], lambda: episodes, *marks)
