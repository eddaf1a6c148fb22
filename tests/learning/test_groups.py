"""Grouping matters: episodes compared with others of the same start teach what they could not compared with just any."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmarks.learning import in_process

from fugu.algorithm.config_episodes import GRPOConfig
from fugu.policy.config import PolicyConfig
from fugu.rollout.episodes import Episodes
from fugu.trainer.build import make_trainer
from fugu.trainer.config import OptimizerConfig, TrainConfig
from fugu.trainer.interrupt import Interrupt
from fugu.vector.config import VectorConfig
from tests.learning.offset_prompts import accuracy

ENV = f"{Path(__file__).parent / 'offset_prompts.py'}:OffsetPrompts"


class Shuffled(Episodes):
    """The control: everyone begins elsewhere, and is compared all the same."""

    def _starts(self):
        return torch.randint(2**31, (self.vec.num_envs,), generator=self._seeds).tolist()


def learned(seed: int, *, shuffled: bool = False, updates: int = 110, **settings) -> float:
    config = TrainConfig(
        env=ENV,
        algorithm="grpo",
        seed=seed,
        steps=64 * updates,
        horizon=1,
        threads=1,
        vector=VectorConfig(num_envs=64, backend="serial"),
        policy=PolicyConfig(hidden=(32,)),
        grpo=GRPOConfig(**settings),
        optimizer=OptimizerConfig(learning_rate=0.004, schedule="constant"),
    )
    trainer = make_trainer(config)
    try:
        if shuffled:
            trainer.source = trainer.engine.source = Shuffled(trainer.source.vec, 1, trainer.source.groups)
        trainer.start()
        trainer.run(lambda _: None, Interrupt())
        return accuracy(trainer.algorithm)
    finally:
        trainer.close()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_groups_that_begin_alike_learn_and_shuffled_ones_do_not(seed):
    assert learned(seed) >= 0.95
    assert learned(seed, shuffled=True) < 0.7


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(5))
def test_episodes_of_hundreds_of_steps_are_learned_without_a_critic(seed):
    result = in_process(("cartpole", seed, {"algorithm": "grpo"}, 100))
    assert result["mean_return"] >= 475, result
