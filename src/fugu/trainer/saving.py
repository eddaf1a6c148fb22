"""From a trainer to a checkpoint and back, with all of its ranks.

Everything that decides how training goes on is gathered in ``write`` and put back in ``load``. Rank 0 writes. A checkpoint of another
number of ranks gives weights and counts; environments and random numbers begin anew.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fugu.rollout.acting import generators
from fugu.trainer import checkpoint
from fugu.trainer.apart import of_other_ranks, of_this_rank
from fugu.trainer.sound import check_state
from fugu.trainer.state import OWN, REPLAY, load_state, saved_state

if TYPE_CHECKING:
    from fugu.trainer.loop import Trainer

RETURNS, EVALUATIONS = "returns", "evaluations"
"""what checkpoints are compared by: the returns of training, or evaluations"""


def write(trainer: Trainer, *, envs: bool, best: bool) -> Path:
    """Write a checkpoint, with the environments if they can be saved, and note in ``trainer`` what is now saved. All ranks call it; if
    it fails it fails on all."""
    ranks, engine = trainer.ranks, trainer.engine
    saved = trainer.source.snapshot() if envs else {}
    tensors = {
        **saved_state(trainer.algorithm),
        "optimizer": engine.optimizer.state(),
        "envs": saved,
        "score": trainer.score.tensors(),
    }
    kept = trainer.source.kept()
    if kept is not None:
        tensors[REPLAY] = dict(kept.tensors)
    tensors[OWN] = {**tensors[OWN], "minibatch_generator": engine.generator.get_state()}
    state: dict[str, Any] = {
        "steps": trainer.steps,
        "learned": engine.learned,
        "updates": trainer.updates,
        "episodes": trainer.episodes,
        "score": trainer.score.state(),
        "best": trainer.best,
        "best_by": trainer.best_by,
        "evaluated": trainer.evaluated,
        "evaluated_at": trainer.evaluated_at,
        "restart_seed": None if saved else trainer.restart_seed,
        "env": trainer.env,
    }
    if trainer.learning_rate is not None:
        state["learning_rate"] = trainer.learning_rate
    best = best and trainer.config.eval.every is None  # otherwise evaluations decide which one it is
    merit = state["merit"] = trainer.merit
    best = best and merit is not None and (trainer.best is None or merit > trainer.best)
    if best:
        state["best"] = merit
    pages = () if kept is None else kept.pages
    if ranks.size > 1:
        state["ranks"] = ranks.size
        tensors |= of_other_ranks(ranks, tensors, pages)
    done: Path | str = ""
    if trainer.folder is not None:
        keep = trainer.config.checkpoint.keep
        try:
            done = checkpoint.save(trainer.folder, trainer.steps, tensors, state, keep=keep, best=best, pages=pages)
        except checkpoint.CheckpointError as error:
            if ranks.size == 1:
                raise
            done = str(error)
    done = ranks.broadcast(done)
    if isinstance(done, str):
        raise checkpoint.CheckpointError(done)
    trainer.saved_step, trainer.best = trainer.steps, state["best"]
    return done


def load(trainer: Trainer, path: Path) -> None:
    """Put back what a checkpoint of a run with the same config holds."""
    saved = checkpoint.load(path)
    engine, state, ranks = trainer.engine, saved.state, trainer.ranks
    before = state.get("ranks", 1)
    tensors, pages = saved.tensors, list(checkpoint.pages(path))
    with checkpoint.fitting_into(path):
        if before == ranks.size > 1:
            tensors, pages = of_this_rank(ranks, tensors, pages)
        check_state(state, saved.step)
        own = dict(tensors[OWN])
        engine.generator.set_state(own.pop("minibatch_generator"))
        load_state(trainer.algorithm, {**tensors, OWN: own})
        engine.optimizer.load_state(tensors["optimizer"])
        trainer.score.load(state.get("score"), tensors.get("score", {}))
    engine.steps, engine.updates, engine.episodes = state["steps"], state["updates"], state["episodes"]
    engine.learned = state.get("learned", engine.steps)  # earlier versions counted these alone
    trainer.best = state.get("best") if state.get("best_by", RETURNS) == trainer.best_by else None  # they cannot be compared
    trainer.evaluated, trainer.evaluated_at = state.get("evaluated"), state.get("evaluated_at", state["updates"])
    engine.optimizer.load_own_rate(state.get("learning_rate"), wanted=ranks.any(bool(trainer.callbacks)))
    trainer.saved_step = trainer.steps
    if REPLAY in tensors:
        with checkpoint.fitting_into(path):
            trainer.source.remember(tensors[REPLAY], pages)
    envs = tensors.get("envs") or {}
    if envs and before == ranks.size and trainer.source.can_snapshot and trainer.source.fits(envs):
        with checkpoint.fitting_into(path):
            trainer.source.restore(envs)
        return
    if before != ranks.size:
        _draw_anew(trainer, before)
    said = None if envs or ranks.size > 1 else state.get("restart_seed")
    trainer.start_anew(said or trainer.restart_seed)


def _draw_anew(trainer: Trainer, before: int) -> None:
    """Begin all random numbers anew: a checkpoint of another number of ranks does not have them."""
    ranks = trainer.ranks
    if ranks.rank == 0:
        warnings.warn(
            f"this run was saved by {before} learner{'s' * (before > 1)} and goes on with {ranks.size}: its environments start anew",
            RuntimeWarning,
            stacklevel=4,
        )
    for number, generator in enumerate((trainer.engine.generator, *generators(trainer.algorithm).values())):
        generator.manual_seed(ranks.seed(trainer.restart_seed + number) % 2**63)
