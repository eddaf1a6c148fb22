"""Callbacks: what they see and may do, that watching changes nothing, and that their mistakes lose nothing."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fugu
from fugu.errors import ConfigError
from fugu.run.ending import Interrupted
from fugu.run.overview import overview
from fugu.run.run import Run
from fugu.run.store import RunFolder
from fugu.trainer import capture
from fugu.trainer.build import make_trainer
from fugu.trainer.callbacks import CallbackError, Callbacks
from fugu.trainer.checkpoint import find
from fugu.trainer.interrupt import Interrupt
from tests.trainer.fake_ranks import run_together
from tests.trainer.test_capture import config as device_config
from tests.trainer.test_loop import BASE

SETTINGS = {
    "steps": 64 * 24,
    "num_envs": 8,
    "horizon": 8,
    "minibatch": 64,
    "threads": 1,
    "hidden": (16,),
    "log.board": "off",
    "eval.every": 6,
    "eval.episodes": 4,
    "checkpoint.every": 4,
    "max_steps": 20,
}
"""twenty-odd updates of milliseconds"""


def trained(folder: Path, callbacks: Any = (), **changes: Any) -> Run:
    settings = {**SETTINGS, **changes}
    return fugu.train(
        "cartpole", runs=folder, env_kwargs={"max_steps": settings.pop("max_steps")}, callbacks=callbacks, **settings
    )


def outcome(run: Run) -> tuple[bytes, bytes]:
    return run.folder.metrics.read_bytes(), (find(run.folder.checkpoints) / "policy.safetensors").read_bytes()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nobody watched."""
    return trained(tmp_path_factory.mktemp("plain"))


