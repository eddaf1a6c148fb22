"""Imitation: what is shown becomes probable, for networks of any kind; and weights that a run begins with."""

from __future__ import annotations

import dataclasses
import math
import shutil

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces as gs

import fugu
from fugu.algorithm.config_episodes import GRPOConfig
from fugu.envs.reverse import examples
from fugu.errors import ConfigError, FuguError
from fugu.policy.actor_critic import make_policy
from fugu.policy.config import PolicyConfig
from fugu.policy.transformer import make_transformer
from fugu.trainer.build import make_trainer
from fugu.trainer.config import ImitationConfig, OptimizerConfig, TrainConfig
from fugu.trainer.imitation import imitate, imitation_loss, save_weights
from fugu.trainer.interrupt import Interrupt
from fugu.vector.config import VectorConfig

SMALL = PolicyConfig(net="transformer", width=16, layers=1)


def transformer(config=SMALL):
    return make_transformer(gs.MultiDiscrete([12] * 6), gs.MultiDiscrete([12] * 7), config, seed=0)


def test_the_loss_is_the_mean_of_the_tokens_that_were_written():
    policy, (obs, action) = transformer(), examples(20, shortest=2, longest=6)
    total, count = 0.0, 0
    with torch.no_grad():
        for row in range(20):
            said = policy.judge(obs[row, None, None], None, torch.ones(1, 1, dtype=torch.bool), action[row, None, None], None)
            length = action[row].tolist().index(1) + 1
            total -= said.logprob[0, 0, :length].sum().item()
            count += length
        assert imitation_loss(policy, obs, action).item() == pytest.approx(total / count, abs=1e-5)


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_any_policy_learns_what_it_is_shown(core):
    policy = make_policy(gs.Box(-1, 1, (2,)), gs.Discrete(4), PolicyConfig(hidden=(16,), core=core, core_size=16), seed=0)
    obs = torch.rand(500, 2, generator=torch.Generator().manual_seed(1)) * 2 - 1
    action = (obs[:, :1] > 0).long() * 2 + (obs[:, 1:] > 0).long()
    losses = imitate(policy, obs, action, steps=150, learning_rate=0.02)
    assert losses[0] == pytest.approx(math.log(4), abs=0.1) and losses[-1] < 0.25


def test_the_same_seed_learns_the_same():
    curves = [imitate(transformer(), *examples(50), steps=5, seed=seed) for seed in (1, 1, 2)]
    assert curves[0] == curves[1] != curves[2]


def test_impossible_examples_and_diverging_losses_are_said():
    obs, action = examples(4)
    with pytest.raises(ConfigError, match="got 4 and 3"):
        imitate(transformer(), obs, action[:3], steps=1)
    policy = transformer()
    with torch.no_grad():
        policy.head.bias.fill_(math.nan)
    with pytest.raises(FuguError, match="smaller learning_rate"):
        imitate(policy, obs, action, steps=1)


class Echo(gymnasium.Env):
    """Wants its prompt back; knows how that is done."""

    observation_space = gs.MultiDiscrete([6] * 3)
    action_space = gs.MultiDiscrete([6] * 4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.prompt = self.np_random.integers(2, 6, 3)
        return self.prompt, {}

    def step(self, action):
        return self.prompt, float((action == [*self.prompt, 1]).all()), True, False, {}

    def examples(self, count, seed):
        obs = np.random.default_rng(seed).integers(2, 6, (count, 3))
        return obs, np.concatenate([obs, np.ones((count, 1), np.int64)], 1)


SHOWN = TrainConfig(
    env=f"{__file__}:Echo",
    algorithm="grpo",
    steps=64,
    horizon=1,
    threads=1,
    vector=VectorConfig(num_envs=16, backend="serial"),
    policy=SMALL,
    grpo=GRPOConfig(group_size=4, reference_coef=0.1),
    optimizer=OptimizerConfig(learning_rate=1e-12),
    imitation=ImitationConfig(examples=50, example_steps=200, example_rate=1e-2),
)


def test_a_run_learns_first_from_what_its_environment_shows(tmp_path):
    def played(config):
        trainer = make_trainer(config, tmp_path)
        try:
            trainer.start()
            return trainer.update(Interrupt())["episode/return"], trainer.algorithm
        finally:
            trainer.close()

    score, algorithm = played(SHOWN)
    assert score > 0.8 and played(dataclasses.replace(SHOWN, imitation=ImitationConfig()))[0] < 0.2
    again = played(SHOWN)[1]
    for name, weights in algorithm.policy.state_dict().items():
        assert torch.equal(weights, again.policy.state_dict()[name])
        assert torch.allclose(weights, algorithm.reference.state_dict()[name], atol=1e-6)  # not what there was before
    assert played(SHOWN.from_checkpoint())[0] < 0.2  # weights of a checkpoint are not taught again


def test_environments_without_examples_say_so():
    for env in ("reverse", "CartPole-v1"):
        with pytest.raises(ConfigError, match="has no examples"):
            make_trainer(dataclasses.replace(SHOWN, env=env, policy=PolicyConfig(), grpo=GRPOConfig(group_size=4)))


SETTINGS = {"algorithm": "grpo", "num_envs": 16, "minibatch": None, "steps": 32, "board": "off", "width": 16, "layers": 1}


def test_a_run_begins_with_the_weights_it_is_given_and_goes_on_without_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    policy = transformer()
    imitate(policy, *examples(64), steps=3)
    save_weights(policy, "start.safetensors")
    run = fugu.train("reverse", runs="runs", start="start.safetensors", learning_rate=1e-12, **SETTINGS)
    assert run.config.policy.start == str(tmp_path / "start.safetensors")
    kept = run.path / "checkpoints"
    weights = next(kept.glob("step_*/policy.safetensors"))
    from safetensors.torch import load_file

    assert all(torch.allclose(load_file(weights)[name], tensor, atol=1e-6) for name, tensor in policy.state_dict().items())
    shutil.copy(weights, "again.safetensors")
    (tmp_path / "start.safetensors").unlink()
    assert run.resume(steps=64).metrics()[-1]["steps"] >= 64
    assert run.evaluate(4).episodes == 4
    fugu.train("reverse", runs="runs", start="again.safetensors", **SETTINGS)  # those of a checkpoint will do


def test_weights_that_do_not_fit_are_refused(tmp_path):
    save_weights(transformer(PolicyConfig(net="transformer", width=8, layers=1)), tmp_path / "other.safetensors")
    (tmp_path / "text.safetensors").write_text("no weights")
    for name, message in (
        ("other.safetensors", r"another network: .* has shape .*8\) there and .*16\) here"),
        ("text.safetensors", "is not a safetensors file"),
        ("none.safetensors", "there is no such file"),
    ):
        with pytest.raises(ConfigError, match=message):
            fugu.train("reverse", runs=tmp_path / "runs", start=str(tmp_path / name), **SETTINGS)
