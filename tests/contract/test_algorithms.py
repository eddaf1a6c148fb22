"""Every algorithm keeps the contract, one that a user wrote included: nothing here knows more of it than its settings."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fugu.algorithm.contract import Algorithm
from fugu.algorithm.find import algorithm_class, names
from fugu.cli import new_algorithm
from fugu.policy.config import PolicyConfig
from fugu.policy.distribution import Distribution
from fugu.ranks import ALONE, Ranks
from fugu.rollout.acting import generators
from fugu.rollout.batch import Batch
from fugu.rollout.envs import OneEnv, blank
from fugu.trainer import checkpoint
from fugu.trainer.build import make_trainer
from fugu.trainer.config import CheckpointConfig, EvalConfig, OptimizerConfig, TrainConfig
from fugu.trainer.interrupt import Interrupt
from fugu.trainer.loop import Trainer
from fugu.trainer.update import added_up
from fugu.vector.config import VectorConfig
from tests.algorithm.recorded import recording
from tests.trainer.fake_ranks import run_together

TEXTS = {
    "env": "reverse",
    "env_kwargs": {"partial": 1.0, "shortest": 2},
    "steps": 16 * 10,
    "horizon": 1,
    "minibatch": 8,
    "policy": PolicyConfig(net="transformer", width=16, layers=1),
}
RECORDED: dict[str, Any] = {"steps": 40, "epochs": 1, "data": {"together": 4}}
"""learns from recorded episodes of its environment, of which ``recording`` has the files; steps are gradient steps"""
CASES: Mapping[str, Mapping[str, Any]] = {
    "ppo": {"ppo": {"normalize_reward": True, "normalize_value": True, "entropy_final": 0.0}},
    "safe_ppo": {"env": "knapsack_cmdp", "safe": {"limit": (5.0,)}, "ppo": {"normalize_reward": True, "normalize_value": True}},
    "mappo": {"env": "foraging", "steps": 10 * 16 * 8 * 2, "mappo": {"critic": "observations", "value_norm": "popart"}},
    "self_play": {"env": "connect4", "steps": 10 * 16 * 8, "self_play": {"pool": 2, "snapshot_every": 3}},
    "grpo": {
        "horizon": 30,
        "minibatch": 240,
        "steps": 16 * 30 * 8,
        "grpo": {"group_size": 4, "reference_coef": 0.1, "scale": "batch"},
    },
    "token_ppo": TEXTS,
    "dreamer": {
        "minibatch": None,
        "epochs": 1,
        "replay": {"size": 4096, "start": 100, "ratio": 1, "every": 8},
        "dreamer": {"size": "tiny", "ahead": 2, "starts": 0},
        "optimizer": OptimizerConfig(name="laprop", learning_rate=1e-3),
    },
    "sac": {"replay": {"size": 600, "start": 40, "ratio": 2, "every": 2, "priority": 0.6, "newest": 0.25}},
    "a2c": {},
    "own": {},
    "bc": RECORDED,
    "dt": {**RECORDED, "policy": PolicyConfig(width=8, layers=2, attention_heads=2), "dt": {"dropout": 0.0, "longest": 50}},
    "iql": {**RECORDED, "iql": {"tau": 0.1}},
    "td3bc": {**RECORDED, "env": "pendulum", "td3bc": {"delay": 1, "noise": 0.0}},
}
"""algorithm -> what differs from BASE; own: the file that ``fugu new algorithm`` writes"""

CHANGED = {
    "ppo": "ppo.clip=0.1",
    "own": "my_algo.entropy=0.02",
    "a2c": "a2c.entropy=0.02",
    "sac": "sac.tau=0.1",
    "dreamer": "dreamer.entropy=0.001",
    "safe_ppo": "safe.ki=0.1",
    "bc": "bc.top=0.5",
    "dt": "dt.dropout=0.2",
    "iql": "iql.beta=1",
    "td3bc": "td3bc.alpha=1",
}
"""algorithm -> a setting of its own that a run may change when it goes on"""

BASE: dict[str, Any] = {
    "env": "cartpole",
    "steps": 10 * 16 * 8,
    "horizon": 8,
    "minibatch": 64,
    "epochs": 2,
    "threads": 1,
    "vector": VectorConfig(num_envs=16, num_workers=1),
    "policy": PolicyConfig(hidden=(16,), normalize_observation=True),
    "optimizer": OptimizerConfig(learning_rate=1e-3),
    "checkpoint": CheckpointConfig(every=3),
}


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The algorithm that ``fugu new algorithm`` writes, by name."""
    file = tmp_path_factory.mktemp("own") / "my_algo.py"
    file.write_text(new_algorithm.text(file.name, "MyAlgo"))
    return f"{file}:MyAlgo"