class Watcher:
    """Notes what it is told, and does nothing."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, Any]] = []

    def on_start(self, run: Run) -> None:
        self.told.append(("start", run.trainer.updates, None))

    def on_update(self, run: Run, metrics: dict[str, float]) -> None:
        self.told.append(("update", run.trainer.updates, dict(metrics)))

    def on_checkpoint(self, run: Run, path: Path) -> None:
        self.told.append(("checkpoint", run.trainer.updates, path.name))

    def on_evaluation(self, run: Run, evaluation: Any) -> None:
        self.told.append(("evaluation", run.trainer.updates, evaluation.mean))

    def on_end(self, run: Run) -> None:
        self.told.append(("end", run.trainer.updates, None))


def ends_at(update: int) -> Any:
    return lambda run, metrics: metrics["updates"] == update


def test_watching_changes_nothing_and_ending_is_as_if_it_had_gone_on(tmp_path: Path, plain: Run) -> None:
    watcher, again = Watcher(), Watcher()
    run = trained(tmp_path, [watcher, ends_at(9)])
    assert run.metrics()[-1]["updates"] == 9 and run.trainer is None
    assert not run.folder.failed.exists() and not run.folder.running.exists()
    assert outcome(run.resume(callbacks=[again])) == outcome(plain)
    last = plain.metrics()[-1]["updates"]
    for told, updates, first in ((watcher.told, range(1, 10), 0), (again.told, range(10, last + 1), 9)):
        assert [(what, at) for what, at, _ in told] == [
            ("start", first),
            *(
                (what, at)
                for at in updates
                for what, due in (
                    ("evaluation", at % 6 == 0 or at == last),
                    ("update", True),
                    ("checkpoint", at % 4 == 0 or at == updates[-1]),
                )
                if due
            ),
            ("end", updates[-1]),
        ]
        lines = [line for line in plain.metrics() if line["updates"] in updates]
        assert [seen for what, _, seen in told if what == "update"] == lines
        means = [line["eval/return"] for line in lines if "eval/return" in line]
        assert [mean for what, _, mean in told if what == "evaluation"] == means


def test_callbacks_log_metrics_of_their_own(tmp_path: Path) -> None:
    def log(run: Run, metrics: dict[str, float]) -> None:
        metrics["user/double"] = torch.tensor(2.0) * metrics["updates"]
        metrics["time/user/clock"] = np.float32(0.5)

    seen = []
    run = trained(tmp_path, [log, lambda run, metrics: seen.append(metrics["user/double"]), ends_at(3)])
    assert [line["user/double"] for line in run.metrics()] == seen == [2.0, 4.0, 6.0]
    assert [line["time/user/clock"] for line in run.folder.read_timing()] == [0.5] * 3
    assert not any("time/user/clock" in line for line in run.metrics()), "what the machine decides is not in metrics.jsonl"


def test_the_end_can_hang_on_an_evaluation(tmp_path: Path) -> None:
    class Target:
        def on_evaluation(self, run: Run, evaluation: Any) -> np.bool_:
            return np.bool_(evaluation.mean > 0)

    assert trained(tmp_path, [Target()]).metrics()[-1]["updates"] == 6


def fails(run: Run, metrics: dict[str, float]) -> None:
    if metrics["updates"] == 5:
        raise KeyError("lost")


def test_a_run_that_a_callback_ended_is_not_taken_for_one_that_was_interrupted(tmp_path: Path) -> None:
    run = trained(tmp_path, [ends_at(2)])
    assert overview(run.folder).state == "ended"
    run.resume(callbacks=[ends_at(3)])
    assert overview(run.folder).state == "ended"
    run.resume()
    assert overview(run.folder).state == "done" and not run.folder.ended.exists()


def test_a_callback_that_raises_ends_the_training_and_loses_nothing(tmp_path: Path, plain: Run) -> None:
    with pytest.raises(CallbackError) as caught:
        trained(tmp_path, [fails])
    (folder,) = tmp_path.iterdir()
    run = Run(RunFolder(folder))
    step = run.metrics()[-1]["steps"]
    said = str(caught.value).splitlines()
    assert said[0] == "the callback fails raised KeyError: 'lost'"
    assert said[1].startswith(f"  {__file__}, line ") and said[1].endswith('raise KeyError("lost")')
    assert said[2] == f"  saved at step {step:,}; go on with: fugu.Run({str(folder)!r}).resume(callbacks=[...])"
    assert said[3] == f"  or without callbacks: fugu train --resume {folder}"
    assert isinstance(caught.value.__cause__, KeyError)
    assert outcome(run.resume()) == outcome(plain)


def test_ctrl_c_in_what_a_callback_trains_loses_nothing_of_its_own_training(tmp_path: Path, plain: Run) -> None:
    def trains(run: Run, metrics: dict[str, float]) -> None:
        if metrics["updates"] == 6:
            raise Interrupted(signal.SIGINT, run, 0)

    with pytest.raises(Interrupted):
        trained(tmp_path, [trains])
    (folder,) = tmp_path.iterdir()
    assert int(find(folder / "checkpoints").name.removeprefix("step_")) == Run(RunFolder(folder)).metrics()[-1]["steps"]
    assert outcome(Run(RunFolder(folder)).resume()) == outcome(plain)


@pytest.mark.parametrize("method", ["on_start", "on_update", "on_checkpoint", "on_evaluation", "on_end"])
def test_the_message_names_the_method_that_raised_and_others_still_hear_of_the_end(tmp_path: Path, method: str) -> None:
    def bad(self: Any, run: Run, *rest: Any) -> None:
        raise SystemExit("no")

    kind = type("Bad", (), {method: bad})
    watcher = Watcher()
    with pytest.raises(CallbackError, match=rf"Bad\.{method} raised SystemExit: no"):
        trained(tmp_path, [watcher, kind()], steps=64 * 8)
    assert [what for what, *_ in watcher.told].count("end") == 1


def test_an_error_of_on_end_does_not_hide_the_one_that_ended_the_training(tmp_path: Path) -> None:
    class End:
        def on_end(self, run: Run) -> None:
            raise ValueError("second")

    with (
        pytest.raises(CallbackError, match="KeyError: 'lost'"),
        pytest.warns(RuntimeWarning, match=r"End.on_end raised .*second"),
    ):
        trained(tmp_path, [fails, End()])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda run, metrics: metrics.update(mine=1.0), "logged 'mine'; a name of its own begins with user/"),
        (lambda run, metrics: metrics.update({"user/a": "text"}), "logged user/a='text'; log a number"),
        (lambda run, metrics: metrics.update(steps=0), "changed 'steps', which is the training's"),
        (lambda run, metrics: metrics.clear(), "changed 'episodes', which is the training's"),
        (lambda run, metrics: 0.5, "returned 0.5; return True to end the training"),
    ],
)
def test_what_callbacks_may_not_do_is_one_message_and_does_not_reach_the_metrics(tmp_path: Path, wrong: Any, said: str) -> None:
    with pytest.raises(CallbackError, match=said):
        trained(tmp_path, [wrong], **{"eval.every": None})
    (line,) = fugu.Run("latest", tmp_path).metrics()
    assert line["steps"] > 0 and not {"mine", "user/a"} & line.keys()


class Misspelt:
    def on_updated(self, run: Run, metrics: dict[str, float]) -> None: ...


class Few:
    def on_update(self, metrics: dict[str, float]) -> None: ...


class Later:
    async def on_start(self, run: Run) -> None: ...


@pytest.mark.parametrize(
    ("callbacks", "said"),
    [
        ([Misspelt()], "Misspelt.*has on_updated, which is never called. Did you mean 'on_update'"),
        ([Few()], r"called as on_update\(run, metrics\), but takes \(metrics: .*write def on_update\(self, run, metrics\)"),
        ([Watcher], r"callbacks\[0\] \(Watcher\) is a class; give an object of it: Watcher\(\)"),
        ([Watcher(), 3], r"callbacks\[1\] \(3\) is neither a function f\(run, metrics\) nor an object with any .*on_end"),
        ([lambda run: None], r"called as f\(run, metrics\), but takes \(run\); write def f\(run, metrics\)"),
        ([Later()], "is async, and nothing would await it; write def"),
        (fails, r"must be a list; write callbacks=\[...\]"),
    ],
)
def test_wrong_callbacks_are_refused_before_training(tmp_path: Path, plain: Run, callbacks: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        trained(tmp_path / "runs", callbacks)
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ConfigError, match=said):
        plain.resume(steps=9999, callbacks=callbacks)


# --- the learning rate ---


class Falling:
    """A learning rate of one's own: half of it every third update."""

    def on_start(self, run: Run) -> None:
        if run.trainer.learning_rate is None:
            run.trainer.learning_rate = 1e-2

    def on_update(self, run: Run, metrics: dict[str, float]) -> bool:
        if metrics["updates"] % 3 == 0:
            run.trainer.learning_rate /= 2
        return bool(metrics["updates"] == 16)


