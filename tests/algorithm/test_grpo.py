"""GRPO as the loop sees it: what counts, what is compared, micro-batches, the reference, exact resume, and clear refusals."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math

import gymnasium
import numpy as np
import pytest
import torch

from fugu.advantage.group import group_advantage
from fugu.algorithm.config_episodes import VARIANTS, GRPOConfig
from fugu.algorithm.grpo import GRPO
from fugu.algorithm.parts.group_losses import token_weight
from fugu.errors import ConfigError
from fugu.policy.config import PolicyConfig
from fugu.trainer.build import make_trainer
from fugu.trainer.config import CheckpointConfig, OptimizerConfig, TrainConfig, with_algorithm
from fugu.trainer.interrupt import Interrupt
from fugu.trainer.optimizer import Optimizer
from fugu.vector.config import VectorConfig

BASE = TrainConfig(
    env="cartpole",
    algorithm="grpo",
    steps=4000,
    horizon=30,
    minibatch=8 * 30,
    epochs=2,
    threads=1,
    vector=VectorConfig(num_envs=16, num_workers=1),
    policy=PolicyConfig(hidden=(16,)),
    grpo=GRPOConfig(group_size=4),
    checkpoint=CheckpointConfig(every=3),
)


@contextlib.contextmanager
def trainer_of(config: TrainConfig = BASE, folder=None, **grpo):
    if grpo:
        config = dataclasses.replace(config, grpo=dataclasses.replace(config.grpo, **grpo))
    trainer = make_trainer(config, folder)
    try:
        yield trainer
    finally:
        trainer.close()


def prepared(trainer):
    trainer.start()
    return trainer.algorithm.prepare(trainer.engine.collect(bool).batch, 0.0)


def test_every_row_of_an_episode_has_the_advantage_of_its_return_in_its_group():
    with trainer_of() as trainer:
        batch = prepared(trainer)
    score = (batch["reward"] * batch["mask"]).sum(1)
    expected = group_advantage(score, torch.arange(16) // 4, groups=4, scale="group").advantage
    assert torch.equal(batch["advantage"], expected[:, None].expand(batch["mask"].shape))
    assert batch["advantage"].abs().max() > 0.5
    assert torch.equal(batch["counts"][..., 0], batch["mask"]) and not batch["mask"].all()


def test_before_the_first_step_the_loss_is_nearly_nothing_and_its_gradient_is_not():
    with trainer_of() as trainer:
        batch = prepared(trainer)
        loss, metrics = trainer.algorithm.loss(batch)
        norm = trainer.engine.optimizer.step(loss)
        finish = trainer.algorithm.finish(batch)
    assert abs(loss.item()) < 1e-5 and norm.item() > 1e-3
    assert metrics["loss/kl"].item() == pytest.approx(0, abs=1e-6) and metrics["loss/clip_fraction"] == 0
    assert finish["loss/zero_spread"] == 0 and finish["loss/score_deviation"] > 1
    assert finish["loss/tokens"].item() == pytest.approx(batch["mask"].sum().item() / 16)


def test_unscored_and_truncated_episodes_teach_nothing_and_are_reported():
    with trainer_of(truncated_episodes="mask") as trainer:
        trainer.start()
        batch = trainer.engine.collect(bool).batch
        score = batch["score"].clone()
        score[:2] = math.nan
        score[4:8] = math.nan
        truncated = batch["truncated"].clone()
        truncated[9, 3] = True
        batch = trainer.algorithm.prepare(batch.also(score=score, truncated=truncated), 0.0)
        metrics = trainer.algorithm.finish(batch)
        loss, _ = trainer.algorithm.loss(batch)
        assert math.isfinite(loss.item())
    out = (score.isnan() | truncated.any(1)).nonzero().squeeze(1)
    assert out.tolist()[:6] == [0, 1, 4, 5, 6, 7] and 9 in out
    assert not batch["counts"][out].any() and batch["advantage"][out].eq(0).all()
    assert batch["counts"].flatten(1).any(1).sum() == 16 - len(out)
    assert metrics["loss/unscored"] == len(out) / 16 and metrics["loss/zero_spread"] >= 1 / 4


def test_all_episodes_unscored_is_a_step_that_changes_nothing():
    with trainer_of() as trainer:
        trainer.start()
        batch = trainer.engine.collect(bool).batch
        batch = trainer.algorithm.prepare(batch.also(score=torch.full((16,), math.nan)), 0.0)
        before = copy.deepcopy(trainer.algorithm.policy.state_dict())
        loss, _ = trainer.algorithm.loss(batch)
        assert loss.item() == 0 and trainer.engine.optimizer.step(loss).item() == 0
        assert trainer.algorithm.finish(batch)["loss/unscored"] == 1
        after = trainer.algorithm.policy.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", [2, 3])
def test_micro_batches_change_nothing(variant, size):
    gradients = []
    for micro in (None, size):
        settings = {"reference_coef": 0.1, "entropy_bonus": 0.01, "importance_cap": 2.0, "refill_rounds": 0}
        with trainer_of(variant=variant, micro_batch=micro, **settings) as trainer:
            batch = prepared(trainer)
            with torch.no_grad():
                for p in trainer.engine.optimizer.parameters:  # ratios away from 1
                    p.add_(0.05 * torch.sin(torch.arange(p.numel())).view(p.shape))
            loss, metrics = trainer.algorithm.loss(batch)
            loss.backward()
            gradients.append(torch.cat([p.grad.flatten() for p in trainer.engine.optimizer.parameters] + [loss[None]]))
            reported = torch.stack([*metrics.values()])
            gradients[-1] = torch.cat([gradients[-1], reported])
    assert gradients[0].abs().max() > 1e-3
    assert torch.allclose(gradients[0], gradients[1], atol=1e-6)


@pytest.mark.parametrize("kind", ["k2", "k3"])
def test_the_reference_stays_and_its_divergence_pulls_back(kind):
    with trainer_of(reference_coef=1.0, reference_kl=kind) as trainer:
        algorithm = trainer.algorithm
        start = copy.deepcopy(algorithm.policy.state_dict())
        trainer.start()
        seen = [trainer.update(Interrupt()) for _ in range(5)]
        reference = algorithm.reference.state_dict()
        assert all(torch.equal(start[name], reference[name]) for name in start)
        assert seen[0]["loss/reference_kl"] < seen[-1]["loss/reference_kl"]
        assert list(trainer.engine.optimizer.parts) == ["policy"]
    strayed = []
    for coef in (1e-9, 10.0):
        with trainer_of(reference_coef=coef, reference_kl=kind) as trainer:
            trainer.start()
            strayed.append([trainer.update(Interrupt()) for _ in range(8)][-1]["loss/reference_kl"])
    assert strayed[1] < 0.5 * strayed[0]


def test_the_correction_weighs_tokens_that_the_sampler_drew_too_often():
    with trainer_of(importance_cap=1.5) as trainer:
        trainer.start()
        batch = trainer.engine.collect(bool).batch
        true = batch["logprob"].clone()
        sampled = true + torch.where(torch.arange(batch.horizon)[None, :, None] % 2 == 0, 0.3, -0.7)  # too sure, too unsure
        batch = trainer.algorithm.prepare(batch.also(logprob=sampled), 0.0)
        mask = batch["mask"]
        assert torch.allclose(batch["old_logprob"][mask], true[mask], atol=1e-4)
        expected = torch.where(torch.arange(batch.horizon) % 2 == 0, math.exp(-0.3), 1.5).expand(mask.shape)
        assert torch.allclose(batch["correction"][..., 0][mask], expected[mask], atol=1e-3)
        off = torch.where(torch.arange(batch.horizon) % 2 == 0, math.exp(-0.3) - 1 + 0.3, math.exp(0.7) - 1 - 0.7)
        mismatch = trainer.algorithm.finish(batch)["loss/mismatch_kl"]
        assert mismatch.item() == pytest.approx(off.expand(mask.shape)[mask].mean().item(), abs=1e-3)
        assert trainer.algorithm.loss(batch)[1]["loss/kl"].item() == pytest.approx(0, abs=1e-5)  # not taken for a moved policy


WRITING = dataclasses.replace(
    BASE,
    env="reverse",
    env_kwargs={"partial": 1.0},
    horizon=1,
    minibatch=None,
    vector=VectorConfig(num_envs=64, num_workers=1),
    policy=PolicyConfig(net="transformer", width=16, layers=1),
)


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_pass_over_eight_answers_equals_four_over_two(variant):
    """The tokens of answers of unequal lengths, with a reference: gradients are the same to 1e-6."""
    config = dataclasses.replace(WRITING, vector=VectorConfig(num_envs=8, num_workers=1))
    gradients = []
    for micro in (None, 2):
        with trainer_of(config, variant=variant, micro_batch=micro, reference_coef=0.1, refill_rounds=0) as trainer:
            batch = prepared(trainer)
            lengths = batch["counts"].flatten(1).sum(1)
            loss, _ = trainer.algorithm.loss(batch)
            loss.backward()
            gradients.append(torch.cat([p.grad.flatten() for p in trainer.engine.optimizer.parameters]))
    assert len(lengths.unique()) > 2
    assert (gradients[0] - gradients[1]).abs().max() < 1e-6 < gradients[0].abs().max()


def test_tokens_after_the_end_and_answers_without_one_teach_nothing():
    with trainer_of(WRITING, truncated_episodes="mask") as trainer:
        batch = prepared(trainer)
        metrics = trainer.algorithm.finish(batch)
    action, counts = batch["action"][:, 0], batch["counts"][:, 0]
    ends = [row.index(1) + 1 if 1 in row else 0 for row in action.tolist()]
    assert counts.sum(1).tolist() == ends
    assert 0 in ends and len(set(ends)) > 3
    assert metrics["loss/cut_off"].item() == pytest.approx(ends.count(0) / 64) == metrics["loss/unscored"].item()
    assert metrics["loss/tokens"].item() == pytest.approx(sum(ends) / sum(end > 0 for end in ends))


class Dialogue(gymnasium.Env):
    """Two turns, each with a word that the answer must begin with; half a point for each, at the end."""

    observation_space = gymnasium.spaces.MultiDiscrete([6] * 2)
    action_space = gymnasium.spaces.MultiDiscrete([6] * 3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.words, self.turn, self.right = self.np_random.integers(2, 6, 2).tolist(), 0, 0
        return np.array([self.words[0], 0]), {}

    def step(self, action):
        self.right += int(action[0] == self.words[self.turn])
        self.turn += 1
        over = self.turn == 2
        return np.array([self.words[1], 2]), self.right / 2 if over else 0.0, over, False, {}


def test_an_answer_in_every_row_is_a_dialogue():
    config = dataclasses.replace(
        WRITING,
        env=f"{__file__}:Dialogue",
        env_kwargs={},
        horizon=2,
        steps=2 * 64 * 30,
        vector=VectorConfig(num_envs=64, backend="serial"),
        optimizer=OptimizerConfig(learning_rate=0.01, schedule="constant"),
    )
    with trainer_of(config) as trainer:
        batch = prepared(trainer)
        assert batch["logprob"].shape == (64, 2, 3)
        assert torch.equal(batch["counts"], trainer.algorithm.policy.counts(batch["action"]))
        assert torch.equal(batch["advantage"][:, 0], batch["advantage"][:, 1])
        seen = []
        trainer.run(seen.append, Interrupt())
    assert seen[0]["episode/return"] < 0.4 and seen[-1]["episode/return"] > 0.8


def test_a_transformer_needs_an_algorithm_without_values():
    with pytest.raises(ConfigError, match="--algorithm grpo"), trainer_of(with_algorithm(WRITING, "ppo")):
        pass


@pytest.mark.parametrize(("env", "backend"), [("cartpole", "native"), ("tests.emulation.test_tensor:Duel", "serial")])
def test_environments_on_a_device_are_refused(env, backend):
    on_device = VectorConfig(num_envs=16, backend="device", device="cpu")
    config = dataclasses.replace(BASE, env=env, vector=on_device, minibatch=None)
    with pytest.raises(ConfigError, match=f"--vector.backend {backend}"), trainer_of(config):
        pass
    config = dataclasses.replace(config, vector=VectorConfig(num_envs=16, backend=backend))
    with trainer_of(config):
        pass


def test_overlong_episodes_lose_some_of_their_return():
    with trainer_of(overlong_margin=20) as trainer:
        trainer.start()
        batch = trainer.engine.collect(bool).batch
        plain = batch["score"].clone()
        batch = trainer.algorithm.prepare(batch, 0.0)
        length = batch["mask"].sum(1)
    assert torch.allclose(batch["score"], plain + ((10 - length) / 20).clamp(-1, 0))
    assert (batch["score"] < plain).any()


def test_refilling_leaves_groups_that_differ():
    """Of password's 32 ways one is right: most groups of four fail alike."""
    config = dataclasses.replace(BASE, env="password", horizon=5, minibatch=None, steps=2000)
    shares = []
    for rounds in (0, 6):
        with trainer_of(config, refill_rounds=rounds) as trainer:
            trainer.start()
            seen = [trainer.update(Interrupt()) for _ in range(6)]
            shares.append(sum(row["loss/zero_spread"] for row in seen) / 6)
            assert (max(row["loss/redrawn"] for row in seen) > 0) == (rounds > 0)
    assert shares[1] < shares[0] - 0.2


