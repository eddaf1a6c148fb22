"""Imitation: what is shown becomes probable, for networks of any kind; and weights that a run begins with."""

from __future__ import annotations

import math
import shutil

import pytest
import torch
from gymnasium import spaces as gs

import fugu
from fugu.envs.reverse import examples
from fugu.errors import ConfigError, FuguError
from fugu.policy.actor_critic import make_policy
from fugu.policy.config import PolicyConfig
from fugu.policy.transformer import make_transformer
from fugu.trainer.imitation import imitate, imitation_loss, save_weights

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