@pytest.fixture(params=CASES)
def config(request: pytest.FixtureRequest, own: str) -> TrainConfig:
    case = request.param
    plain = TrainConfig(algorithm=own if case == "own" else case)
    settings = {**BASE, **CASES[case]}
    if "data" in settings:
        settings["data"] = {**settings["data"], "path": recording(settings["env"])}
    for name, value in settings.items():
        if isinstance(value, dict) and name != "env_kwargs":
            settings[name] = dataclasses.replace(getattr(plain, name), **value)
    return TrainConfig(algorithm=plain.algorithm, **settings)


@contextlib.contextmanager
def trainer_of(config: TrainConfig, folder: Path | None = None, ranks: Ranks = ALONE) -> Iterator[Trainer]:
    trainer = make_trainer(config, folder, ranks=ranks)
    try:
        yield trainer
    finally:
        trainer.close()


def train(config: TrainConfig, folder: Path | None = None, resume: Path | None = None, updates: int = 10**9) -> Any:
    """Metrics of each update, and the weights at the end. After ``updates`` it ends as abruptly as by a kill."""
    with trainer_of(config, folder) as trainer:
        trainer.load(resume) if resume else trainer.start()
        seen: list[dict[str, float]] = []

        def report(metrics: dict[str, float]) -> None:
            seen.append(metrics)
            if len(seen) == updates:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            trainer.run(report, Interrupt())
        return seen, {name: p.detach().clone() for name, p in trainer.algorithm.named_parameters()}


