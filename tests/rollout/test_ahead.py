"""Overlap: which weights play which batch does not depend on timing, and a checkpoint changes nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fugu.algorithm.find import names
from fugu.errors import ConfigError, EnvError
from fugu.rollout.acting import Act, Actor, Seen
from fugu.rollout.ahead import PREFIX, Ahead
from fugu.rollout.batch import Batch
from fugu.rollout.pays import Pays
from fugu.rollout.source import Experience, Source, Stopped
from fugu.trainer import checkpoint
from fugu.trainer.build import make_trainer
from fugu.trainer.config import CheckpointConfig, TrainConfig
from fugu.trainer.interrupt import Interrupt
from fugu.trainer.loop import Trainer
from fugu.vector.config import VectorConfig
from tests.contract.test_algorithms import BASE, CASES

HERE = {name: settings for name, settings in CASES.items() if name != "own" and "data" not in settings}
"""those that play; recorded episodes are only read"""


def config_of(case: str, **changes: Any) -> TrainConfig:
    plain = TrainConfig(algorithm=case)
    settings = {**BASE, **HERE[case], **changes}
    for name, value in settings.items():
        if isinstance(value, dict) and name != "env_kwargs":
            settings[name] = dataclasses.replace(getattr(plain, name), **value)
    return TrainConfig(algorithm=case, **settings)


@contextlib.contextmanager
def trainer_of(config: TrainConfig, folder: Path | None = None, **ahead: Any) -> Iterator[Trainer]:
    """A trainer whose ``Ahead``, if it has one, is as ``ahead`` says."""
    with pytest.MonkeyPatch.context() as patch:
        if ahead:
            patch.setattr("fugu.rollout.ahead.Ahead.__init__", _changed(Ahead.__init__, ahead))
        trainer = make_trainer(config, folder)
    try:
        yield trainer
    finally:
        trainer.close()


def _changed(init: Callable[..., None], ahead: Mapping[str, Any]) -> Callable[..., None]:
    return lambda self, *args, **kwargs: init(self, *args, **{**kwargs, **ahead})


def train(
    config: TrainConfig, folder: Path | None = None, resume: Path | None = None, updates: int = 10**9, **ahead: Any
) -> Any:
    """Metrics of each update, and a hash of the weights at the end."""
    with trainer_of(config, folder, **ahead) as trainer:
        trainer.load(resume) if resume else trainer.start()
        seen: list[dict[str, float]] = []

        def report(metrics: dict[str, float]) -> None:
            seen.append(metrics)
            if len(seen) == updates:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            trainer.run(report, Interrupt())
        found = hashlib.blake2b()
        for parameter in trainer.algorithm.parameters():
            found.update(parameter.detach().numpy().tobytes())
        return seen, found.hexdigest()


@pytest.mark.parametrize("case", HERE)
def test_without_lag_it_learns_what_is_learned_without_a_thread(case):
    config = config_of(case)
    config = dataclasses.replace(config, steps=config.steps // 3)
    assert train(dataclasses.replace(config, overlap=True), lag=0) == train(config)


@pytest.mark.parametrize("case", HERE)
def test_the_same_is_learned_with_and_without_a_thread(case):
    config = config_of(case, overlap=True)
    config = dataclasses.replace(config, steps=config.steps // 3)
    assert train(config) == train(config, threaded=False)


def test_there_is_a_case_for_every_algorithm():
    assert {*HERE} == {name for name in names() if "data" not in CASES[name]}


@pytest.mark.parametrize("env", ["cartpole", "CartPole-v1"])
def test_random_delays_change_nothing(env, monkeypatch):
    config = config_of("ppo", env=env, overlap=True, vector=VectorConfig(num_envs=16))
    found = [train(config)[1]]
    drawn = random.Random(3)
    play, copied = Ahead._play, Ahead._copied

    def slowly(function: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*args: Any) -> Any:
            time.sleep(drawn.random() * 0.02)
            return function(*args)

        return wait

    monkeypatch.setattr(Ahead, "_play", slowly(play))
    monkeypatch.setattr(Ahead, "_copied", slowly(copied))
    found.append(train(config)[1])
    assert len({*found}) == 1


def test_every_batch_but_the_first_is_played_by_weights_one_update_old():
    rows, _ = train(config_of("ppo", overlap=True))
    assert [row["policy/lag"] for row in rows] == [0.0] + [1.0] * (len(rows) - 1)


@pytest.mark.parametrize("case", ["ppo", "ppo, environments that start anew", "grpo", "self_play", "sac", "dreamer"])
def test_a_run_that_is_killed_and_resumed_equals_one_that_is_not(case, tmp_path):
    changes = {"env": "CartPole-v1", "vector": VectorConfig(num_envs=16, backend="serial")} if "anew" in case else {}
    config = config_of(case.partition(",")[0], overlap=True, checkpoint=CheckpointConfig(every=1 if changes else 3), **changes)
    whole, weights = train(config, tmp_path / "whole")
    cut, _ = train(config, tmp_path / "cut", updates=5)
    path = checkpoint.find(tmp_path / "cut")
    saved = checkpoint.load(path)
    kept = any(name.startswith(f"{PREFIX}column") for name in saved.tensors.get("envs", {}))
    assert kept == ("anew" not in case)
    again, same_weights = train(config, tmp_path / "cut", resume=path)
    assert cut == whole[:5] and again == whole[saved.state["updates"] :] and same_weights == weights


def test_a_run_that_a_signal_ended_goes_on_as_if_it_had_not(tmp_path):
    config = config_of("ppo", overlap=True, checkpoint=CheckpointConfig(every=100))
    whole, weights = train(config)
    seen = []

    def report(metrics: dict[str, float]) -> None:
        seen.append(metrics)
        if len(seen) == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    with trainer_of(config, tmp_path) as trainer, Interrupt() as interrupt:
        trainer.start()
        trainer.run(report, interrupt)
    assert interrupt.asked == signal.SIGTERM and len(seen) == 4
    again, same_weights = train(config, tmp_path, resume=checkpoint.find(tmp_path))
    assert again == whole[4:] and same_weights == weights


# --- a source that shows what it is given ---


class Numbered(nn.Module):
    """Every weight is the number of updates."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1 << 16))

    def act(self, seen: Seen) -> Act:
        return Act(self.weight.detach().clone())


