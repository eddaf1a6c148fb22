"""A small transformer learns to reverse digits: from a poor start by imitation to nearly always right, on prompts it has never seen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fugu.config import override
from fugu.envs.reverse import examples
from fugu.policy.config import PolicyConfig
from fugu.policy.transformer import Transformer, make_transformer
from fugu.presets import preset
from fugu.trainer.build import make_trainer
from fugu.trainer.imitation import imitate, save_weights
from fugu.trainer.interrupt import Interrupt
from fugu.vector import make

FAMILY = ("grpo", "dr_grpo", "dapo", "gspo", "cispo")


def exact_match(policy: Transformer) -> float:
    """Share of a thousand held-out prompts that are answered rightly, drawn as the policy does."""
    prompt, answer = examples(1000, seed=99, held_out=1)
    drawn = policy.draw(prompt, None, torch.ones(1000, dtype=torch.bool), None, torch.Generator().manual_seed(0)).action
    return ((drawn == answer) | ~policy.counts(answer)).all(1).float().mean().item()


def imitated(seed: int, path: Path) -> float:
    """Stopped early: right about half of the time."""
    with make("reverse", 1) as vec:
        policy = make_transformer(vec.observation_space, vec.action_space, PolicyConfig(net="transformer"), seed=seed)
    imitate(policy, *examples(4096, seed=seed), steps=100, batch=64, learning_rate=5e-4, seed=seed)
    save_weights(policy, path)
    return exact_match(policy)


def trained(seed: int, start: Path, *, updates: int = 150, by_chance: bool = False, **settings) -> float:
    """Paid for whole answers alone: 16 prompts, 8 answers each."""
    few = {"num_envs": 128, "minibatch": 64, "steps": 128 * updates, "env_kwargs": {}, "policy.start": str(start)}
    trainer = make_trainer(override(preset("reverse", algorithm="grpo"), {"seed": seed, **few, **settings}))
    try:
        if by_chance:
            prepare, generator = trainer.algorithm.prepare, torch.Generator().manual_seed(seed)

            def dealt_out(batch, progress):
                score = batch["score"].view(-1, 8)
                order = torch.rand(score.shape, generator=generator).argsort(1)
                return prepare(batch.also(score=score.gather(1, order).flatten()), progress)

            trainer.algorithm.prepare = dealt_out
        trainer.start()
        trainer.run(lambda _: None, Interrupt())
        return exact_match(trainer.algorithm.policy)
    finally:
        trainer.close()


def test_a_few_updates_make_it_better(tmp_path):
    start = imitated(0, tmp_path / "start.safetensors")
    assert 0.3 <= start <= 0.6
    assert trained(0, tmp_path / "start.safetensors", updates=12) >= start + 0.08


# one seed takes two minutes
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "seed", [pytest.param(0, marks=pytest.mark.slow), *(pytest.param(seed, marks=pytest.mark.learning) for seed in range(1, 5))]
)
def test_every_member_of_the_family_learns_it_and_the_controls_do_not(seed, tmp_path):
    path = tmp_path / "start.safetensors"
    start = imitated(seed, path)
    assert 0.3 <= start <= 0.6
    reached = {variant: trained(seed, path, variant=variant) for variant in FAMILY}
    assert min(reached.values()) >= 0.95, reached
    assert trained(seed, path, learning_rate=1e-12) == pytest.approx(start, abs=0.01)  # flat without learning from rewards
    assert trained(seed, path, by_chance=True) < start + 0.05  # nor does it learn if each gets the reward of another
