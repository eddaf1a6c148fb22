"""What the loop saves when something comes in between: a signal, an environment that fails, a disk that is full."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Callable, Iterator

import pytest
import torch

from fugu.errors import EnvError
from fugu.rollout.source import Stopped
from fugu.trainer import checkpoint
from fugu.trainer.build import make_trainer
from fugu.trainer.checkpoint import CheckpointError
from fugu.trainer.config import CheckpointConfig, TrainConfig
from fugu.trainer.interrupt import Interrupt
from fugu.trainer.loop import Trainer
from fugu.trainer.state import own_state
from fugu.vector.config import VectorConfig
from tests.trainer.test_loop import BASE, train

SERIAL = dataclasses.replace(BASE, env="CartPole-v1", vector=VectorConfig(num_envs=16, backend="serial"))


@contextlib.contextmanager
def trainer_of(config: TrainConfig, folder=None) -> Iterator[Trainer]:
    trainer = make_trainer(config, folder)
    try:
        trainer.start()
        yield trainer
    finally:
        trainer.close()


def in_rollout(trainer: Trainer, number: int, happen: Callable[[], None]) -> None:
    """Let ``happen`` happen some steps into the rollout of update ``number``."""
    plain, left = trainer.source.next, [number]

    def next(actor, stop):
        left[0] -= 1
        steps = [0]

        def now() -> bool:
            steps[0] += 1
            if left[0] == 0 and steps[0] == 4:
                happen()
            return stop()

        return plain(actor, now)

    trainer.source.next = next


def stopped() -> None:
    raise Stopped


def broken() -> None:
    raise EnvError("the env broke", envs=(3,))


@pytest.mark.parametrize("config", [BASE, SERIAL], ids=["native", "serial"])
def test_a_signal_in_the_rollout_after_a_checkpoint_leaves_that_exact_one(config, tmp_path):
    config = dataclasses.replace(config, checkpoint=CheckpointConfig(every=10))
    whole, _ = train(config, tmp_path / "whole")
    with trainer_of(config, tmp_path / "cut") as trainer:
        in_rollout(trainer, 11, stopped)
        trainer.run(lambda metrics: None, Interrupt())
        assert trainer.updates == 10
    again, _ = train(config, tmp_path / "cut", resume=checkpoint.find(tmp_path / "cut"))
    assert again == whole[10:]


def test_a_signal_in_another_rollout_saves_all_that_was_learned_and_goes_on_with_new_episodes(tmp_path):
    with trainer_of(BASE, tmp_path) as trainer:
        in_rollout(trainer, 8, stopped)
        drawn = []
        trainer.run(lambda metrics: drawn.append(own_state(trainer.algorithm)["generator"]), Interrupt())
        saved = checkpoint.load(checkpoint.find(tmp_path))
        assert saved.state["updates"] == trainer.updates == 7 and saved.step == trainer.steps
        assert not saved.tensors.get("envs")
        assert saved.tensors["algorithm"]["generator"].equal(drawn[-1])  # what the rollout drew came to nothing
    seen, _ = train(BASE, tmp_path, resume=checkpoint.find(tmp_path))
    assert [metrics["updates"] for metrics in seen[:2]] == [8, 9]


@pytest.mark.parametrize("asked", [False, True])
def test_a_run_whose_environment_fails_is_saved_first(asked, tmp_path):
    with trainer_of(BASE, tmp_path) as trainer:
        interrupt = Interrupt()

        def happen() -> None:
            interrupt.asked = signal.SIGTERM if asked else None
            broken()

        in_rollout(trainer, 8, happen)
        # a signal to end may well be why it failed; the run then ends as it was asked to
        with contextlib.nullcontext() if asked else pytest.raises(EnvError, match="the env broke"):
            trainer.run(lambda metrics: None, interrupt)
        assert checkpoint.load(checkpoint.find(tmp_path)).state["updates"] == trainer.updates == 7
    seen, _ = train(BASE, tmp_path, resume=checkpoint.find(tmp_path))
    assert seen[0]["updates"] == 8


def test_a_best_score_that_could_not_be_saved_is_not_taken_for_saved(tmp_path, monkeypatch):
    with trainer_of(dataclasses.replace(BASE, checkpoint=CheckpointConfig(keep=1)), tmp_path) as trainer:
        trainer.score._rounds.append((100, 5000.0))
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "save", failing)
            with pytest.warns(RuntimeWarning, match="was not saved: no space"):
                trainer._save_if_possible()
        assert trainer.best is None and trainer.saved_step is None
        trainer.save()
        assert trainer.best == 50.0
        assert checkpoint.load(checkpoint.find(tmp_path, "best")).state["best"] == 50.0


def test_environments_that_can_be_saved_are_after_some_minutes_and_nothing_else_changes(tmp_path):
    rare = dataclasses.replace(BASE, checkpoint=CheckpointConfig(every=1000, keep=100))
    often = dataclasses.replace(rare, checkpoint=CheckpointConfig(every=1000, keep=100, minutes=1e-9))
    plain, weights = train(rare, tmp_path / "rare")
    timed, same_weights = train(often, tmp_path / "often")
    assert timed == plain and all(torch.equal(weights[name], same_weights[name]) for name in weights)
    assert len(checkpoint.steps(tmp_path / "rare")) == 1
    assert len(checkpoint.steps(tmp_path / "often")) == len(plain)
    assert not list((tmp_path / "often").glob("best*")), "which one is the best must not hang on the machine's speed"
    serial = dataclasses.replace(SERIAL, checkpoint=often.checkpoint)  # would start new episodes
    train(serial, tmp_path / "serial")
    assert len(checkpoint.steps(tmp_path / "serial")) == 1


def failing(*arguments, **settings):
    raise CheckpointError("no space")


@pytest.mark.parametrize("config", [BASE, SERIAL], ids=["native", "serial"])
def test_returns_do_not_run_on_through_a_restart_of_the_environments(config, tmp_path):
    """Rewards are scaled by the returns of running episodes; those that were cut off at a checkpoint must not be added to."""
    with trainer_of(config, tmp_path) as trainer:
        trainer.update(Interrupt())
        scale = trainer.algorithm.reward_scale
        running = scale.running.clone()
        assert running.any()
        trainer.save()
        if trainer.source.vec.can_snapshot:
            assert scale.running.equal(running)
        else:
            assert not scale.running.any()
    with trainer_of(config) as again:
        again.load(checkpoint.find(tmp_path))
        assert again.algorithm.reward_scale.running.equal(scale.running)
