"""PPO over tokens: its columns and loss against a slow reference, parts, episodes without a score, exact resume, and that it learns."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math

import pytest
import torch
from gymnasium import spaces as gs

from fugu.algorithm.config import SurrogateConfig
from fugu.algorithm.config_episodes import TokenPPOConfig
from fugu.errors import ConfigError
from fugu.ops.ppo_loss import explained_variance
from fugu.policy.config import PolicyConfig
from fugu.policy.transformer import make_transformer
from fugu.trainer import checkpoint
from fugu.trainer.build import make_trainer
from fugu.trainer.config import CheckpointConfig, OptimizerConfig, TrainConfig
from fugu.trainer.interrupt import Interrupt
from fugu.vector.config import VectorConfig

BASE = TrainConfig(
    env="reverse",
    algorithm="token_ppo",
    env_kwargs={"partial": 1.0},
    steps=32 * 12,
    horizon=1,
    minibatch=16,
    epochs=2,
    threads=1,
    vector=VectorConfig(num_envs=32, num_workers=1),
    policy=PolicyConfig(net="transformer", width=16, layers=1),
    checkpoint=CheckpointConfig(every=3),
)


@contextlib.contextmanager
def trainer_of(config: TrainConfig = BASE, folder=None, **token_ppo):
    trainer = make_trainer(dataclasses.replace(config, token_ppo=TokenPPOConfig(**token_ppo)), folder)
    try:
        yield trainer
    finally:
        trainer.close()


def prepared(trainer):
    trainer.start()
    return trainer.algorithm.prepare(trainer.engine.collect(bool).batch, 0.0)


def moved(trainer, by=0.05):
    """Weights elsewhere, so that ratios are not 1 and values not 0."""
    with torch.no_grad():
        for p in trainer.engine.optimizer.parameters:
            p.add_(by * torch.sin(torch.arange(p.numel())).view(p.shape))


def slow_loss(algorithm, batch):
    """Token by token, over the answers as they are."""
    ppo, total, seen = algorithm.ppo, [], []
    tokens = [(s, k) for s in range(batch.segments) for k in range(batch["action"].shape[2]) if batch["counts"][s, 0, k]]
    advantages = torch.tensor([batch["advantage"][s, 0, k] for s, k in tokens])
    mean, deviation = advantages.mean(), advantages.std(correction=0)
    for s, k in tokens:
        judged, hidden = algorithm.policy.read(batch["obs"][s : s + 1], batch["action"][s : s + 1], None)
        value = algorithm.critic(hidden)[0, 0, k, 0]
        ratio = (judged.logprob[0, 0, k] - batch["logprob"][s, 0, k]).exp()
        advantage = (batch["advantage"][s, 0, k] - mean) / (deviation + 1e-8)
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - ppo.clip, 1 + ppo.clip) * advantage)
        error = 0.5 * (value - batch["value_target"][s, 0, k]) ** 2
        total.append(-gain + ppo.value_coef * error - algorithm.config.token_entropy * judged.entropy[0, 0, k])
        seen.append(ratio.item())
    return torch.stack(total).mean(), seen


def test_the_loss_equals_a_slow_one_over_answers_of_unequal_lengths():
    config = dataclasses.replace(BASE, vector=VectorConfig(num_envs=8, num_workers=1), minibatch=None)
    with trainer_of(config, token_entropy=0.02) as trainer:
        moved(trainer)
        batch = prepared(trainer)
        moved(trainer)
        lengths = batch["counts"].flatten(1).sum(1)
        assert len(set(lengths.tolist())) > 2 and batch["value"].abs().max() > 0
        loss, metrics = trainer.algorithm.loss(batch)
        expected, ratios = slow_loss(trainer.algorithm, batch)
        gradients = [torch.autograd.grad(one, trainer.engine.optimizer.parameters) for one in (loss, expected)]
    assert max(ratios) > 1.02 and min(ratios) < 0.98
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    assert metrics["loss/total"].item() == pytest.approx(loss.item())
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)
    assert all(gradient.abs().max() > 1e-4 for gradient in gradients[0][-2:])  # the critic learns


def test_rewards_come_to_the_last_token_and_values_of_all_tokens_are_trained_towards_them():
    with trainer_of() as trainer:
        batch = prepared(trainer)
    counts, reward = batch["counts"][:, 0], batch["reward"][:, 0]
    assert (batch["value"] == 0).all()  # to begin with
    distance = counts.flip(1).cumsum(1).flip(1) - 1  # tokens that follow
    expected = torch.where(counts, 0.95**distance * reward[:, None], 0.0)
    assert torch.allclose(batch["value_target"][:, 0][counts], expected[counts], atol=1e-5) and reward.max() > 0


def test_parts_change_nothing():
    gradients = []
    for size in (None, 3):
        with trainer_of(token_entropy=0.01, episodes_at_once=size) as trainer:
            moved(trainer)
            batch = prepared(trainer)
            moved(trainer)
            loss, metrics = trainer.algorithm.loss(batch)
            loss.backward()
            gradients.append(
                torch.cat([p.grad.flatten() for p in trainer.engine.optimizer.parameters] + [torch.stack([*metrics.values()])])
            )
    assert gradients[0].abs().max() > 1e-3 and torch.allclose(gradients[0], gradients[1], atol=1e-6)


def test_episodes_without_a_score_leave_the_gradient_as_it_is():
    with trainer_of() as trainer:
        trainer.start()
        batch = trainer.engine.collect(bool).batch
        reward, score = batch["reward"].clone(), batch["score"].clone()
        reward[:4], score[:4] = math.nan, math.nan
        whole = trainer.algorithm.prepare(batch.also(reward=reward, score=score), 0.0)
        losses = [trainer.algorithm.loss(one) for one in (whole, whole.part(4, 32))]
        assert trainer.algorithm.finish(whole)["loss/unscored"] == 4 / 32
        ours, theirs = (torch.autograd.grad(loss, trainer.engine.optimizer.parameters) for loss, _ in losses)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ours, theirs, strict=True))


def test_a_run_that_goes_on_from_a_checkpoint_is_the_same_run(tmp_path):
    seen = []
    with trainer_of(folder=tmp_path / "a") as trainer:
        trainer.start()
        trainer.run(seen.append, Interrupt())
        expected = copy.deepcopy({name: module.state_dict() for name, module in trainer.algorithm.named_children()})
    again = []
    with trainer_of(folder=tmp_path / "b") as trainer:
        trainer.load(sorted((tmp_path / "a").glob("step_*"))[0])
        assert 0 < trainer.updates < len(seen)
        trainer.run(again.append, Interrupt())
        for name, weights in expected.items():
            ours = trainer.algorithm.get_submodule(name).state_dict()
            assert all(torch.equal(weights[key], ours[key]) for key in weights)
    assert again == seen[-len(again) :] and checkpoint.find(tmp_path / "b", "latest")


@pytest.mark.slow
def test_it_learns_to_reverse():
    config = dataclasses.replace(
        BASE,
        steps=256 * 24,
        minibatch=64,
        epochs=4,
        vector=VectorConfig(num_envs=256, num_workers=1),
        policy=PolicyConfig(net="transformer", width=32, layers=2),
        ppo=SurrogateConfig(clip=0.2),
        optimizer=OptimizerConfig(learning_rate=3e-3, schedule="constant", max_grad_norm=1.0),
    )
    with trainer_of(config) as trainer:
        trainer.start()
        returns = [trainer.update(Interrupt())["episode/return"] for _ in range(24)]
    assert sum(returns[-5:]) / 5 > sum(returns[:5]) / 5 + 0.4, returns


def test_its_critic_learns_what_the_texts_were_worth():
    """With ratios that must not change, so that only the critic has something to learn."""
    with trainer_of(dataclasses.replace(BASE, ppo=SurrogateConfig(clip=1e-4))) as trainer:
        batch, algorithm = prepared(trainer), trainer.algorithm
        optimizer = torch.optim.Adam(algorithm.parameters(), lr=1e-2)
        for _ in range(150):
            optimizer.zero_grad()
            algorithm.loss(batch)[0].backward()
            optimizer.step()
        value = algorithm._look_again(batch)[2].detach()
    columns = (value, batch["value_target"], batch["counts"])
    assert explained_variance(*(column.flatten(1) for column in columns)) > 0.5


def test_other_networks_are_refused_with_what_to_type():
    with (
        pytest.raises(ConfigError, match="--policy.net transformer.*--algorithm ppo"),
        trainer_of(dataclasses.replace(BASE, policy=PolicyConfig())),
    ):
        pass


def test_the_prompt_may_be_one_part_of_a_dict():
    spaces = gs.Dict(length=gs.Box(0, 6, (), "int32"), tokens=gs.Box(0, 11, (6,), "int32"), weight=gs.Box(0, 1, (2,)))
    answer = gs.MultiDiscrete([12] * 7)
    alone = make_transformer(gs.Box(0, 11, (6,), "int32"), answer, BASE.policy, seed=0)
    among = make_transformer(spaces, answer, BASE.policy, seed=0)
    prompt = torch.randint(2, 12, (5, 6), dtype=torch.int32)
    rows = torch.from_numpy(among.obs_layout.zeros(5))
    among.obs_layout.views(rows.numpy())["tokens"][...] = prompt.numpy()
    first = torch.ones(5, dtype=torch.bool)
    drawn = [
        policy.draw(obs, None, first, None, torch.Generator().manual_seed(1))
        for policy, obs in ((alone, prompt), (among, rows))
    ]
    assert torch.equal(drawn[0].action, drawn[1].action)
    judged = [
        policy.judge(obs[:, None], None, first[:, None], drawn[0].action[:, None], None).logprob
        for policy, obs in ((alone, prompt), (among, rows))
    ]
    assert torch.equal(*judged)
    with pytest.raises(ConfigError, match="called tokens"):
        make_transformer(gs.Dict(a=gs.Box(0, 9, (4,), "int32"), b=gs.Discrete(3)), answer, BASE.policy)
