"""GRPO when things go wrong: sandboxes fail, nothing can be scored, a rollout is interrupted. Training goes on, or ends well."""

from __future__ import annotations

import dataclasses
import math

import gymnasium
import numpy as np
import pytest
import torch

from fugu.algorithm.config_episodes import GRPOConfig
from fugu.policy.config import PolicyConfig
from fugu.trainer import checkpoint
from fugu.trainer.build import make_trainer
from fugu.trainer.config import OptimizerConfig, TrainConfig
from fugu.trainer.interrupt import Interrupt
from fugu.vector.config import VectorConfig


class Judged(gymnasium.Env):
    """Two steps; 1 for choosing 1 in both. ``fault`` in one episode of three: ``nan`` (no verdict), ``crash``, or in every one."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"unscored_rewards": True}  # noqa: RUF012

    def __init__(self, fault: str = "", always: bool = False) -> None:
        self.fault, self.always = fault, always

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.bad = self.always or self.np_random.random() < 1 / 3
        self.steps, self.right = 0, True
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        self.right &= bool(action == 1)
        reward = float(self.right and self.steps == 2)
        if self.bad and self.steps == 2:
            if self.fault == "crash":
                raise RuntimeError("the sandbox is gone")
            if self.fault == "nan":
                reward = math.nan
        return np.zeros(1, np.float32), reward, self.steps == 2, False, {}


BASE = TrainConfig(
    env=f"{__file__}:Judged",
    algorithm="grpo",
    steps=64 * 30,
    horizon=2,
    threads=1,
    vector=VectorConfig(num_envs=32, num_workers=1, backend="serial"),
    policy=PolicyConfig(hidden=(16,)),
    grpo=GRPOConfig(group_size=8),
    optimizer=OptimizerConfig(learning_rate=0.02),
)


def train(config: TrainConfig, folder=None):
    trainer = make_trainer(config, folder)
    try:
        trainer.start()
        seen = []
        trainer.run(seen.append, Interrupt())
        return seen, trainer.algorithm.policy
    finally:
        trainer.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["nan", "crash"])
def test_what_can_be_scored_is_learned_from_where_a_third_cannot(fault):
    restart = VectorConfig(num_envs=32, num_workers=1, backend="process", on_error="restart", max_restarts=10_000)
    vector = restart if fault == "crash" else BASE.vector
    seen, policy = train(dataclasses.replace(BASE, env_kwargs={"fault": fault}, vector=vector))
    unscored = np.mean([row["loss/unscored"] for row in seen])
    assert 0.15 < unscored < 0.5
    assert seen[0]["episode/return"] < 0.6 and np.mean([row["episode/return"] for row in seen[-3:]]) > 0.9
    assert all(p.isfinite().all() for p in policy.parameters())


def test_a_run_in_which_nothing_can_be_scored_changes_nothing_and_says_so():
    seen, policy = train(dataclasses.replace(BASE, steps=64 * 4, env_kwargs={"fault": "nan", "always": True}))
    fresh = make_trainer(BASE)
    fresh.close()
    assert all(map(torch.equal, policy.parameters(), fresh.algorithm.policy.parameters()))
    assert len(seen) == 4 and all(row["loss/unscored"] == 1 and row["loss/grad_norm"] == 0 for row in seen)
    assert not any("episode/return" in row for row in seen)


def test_dynamic_sampling_ends_where_no_group_ever_differs():
    grpo = GRPOConfig(group_size=8, variant="dapo")
    plays = 1 + grpo.setting("refill_rounds")  # of an update; steps count all of them
    config = dataclasses.replace(BASE, steps=64 * plays * 3, grpo=grpo, env_kwargs={"fault": "nan", "always": True})
    seen, _ = train(config)
    assert len(seen) == 3 and seen[-1]["steps"] == 64 * plays * 3 and seen[-1]["learned"] == 64 * 3
    assert all(row["loss/zero_spread"] == 1 for row in seen)


def test_a_rollout_that_is_interrupted_is_saved_and_goes_on(tmp_path):
    trainer = make_trainer(BASE, tmp_path)
    try:
        trainer.start()
        interrupt, seen = Interrupt(), []

        def report(metrics):
            seen.append(metrics)
            if len(seen) == 3:
                interrupt.asked = 15

        trainer.run(report, interrupt)
    finally:
        trainer.close()
    resumed = make_trainer(BASE, tmp_path)
    try:
        resumed.load(checkpoint.find(tmp_path))
        assert resumed.updates == 3
        later = []
        resumed.run(later.append, Interrupt())
        assert later[-1]["updates"] == 30
    finally:
        resumed.close()