def same(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_there_is_a_case_for_every_algorithm():
    assert {*names(), "own"} == {*CASES}


def test_no_algorithm_inherits_from_another_and_the_contract_is_small():
    members = {name for name in vars(Algorithm) if not name.startswith("_")}
    assert members == {"Config", "build", "source", "act", "prepare", "loss", "enough", "finish", "merit", "restarted"} | {
        "losses",
        "rates",
    }
    source = inspect.getsource(Algorithm)
    bodies = {name: source.partition(f"def {name}(")[2].partition("    def ")[0] for name in members}
    needed = {name for name, body in bodies.items() if "raise NotImplementedError" in body}
    assert needed == {"act", "loss"}
    for name in names():
        assert algorithm_class(name).__bases__ == (Algorithm,)


def test_the_seed_decides_everything(config):
    short = dataclasses.replace(config, steps=config.steps // 3)
    first, again, other = (train(dataclasses.replace(short, seed=seed)) for seed in (1, 1, 2))
    assert first[0] == again[0] and same(first[1], again[1])
    assert first[0] != other[0]


def test_a_run_that_is_killed_and_resumed_equals_one_that_is_not(config, tmp_path):
    whole, weights = train(config, tmp_path / "whole")
    assert len(whole) >= 8
    cut, _ = train(config, tmp_path / "cut", updates=5)
    again, same_weights = train(config, tmp_path / "cut", resume=checkpoint.find(tmp_path / "cut"))
    assert cut == whole[:5] and again == whole[3:]
    assert same(weights, same_weights)


def test_evaluating_meanwhile_changes_nothing_of_what_is_learned(config, tmp_path):
    short = dataclasses.replace(config, steps=config.steps // 2)
    plain, weights = train(short, tmp_path / "plain")
    watched, same_weights = train(dataclasses.replace(short, eval=EvalConfig(every=2, episodes=4)), tmp_path / "watched")
    assert same(weights, same_weights)
    found = [row for row in watched if "eval/return" in row]
    assert len(found) == -(-len(watched) // 2) and all(math.isfinite(row["eval/return"]) for row in found)
    assert plain == [{name: value for name, value in row.items() if not name.startswith("eval/")} for row in watched]


def test_what_masked_rows_hold_reaches_neither_a_weight_nor_a_statistic(config):
    with trainer_of(dataclasses.replace(config, minibatch=None, epochs=1)) as trainer:
        trainer.start()
        for _ in range(2):
            batch = trainer.engine.collect(bool).batch
        # some episodes end before the last row, so that it holds what nobody acted on
        over = torch.arange(0, batch.segments, 4)
        mask, terminated = batch["mask"].clone(), batch["terminated"].clone()
        mask[over, -1], terminated[over, -2:] = False, True
        said = [name for name in ("logprob", "value", "cost_value") if name in batch and batch.horizon > 1]
        found = []
        for spoil in (0.0, math.nan):
            rows = {name: batch[name].clone() for name in said}
            for column in rows.values():
                column[over, -1] = spoil
            found.append(_learned(config, batch.also(mask=mask, terminated=terminated, **rows)))
    assert all(tensor.isfinite().all() for tensor in found[1].values())
    assert same(*found)


def test_greedy_acting_draws_nothing_and_is_the_same_each_time(config):
    with trainer_of(config) as trainer:
        agents = trainer.source.vec or OneEnv(trainer.source.data.spec)
        seen = dataclasses.replace(blank(agents, trainer.source.device, 2), training=False, greedy=True)
        before = {name: generator.get_state() for name, generator in generators(trainer.algorithm).items()}
        first, again = (trainer.algorithm.act(seen).env_action.clone() for _ in range(2))
        assert torch.equal(first, again)
        for name, generator in generators(trainer.algorithm).items():
            assert torch.equal(before[name], generator.get_state())


def test_a_batch_may_be_one_minibatch(config):
    seen, _ = train(dataclasses.replace(config, minibatch=None, epochs=1, steps=config.steps // 3))
    assert all(math.isfinite(value) for row in seen for value in row.values())


def test_settings_may_change_when_a_run_goes_on_unless_weights_hang_on_them(config, own, tmp_path):
    train(config, tmp_path, updates=5)
    own_setting = CHANGED.get("own" if config.algorithm == own else config.algorithm)
    optimizer = dataclasses.replace(config.optimizer, learning_rate=5e-4)
    changed = dataclasses.replace(config, optimizer=optimizer, epochs=1, minibatch=None)
    if own_setting is not None:
        section, name, value = own_setting.replace("=", ".", 1).split(".", 2)
        part = dataclasses.replace(getattr(changed, section), **{name: float(value)})
        changed = dataclasses.replace(changed, **{section: part})
    seen, _ = train(changed, tmp_path, resume=checkpoint.find(tmp_path))
    assert seen[0]["learning_rate"] < 5e-4 and seen[-1]["steps"] >= config.steps


# --- ranks ---


def test_two_ranks_learn_from_their_halves_what_one_learns_from_all(config, monkeypatch):
    if config.algorithm == "dreamer":  # draws while it learns: halves draw something else
        monkeypatch.setattr("fugu.policy.rssm.uniform", lambda *shape, like, generator: torch.full(shape, 0.5))
        monkeypatch.setattr("fugu.ops.roll.takes", lambda model, deter: False)
        monkeypatch.setattr(Distribution, "sample", lambda self, params, mask, generator: self.mode(params, mask))
    with trainer_of(dataclasses.replace(config, minibatch=None)) as trainer:
        trainer.start()
        batch = trainer.engine.collect(bool).batch
        batch = Batch({name: column.clone() for name, column in batch.columns.items()}, batch.once)
    whole = dataclasses.replace(config, minibatch=None)
    weights, metrics = _outcome(whole, batch, ALONE)
    half = dataclasses.replace(whole, vector=VectorConfig(num_envs=8, num_workers=1))
    middle = batch.segments // 2
    parts = [_renumbered(batch.part(0, middle)), _renumbered(batch.part(middle, batch.segments))]
    made: dict[int, Trainer] = {}
    lock = contextlib.ExitStack()

    def learn(ranks: Ranks) -> Any:
        return _learn(made[ranks.rank], parts[ranks.rank], ranks)

    with lock:
        found = run_together(
            2, learn, lambda ranks: made.update({ranks.rank: lock.enter_context(trainer_of(half, ranks=ranks))})
        )
    for theirs, their_metrics in found:
        for name, weight in weights.items():
            torch.testing.assert_close(
                theirs[name], weight, rtol=2e-3, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}"
            )
        for name, value in metrics.items():
            if not name.startswith("self_play/"):  # games are rated in another order
                assert math.isclose(their_metrics[name], value, rel_tol=2e-3, abs_tol=2e-4), (name, their_metrics[name], value)


def _outcome(config: TrainConfig, batch: Batch, ranks: Ranks) -> Any:
    with trainer_of(config, ranks=ranks) as trainer:
        return _learn(trainer, batch, ranks)


def _learn(trainer: Trainer, batch: Batch, ranks: Ranks) -> Any:
    """Prepare, learn from and finish a batch. Returns weights and statistics, and the metrics."""
    engine, seen = trainer.engine, []
    ready = engine.prepare(batch, 0.3)

    def watch(minibatch: Batch, loss: torch.Tensor, metrics: dict[str, torch.Tensor]) -> bool:
        norm = metrics.pop("loss/grad_norm")
        seen.append({**added_up(metrics, ranks=ranks)[0], "loss/grad_norm": norm})
        return False

    last = engine.learn(ready, watch)
    tensors = dict(trainer.algorithm.named_parameters()) | dict(trainer.algorithm.named_buffers())
    kept = {name: tensor.detach().clone() for name, tensor in tensors.items() if "running" not in name}
    return kept, {name: float(value) for row in (*seen, last) for name, value in row.items()}


def _learned(config: TrainConfig, batch: Batch) -> dict[str, torch.Tensor]:
    tensors, _ = _outcome(dataclasses.replace(config, minibatch=None, epochs=1), batch, ALONE)
    return tensors


def _renumbered(batch: Batch) -> Batch:
    """Groups of episodes counted from 0 in each half."""
    return batch.also(group=batch["group"] - batch["group"].min()) if "group" in batch else batch
