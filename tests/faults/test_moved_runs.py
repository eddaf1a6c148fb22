"""A run whose folder is moved or deleted while it trains goes on where it is, or ends with an error."""

from __future__ import annotations

import shutil

import pytest

import fugu
from fugu.run.store import RunError
from fugu.trainer.checkpoint import CheckpointError, save, steps

SETTINGS = {"num_envs": 4, "steps": 2_000, "horizon": 16, "minibatch": 64, "board": "off", "backend": "serial", "name": "one"}


class Once:
    """Calls ``act(path)`` after some updates."""

    def __init__(self, act, after=5):
        self.act, self.after = act, after

    def on_update(self, run, metrics):
        if metrics["updates"] == self.after:
            self.act(run.path)


@pytest.mark.parametrize("settings", [{}, {"eval.every": 2, "eval.episodes": 2}])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_moved_run_goes_on_in_its_new_place(tmp_path, settings, replaced):
    def move(path):
        path.rename(tmp_path / "two")
        if replaced:
            path.mkdir()
            (path / "notes").write_text("mine")

    with pytest.warns(RuntimeWarning, match=r"one was moved while it trained; it goes on in .*two"):
        run = fugu.train("CartPole-v1", runs=tmp_path, callbacks=[Once(move)], **SETTINGS, **settings)
    assert run.path == tmp_path / "two"
    assert steps(run.path / "checkpoints")[-1] >= 2_000 and run.metrics()[-1]["steps"] >= 2_000
    assert [path.name for path in (tmp_path / "one").glob("*")] == (["notes"] if replaced else [])
    assert not settings or steps(run.path / "checkpoints/best")
    fugu.Run(run.path).resume(steps=2_500)


@pytest.mark.parametrize("after", [5, 32])
def test_a_deleted_run_ends_with_an_error(tmp_path, after):
    with pytest.raises(RunError, match="one was deleted"):
        fugu.train("CartPole-v1", runs=tmp_path, callbacks=[Once(shutil.rmtree, after)], **SETTINGS)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_does_not_bring_a_run_back(tmp_path):
    with pytest.raises(CheckpointError, match="No such file"):
        save(tmp_path / "gone" / "checkpoints", 1, {}, {})
