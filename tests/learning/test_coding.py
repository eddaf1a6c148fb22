"""Writing programs: from a few examples to tasks it has never seen, by rewards alone; and not without learning from them."""

from __future__ import annotations

import pytest
import torch

import fugu
from fugu.coding.sandbox.config import SandboxConfig
from fugu.coding.sandbox.sandbox import Sandbox
from fugu.config import override
from fugu.errors import SandboxError
from fugu.presets import preset
from fugu.trainer.build import make_trainer
from fugu.trainer.evaluate import evaluate
from fugu.trainer.interrupt import Interrupt


@pytest.fixture(scope="module", autouse=True)
def isolation():
    try:
        Sandbox(SandboxConfig(workers=1)).close()
    except SandboxError as error:
        pytest.skip(f"the sandbox does not reach its level here: {error}")


def held_out(trainer) -> float:
    """Pass rate on tasks that are never shown, as the policy answers."""
    settings = {**trainer.config.env_kwargs, "held_out": True}
    with fugu.vector.make("coding", 250, env_kwargs=settings) as vec:
        return evaluate(vec, trainer.algorithm.act, episodes=500, seed=7, greedy=False, device=torch.device("cpu")).mean


def before_and_after(algorithm: str = "grpo", **changes) -> tuple[float, float]:
    trainer = make_trainer(override(preset("coding", algorithm=algorithm), changes))
    try:
        before = held_out(trainer)
        trainer.start()
        trainer.run(lambda _: None, Interrupt())
        return before, held_out(trainer)
    finally:
        trainer.close()


@pytest.mark.learning
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
# Thirty points is what grpo has to come to. With its settings token_ppo comes to 32, 46 and 21 (docs/coding.md): half of them is asked,
# so that it is seen when it no longer learns.
@pytest.mark.parametrize(("algorithm", "gain"), [("grpo", 0.3), ("token_ppo", 0.15)])
def test_the_pass_rate_on_held_out_tasks_rises(algorithm, gain, seed):
    before, after = before_and_after(algorithm, seed=seed)
    assert 0.1 < before < 0.5 and after >= before + gain, (before, after)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_learning_from_rewards_it_stays_where_the_examples_left_it():
    before, after = before_and_after(steps=256 * 20, **{"optimizer.learning_rate": 1e-12})
    assert after == pytest.approx(before, abs=0.06)  # two draws of 500 answers


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_second_answer_after_feedback_is_learned_from_as_well():
    config = preset("coding")
    turns = {"env_kwargs": {**config.env_kwargs, "level": 1, "turns": 2}, "horizon": 2, "minibatch": 256, "steps": 256 * 16}
    trainer = make_trainer(override(config, {**turns, "imitation": {"examples": 32, "example_steps": 60}}))
    seen: list[dict[str, float]] = []
    try:
        trainer.start()
        trainer.run(seen.append, Interrupt())
    finally:
        trainer.close()
    assert all(1 < row["env/turns"] < 2 for row in seen)
    assert sum(row["env/pass_rate"] for row in seen[-4:]) > sum(row["env/pass_rate"] for row in seen[:4])