class Slow(Source):
    """Looks at the weights many times for a batch."""

    device = torch.device("cpu")
    segments, horizon = 2, 3

    def __init__(self) -> None:
        self.seen: list[Tensor] = []
        self.error: BaseException | None = None
        self.release = threading.Event()
        self.release.set()
        self.reward = torch.zeros(2, 3)
        self.closed = False

    def next(self, actor: Actor, stop: Callable[[], bool] = bool) -> Experience:
        for _ in range(20):
            self.seen.append(actor.act(None).env_action.unique())  # type: ignore[arg-type]
        while not self.release.wait(0.001):
            if stop():
                raise Stopped
        if self.error is not None:
            raise self.error
        self.reward += 1  # in the same memory each time
        return Experience(Batch({"reward": self.reward}), 6, actor.version)

    def close(self) -> None:
        self.closed = True


def test_weights_are_never_seen_while_they_are_written():
    module, source = Numbered(), Slow()
    ahead = Ahead(source, module)
    for version in range(40):
        found = ahead.next(Actor(module.act, version))
        assert found.version == max(0, version - 1)
        with torch.no_grad():
            for part in module.weight.split(1 << 12):
                part.fill_(float(version + 1))
    ahead.close()
    assert all(len(each) == 1 for each in source.seen)


@pytest.mark.usefixtures("no_leaks")
def test_a_batch_stays_what_it_is_while_the_next_is_played():
    module, source = Numbered(), Slow()
    ahead = Ahead(source, module)
    first = ahead.next(Actor(module.act, 0))
    ahead._pilot.wait(5)
    assert source.reward.eq(2).all() and first.batch["reward"].eq(1).all()
    assert ahead.next(Actor(module.act, 1)).batch["reward"].eq(2).all()
    ahead.close()


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("error", [EnvError("broken"), ValueError("of a network"), Stopped()])
def test_what_is_raised_while_playing_comes_out_of_the_next_call(error):
    module, source = Numbered(), Slow()
    ahead = Ahead(source, module)
    ahead.next(Actor(module.act, 0))
    ahead._pilot.wait(5)
    source.error = error
    ahead.next(Actor(module.act, 1))
    with pytest.raises(type(error)) as found:
        ahead.next(Actor(module.act, 2))
    assert found.value is error
    assert ahead.snapshot() == {}
    source.error = None
    assert ahead.next(Actor(module.act, 2)).version == 2  # it goes on if it is asked to
    ahead.close()
    assert source.closed


