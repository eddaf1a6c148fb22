"""Nodes that act by themselves: the batches of one process, whatever the timing, and what happens when a node is lost."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import random
import time
import warnings

import numpy as np
import pytest
import torch

from fugu.algorithm.config import PPOConfig
from fugu.errors import ConfigError
from fugu.rollout.config import RolloutConfig
from fugu.rollout.fleet_node import FleetNode
from fugu.trainer import checkpoint
from fugu.trainer.build import make_trainer
from fugu.trainer.config import CheckpointConfig, TrainConfig
from fugu.trainer.interrupt import Interrupt
from fugu.vector.config import VectorConfig
from tests.vector.ray_here import ray_here  # noqa: F401

BASE = TrainConfig(
    env="cartpole",
    steps=10 * 16 * 8,
    horizon=8,
    minibatch=32,
    epochs=2,
    threads=1,
    vector=VectorConfig(num_envs=16, num_workers=1),
    ppo=PPOConfig(normalize_reward=True, normalize_value=True),
    checkpoint=CheckpointConfig(every=4),
)
PYTHON = dataclasses.replace(BASE, env="CartPole-v1", vector=VectorConfig(num_envs=16, backend="serial"))


def on_nodes(config, nodes, lag=0):
    return dataclasses.replace(config, rollout=RolloutConfig(nodes=nodes, lag=lag))


def train(config, folder=None, resume=None, updates=10**9, watch=lambda trainer, metrics: None):
    """Metrics of each update, and a hash of everything that was learned."""
    trainer = make_trainer(config, folder)
    try:
        trainer.load(resume) if resume else trainer.start()
        seen = []

        def report(metrics):
            seen.append(metrics)
            watch(trainer, metrics)
            if len(seen) == updates:
                raise KeyboardInterrupt  # as abrupt as a kill: nothing is saved

        with contextlib.suppress(KeyboardInterrupt):
            trainer.run(report, Interrupt())
        content = b"".join(p.numpy().tobytes() for p in trainer.algorithm.state_dict().values() if torch.is_tensor(p))
        return seen, hashlib.sha256(content).hexdigest()
    finally:
        trainer.close()


CASES = {
    "native": BASE,
    "python": PYTHON,
    "passes": dataclasses.replace(BASE, passes=2, horizon=4, minibatch=32),
    "lstm": dataclasses.replace(BASE, policy=dataclasses.replace(BASE.policy, core="lstm", core_size=8, hidden=(16,))),
}


@pytest.mark.parametrize("config", CASES.values(), ids=CASES.keys())
@pytest.mark.usefixtures("ray_here")
def test_one_node_without_lag_learns_bit_for_bit_what_one_process_learns(config, tmp_path):
    expected = train(config, tmp_path / "here")
    assert train(on_nodes(config, 1), tmp_path / "node") == expected


@pytest.mark.usefixtures("ray_here")
@pytest.mark.parametrize("lag", [0, 1])
def test_timing_makes_no_difference(lag, monkeypatch):
    seen = [train(on_nodes(BASE, 2, lag))]
    play = FleetNode.play

    def late(self, *arguments):
        time.sleep(random.random() / 50)
        return play(self, *arguments)

    monkeypatch.setattr(FleetNode, "play", late)
    seen.append(train(on_nodes(BASE, 2, lag)))
    assert seen[0] == seen[1]


@pytest.mark.usefixtures("ray_here")
def test_nodes_play_with_the_policy_that_is_lag_updates_old():
    lags = {0: [], 1: []}
    for lag, found in lags.items():
        train(on_nodes(BASE, 2, lag), updates=4, watch=lambda t, m, found=found: found.append(t.source.measured()["nodes/lag"]))
    assert lags == {0: [0, 0, 0, 0], 1: [0, 1, 1, 1]}


@pytest.mark.usefixtures("ray_here")
@pytest.mark.parametrize("config", [BASE, PYTHON], ids=["native", "python"])
def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(config, tmp_path):
    config = on_nodes(config, 2, lag=1)
    whole, expected = train(config, tmp_path / "whole")
    train(config, tmp_path / "cut", updates=6)
    saved = checkpoint.find(tmp_path / "cut")
    rest, found = train(config, tmp_path / "cut", resume=saved)
    assert found == expected and rest == whole[-len(rest) :] and len(rest) < len(whole)


def test_the_part_of_a_lost_node_is_masked_and_another_takes_its_place(ray_here):  # noqa: F811
    batches = []

    def watch(trainer, metrics):
        batches.append(trainer.source.measured())
        if len(batches) == 2:
            nodes = [actor for actor in ray_here.actors if actor._kind is FleetNode]
            nodes[1].end()

    trainer = make_trainer(on_nodes(BASE, 2))
    seen = []
    inner = trainer.source.next

    def following(*arguments):
        found = inner(*arguments)
        seen.append({name: found.batch[name].clone() for name in ("mask", "first", "obs")} | {"rows": found.rows})
        return found

    trainer.source.next = following
    try:
        trainer.start()
        with pytest.warns(RuntimeWarning, match="node 1 .* died .* the run cannot be repeated exactly"):
            trainer.run(lambda metrics: watch(trainer, metrics), Interrupt())
    finally:
        trainer.close()
    assert seen[1]["mask"][8:].any() and not seen[2]["mask"][8:].any() and seen[2]["mask"][:8].any()
    assert seen[2]["rows"] == int(seen[2]["mask"].sum())
    assert seen[3]["mask"][8:].any() and seen[3]["first"][8:, 0].all(), "new environments begin with first rows"
    assert [each["nodes/restarts"] for each in batches[1:4]] == [0, 1, 1]
    assert batches[2]["nodes/alive"] == 1 and batches[3]["nodes/alive"] == 2


def test_a_node_that_is_lost_with_a_batch_in_the_pipe(ray_here):  # noqa: F811
    def watch(trainer, metrics):
        if metrics["updates"] == 3:
            ray_here.actors[1].end()

    with pytest.warns(RuntimeWarning, match="node 1 .* died"):
        seen, _ = train(on_nodes(BASE, 2, lag=1), watch=watch)
    assert seen[-1]["steps"] >= BASE.steps


@pytest.mark.usefixtures("ray_here")
def test_groups_of_episodes_come_from_nodes():
    config = TrainConfig(
        env="CartPole-v1",
        algorithm="grpo",
        horizon=30,
        steps=600,
        threads=1,
        vector=VectorConfig(num_envs=8, backend="serial"),
        grpo=dataclasses.replace(TrainConfig(algorithm="grpo").grpo, group_size=4),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert train(on_nodes(config, 1)) == train(config)
        groups = []
        train(on_nodes(config, 2), updates=2, watch=lambda t, m: groups.append(m["steps"]))
        trainer = make_trainer(on_nodes(config, 2))
        try:
            trainer.start()
            batch = trainer.engine.collect(bool).batch
        finally:
            trainer.close()
    assert batch["group"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1] and len(groups) == 2
    lengths = batch["mask"].sum(1)
    assert batch.horizon == int(lengths.max()), "parts of unequal length are as long as the longest"


@pytest.mark.usefixtures("ray_here")
def test_another_number_of_nodes_starts_environments_anew_and_says_so(tmp_path):
    train(on_nodes(BASE, 2), tmp_path, updates=6)
    saved = checkpoint.find(tmp_path)
    with pytest.warns(RuntimeWarning, match="environments of 2 nodes, and there are 1"):
        train(on_nodes(BASE, 1), tmp_path, resume=saved)


@pytest.mark.usefixtures("ray_here")
def test_weights_are_never_torn():
    """Every weight of the policy that acts has the same number: its version."""
    seen = []
    config = on_nodes(dataclasses.replace(BASE, steps=40 * 128), 2, lag=1)
    trainer = make_trainer(config)
    play = FleetNode.play

    def watched(self, *arguments):
        found = play(self, *arguments)
        numbers = {float(n) for p in self._algorithm.policy.parameters() for n in (p.detach().min(), p.detach().max())}
        seen.append((arguments[2], numbers))
        return found

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(FleetNode, "play", watched)
        try:
            trainer.start()
            for version in range(30):
                for parameter in trainer.algorithm.policy.parameters():
                    parameter.fill_(version / 64)
                trainer.engine.updates = version
                trainer.engine.collect(bool)
        finally:
            trainer.close()
    assert len(seen) >= 60 and all(numbers == {version / 64} for version, numbers in seen)


def test_what_nodes_cannot_do_is_refused_with_what_to_type(ray_here):  # noqa: F811
    with pytest.raises(ConfigError, match=r"--rollout.nodes 2"):
        RolloutConfig(lag=1)
    with pytest.raises(ConfigError, match="leave one of the two out"):
        dataclasses.replace(on_nodes(BASE, 2), vector=VectorConfig(num_envs=4, backend="ray"))
    with pytest.raises(ConfigError, match="leave --overlap out"):
        dataclasses.replace(on_nodes(BASE, 2), overlap=True)
    with pytest.raises(ConfigError, match="try --rollout.nodes 16"):
        make_trainer(on_nodes(BASE, 32))
    with pytest.raises(ConfigError, match="--vector.backend ray"):
        make_trainer(on_nodes(TrainConfig(env="Pendulum-v1", algorithm="sac", vector=VectorConfig(num_envs=2)), 2))
    assert not ray_here.started and np.all([not actor._alive for actor in ray_here.actors])