CASES = {
    "native": {},
    "dapo": {"grpo": GRPOConfig(group_size=4, variant="dapo", truncated_episodes="mask")},
    "reference": {"grpo": GRPOConfig(group_size=4, reference_coef=0.1, importance_cap=2.0, micro_batch=3)},
    "lstm": {"policy": PolicyConfig(hidden=(16,), core="lstm", core_size=8)},
    "normalised": {"policy": PolicyConfig(hidden=(16,), normalize_observation=True)},
    "serial": {"env": "CartPole-v1", "vector": VectorConfig(num_envs=16, backend="serial")},
    "process": {"env": "CartPole-v1", "vector": VectorConfig(num_envs=16, backend="process", num_workers=2)},
    "transformer": {
        "env": "reverse",
        "env_kwargs": {"partial": 1.0, "shortest": 2},
        "steps": 16 * 30,  # some of them in groups that are drawn anew
        "horizon": 1,
        "minibatch": 8,
        "policy": PolicyConfig(net="transformer", width=16, layers=1),
        "grpo": GRPOConfig(group_size=4, variant="dapo", reference_coef=0.1, importance_cap=2.0),
    },
    "in turns": {"vector": VectorConfig(num_envs=16, batch_size=4)},
}


RESUMED = {name: dataclasses.replace(BASE, **case) for name, case in CASES.items()}
"""gone on with in tests/contract/test_resumed.py"""