@pytest.mark.usefixtures("no_leaks")
def test_one_that_is_asked_to_stop_stops_where_it_waits():
    module, source = Numbered(), Slow()
    ahead = Ahead(source, module)
    ahead.next(Actor(module.act, 0))
    ahead._pilot.wait(5)
    source.release.clear()
    asked = threading.Event()
    ahead.next(Actor(module.act, 1), asked.is_set)
    threading.Timer(0.05, asked.set).start()
    with pytest.raises(Stopped):
        ahead.next(Actor(module.act, 2), asked.is_set)
    assert ahead.snapshot() == {}
    ahead.close()


@pytest.mark.usefixtures("no_leaks")
def test_starting_anew_gives_up_what_is_under_way():
    module, source = Numbered(), Slow()
    ahead = Ahead(source, module)
    ahead.next(Actor(module.act, 0))
    ahead._pilot.wait(5)
    source.release.clear()
    ahead.next(Actor(module.act, 1))
    source.restart = lambda seed: source.release.set()  # type: ignore[method-assign]
    ahead.restart(7)
    assert ahead.next(Actor(module.act, 5)).version == 5
    ahead.close()


@pytest.mark.parametrize(("cores", "pays"), [(1, False), (2, True)])
def test_it_says_once_if_it_does_not_pay(cores, pays, monkeypatch, recwarn):
    now = 0.0
    monkeypatch.setattr("fugu.rollout.pays.time.perf_counter", lambda: now)
    judge = Pays()
    for _ in range(30):
        alone, play, learn = judge.alone, 0.03, 0.02
        judge.played(play)
        now += play if alone else 0.0
        judge.handed_over()
        now += learn
        if not alone:
            now += play if cores == 1 else max(0.0, play - learn)
        judge.learned()
    if pays:
        assert not recwarn.list
    else:
        assert [str(each.message) for each in recwarn.list] == [
            "--overlap does not pay here: a batch takes 30.0 ms to play and 20.0 ms to learn from, and both side by side 50.0 ms, "
            "because they share the cores of this machine; it is for environments that wait and for learning on a GPU"
        ]


def test_the_time_that_the_thread_waits_is_known():
    module, source = Numbered(), Slow()
    ahead = Ahead(source, module)
    for version in range(3):
        ahead.next(Actor(module.act, version))
        ahead._pilot.wait(60)
        time.sleep(0.01)
    assert ahead.waited()["wait_learner"] >= 0.01
    assert ahead.waited()["wait_learner"] == 0
    ahead.close()


def test_an_algorithm_with_a_source_of_its_own_is_refused():
    config = TrainConfig(algorithm="tests.rollout.test_source:Rewarded", overlap=True, vector=VectorConfig(num_envs=4))
    from fugu.rollout.onpolicy import OnPolicy

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fugu.rollout.envs.Envs.on_policy", lambda self, algorithm: OnPolicy(self.vec, self.horizon))
        with pytest.raises(ConfigError, match="brings a source of its own"):
            make_trainer(config)


@pytest.mark.parametrize(
    ("name", "spoil", "match"),
    [
        ("action", lambda column: column.fill_(1000), "holds actions outside"),
        ("mask", lambda column: column[:, :0], "has no rows"),
        ("bootstrap", lambda column: column.fill_(float("nan")), "with NaN"),
        ("value", lambda column: column[:3], r"is float32\[3, 8\] instead of"),
    ],
)
def test_a_batch_that_cannot_have_been_played_is_refused(name, spoil, match):
    with trainer_of(config_of("ppo", overlap=True)) as trainer:
        trainer.start()
        trainer.engine.collect(bool)
        saved = trainer.source.snapshot()
        trainer.source.restore(saved)
        whole = f"{PREFIX}column {name}"
        with pytest.raises(ConfigError, match=match):
            trainer.source.restore({**saved, whole: spoil(saved[whole].clone())})