def test_a_learning_rate_that_a_callback_sets_holds_and_goes_on_after_a_resume(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", [Falling()])
    assert [line["learning_rate"] for line in whole.metrics()] == [1e-2 / 2 ** (update // 3) for update in range(16)]
    cut = trained(tmp_path / "cut", [Falling(), ends_at(10)])
    assert outcome(cut.resume(callbacks=[Falling()])) == outcome(whole)
    with pytest.warns(RuntimeWarning, match=r"learning rate to 0\.0003125; without callbacks it is that of optimizer.schedule"):
        before, after = cut.resume().metrics()[15:17]
    share = 1 - before["steps"] / cut.config.steps
    assert after["learning_rate"] == pytest.approx(cut.config.optimizer.learning_rate * share), "of the linear schedule"


@pytest.mark.parametrize("settings", [BASE, device_config("cpu")], ids=["attended", "unattended"])
def test_nothing_is_learned_at_a_rate_of_zero(settings: Any) -> None:
    trainer = make_trainer(settings)
    try:
        trainer.watch(Callbacks([lambda run, metrics: None]))
        trainer.start()
        assert (trainer.unattended is None) == (settings is BASE)
        weights = [p.detach().clone() for p in trainer.algorithm.policy.parameters()]

        def changed() -> bool:
            return any(not torch.equal(a, b) for a, b in zip(weights, trainer.algorithm.policy.parameters(), strict=True))

        with Interrupt() as interrupt:
            trainer.learning_rate = 0.0
            assert trainer.update(interrupt)["learning_rate"] == 0.0 and not changed()
            trainer.learning_rate = None
            assert trainer.update(interrupt)["learning_rate"] > 0.0 and changed()
        if trainer.unattended is not None:
            trainer.learning_rate = 0.25
            rate = trainer.engine.optimizer.set_progress(torch.tensor(0.5))
            trainer.learning_rate = 0.125
            assert isinstance(rate, torch.Tensor), "a recording reads it anew each time"
            assert trainer.engine.optimizer.set_progress(torch.tensor(0.5)).item() == 0.125
        with pytest.raises(ConfigError, match="learning_rate=-1 must be a finite number"):
            trainer.learning_rate = -1
    finally:
        trainer.close()


def test_on_a_device_callbacks_are_told_of_the_looks_that_the_config_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "LOOK_SECONDS", 0.0)  # the clock decides a look after every update
    monkeypatch.setattr(capture, "LEAST_LOOKS", 4)
    trainer, told, reported = make_trainer(device_config("cpu")), [], []
    trainer.watch(Callbacks([lambda run, metrics: told.append(metrics["updates"]) or len(told) == 2]))
    try:
        trainer.start()
        trainer.run(lambda metrics: reported.append(metrics["updates"]), Interrupt())
    finally:
        trainer.close()
    assert told == [3, 6] and reported == [1, 2, 3, 4, 5, 6], "and True ended it at such a look"


# --- ranks ---


def test_what_one_ranks_callback_decides_ends_all() -> None:
    made: dict[int, Any] = {}
    half = dataclasses.replace(BASE, vector=dataclasses.replace(BASE.vector, num_envs=8))

    def make(ranks: Any) -> None:
        made[ranks.rank] = trainer = make_trainer(half, ranks=ranks)
        trainer.watch(Callbacks([lambda run, metrics: ranks.rank == 1 and metrics["updates"] == 3]))
        trainer.start()

    def train(ranks: Any) -> int:
        made[ranks.rank].run(lambda metrics: None, Interrupt())
        return made[ranks.rank].updates

    try:
        assert run_together(2, train, make) == [3, 3]
    finally:
        for trainer in made.values():
            trainer.close()