REFUSED = {
    "groups of one": ({"group_size": 1}, "--grpo.group-size 8"),
    "variant": ({"variant": "grop"}, "grpo"),
    "scale": ({"scale": "std"}, "--grpo.scale group"),
    "clip": ({"clip_high": 0.0}, "above 0"),
    "refill": ({"refill_rounds": -1}, "0 or above"),
    "kl": ({"reference_kl": "k1"}, "--grpo.reference_kl k2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_settings_are_refused_with_what_to_type(case):
    settings, hint = REFUSED[case]
    with pytest.raises(ConfigError) as error:
        GRPOConfig(**settings)
    assert hint in str(error.value)


def test_environments_that_are_no_whole_groups_are_refused_before_training():
    with pytest.raises(ConfigError, match="--vector.num-envs 20"), trainer_of(group_size=5):
        pass
    with pytest.raises(ConfigError, match="--passes 1"), trainer_of(dataclasses.replace(BASE, passes=2)):
        pass


def test_variants_are_defaults_that_settings_override():
    dapo = GRPOConfig(variant="dapo", clip_high=0.5)
    assert (dapo.setting("clip_low"), dapo.setting("clip_high"), dapo.setting("average")) == (0.2, 0.5, "token")
    with trainer_of(variant="dr_grpo") as trainer:
        assert isinstance(trainer.algorithm, GRPO) and isinstance(trainer.engine.optimizer, Optimizer)
        batch = prepared(trainer)
        weight = token_weight(batch["counts"].flatten(1), "longest", 30)
        assert weight.max().item() == pytest.approx(1 / (16 * 30))
        assert batch["advantage"].abs().max() > 1.5  # in units of return
