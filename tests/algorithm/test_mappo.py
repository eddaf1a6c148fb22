"""MAPPO: equal to PPO where it must be, blind to agents that are not there, and better than independent PPO where it can be."""

from __future__ import annotations

import dataclasses
import math

import gymnasium
import numpy as np
import pytest
import torch

from fugu.algorithm.config import MAPPOConfig, PPOConfig, TeamPPOConfig
from fugu.algorithm.mappo import MAPPO
from fugu.algorithm.parts.scale import DecayingValueScale, PopArt
from fugu.errors import ConfigError
from fugu.gpu import emulation
from fugu.ops.ppo_loss import ppo_loss_of, row_weight
from fugu.policy.config import PolicyConfig
from fugu.presets import preset
from fugu.rollout.acting import Seen
from fugu.trainer.build import make_trainer
from fugu.trainer.config import OptimizerConfig, TrainConfig, with_algorithm
from fugu.trainer.imitation import save_weights
from fugu.trainer.interrupt import Interrupt
from fugu.vector.config import VectorConfig
from tests.trainer.test_loop import BASE

TEAM = dataclasses.replace(
    with_algorithm(BASE, "mappo"),
    env="foraging",
    steps=12 * 160,
    minibatch=128,
    env_kwargs={"max_steps": 7, "players": 3},
    ppo=TeamPPOConfig(normalize_reward=True),
    vector=VectorConfig(num_envs=8, num_workers=1),
)


def updates(config: TrainConfig, count: int) -> tuple[list[dict[str, float]], MAPPO]:
    trainer = make_trainer(config)
    try:
        trainer.start()
        interrupt = Interrupt()
        return [trainer.update(interrupt) for _ in range(count)], trainer.algorithm
    finally:
        trainer.close()


# --- against PPO ---


def test_with_one_agent_and_its_own_critic_it_is_ppo_bit_for_bit():
    """PPO whose policy and value share nothing, from the same weights, with gradients too short for their bounds."""
    ppo = dataclasses.replace(
        BASE, policy=PolicyConfig(hidden=(16,), share=False), ppo=PPOConfig(), optimizer=OptimizerConfig(max_grad_norm=1e9)
    )
    mappo = dataclasses.replace(with_algorithm(ppo, "mappo"), mappo=MAPPOConfig(critic="own", value_norm="none"))
    one, two = make_trainer(ppo), make_trainer(mappo)
    net, actor, critic = one.algorithm.policy.net, two.algorithm.policy.nets[0].net, two.algorithm.critic.nets[0]
    actor.trunk.load_state_dict(net.trunk.state_dict())
    critic.trunk.load_state_dict(net.value_trunk.state_dict())
    critic.head.load_state_dict(net.heads[1].state_dict())
    actor.heads[0].weight.data[:2], actor.heads[0].bias.data[:2] = net.heads[0].weight.data, net.heads[0].bias.data
    for trainer in (one, two):
        trainer.start()
    for _ in range(6):
        ours, theirs = two.update(Interrupt()), one.update(Interrupt())
        assert {**ours, "loss/grad_norm": 0} == {**theirs, "loss/grad_norm": 0}
    assert torch.equal(actor.heads[0].weight[:2], net.heads[0].weight)
    assert torch.equal(critic.trunk.layers[0].weight, net.value_trunk.layers[0].weight)
    for trainer in (one, two):
        trainer.close()


# --- the units of values ---


@pytest.mark.parametrize("kind", [DecayingValueScale, PopArt])
def test_moments_are_the_debiased_ones_of_their_definition(kind):
    head = torch.nn.Linear(4, 1)
    scale = kind(0.9) if kind is DecayingValueScale else kind(0.9, [head])
    rng = np.random.default_rng(0)
    mean = square = 0.0
    for n in range(1, 20):
        x, mask = rng.normal(5, 3, 50).astype(np.float32), rng.random(50) < 0.7
        mean = 0.9 * mean + 0.1 * x[mask].astype(np.float64).mean()
        square = 0.9 * square + 0.1 * (x[mask].astype(np.float64) ** 2).mean()
        scale.update(torch.from_numpy(np.where(mask, x, np.nan)), torch.from_numpy(mask))
        debiased = mean / (1 - 0.9**n)
        deviation = math.sqrt(square / (1 - 0.9**n) - debiased**2)
        assert math.isclose(scale.moments.mean, debiased, rel_tol=1e-12)
        assert math.isclose(float(scale.real(torch.tensor(1.0, dtype=torch.float64))), debiased + deviation, rel_tol=1e-12)
    before = scale.moments.mean.clone()
    scale.update(torch.full((3,), 7.0), torch.zeros(3, dtype=torch.bool))
    assert scale.moments.mean == before


def test_a_variance_too_small_to_divide_by_is_a_hundredth():
    scale = DecayingValueScale(0.99)
    scale.update(torch.full((10,), 3.0), torch.ones(10, dtype=torch.bool))
    torch.testing.assert_close(scale.scaled(torch.tensor([3.0, 3.1])), torch.tensor([0.0, 1.0]))


def test_popart_leaves_real_values_what_they_are():
    torch.manual_seed(0)
    head, x = torch.nn.Linear(8, 1), torch.randn(30, 8)
    scale = PopArt(0.5, [head])
    for size in (1.0, 50.0, 0.01, -1000.0):
        before = scale.real(head(x))
        scale.update(size * (1 + torch.randn(100)), torch.ones(100, dtype=torch.bool))
        torch.testing.assert_close(scale.real(head(x)), before, rtol=1e-4, atol=1e-4)
    assert not any(name.startswith("_heads") for name in scale.state_dict())


def test_popart_is_what_the_trainer_uses_and_changes_no_value_it_acts_with():
    config = dataclasses.replace(TEAM, mappo=MAPPOConfig(value_norm="popart", value_decay=0.5))
    _, algorithm = updates(config, 3)
    assert isinstance(algorithm.value_scale, PopArt)
    obs = torch.randn(8, 48)
    first = torch.zeros(8, dtype=torch.bool)
    before = algorithm.act(Seen(obs, first)).columns["value"]
    algorithm.value_scale.update(torch.randn(5) * 9 + 4, torch.ones(5, dtype=torch.bool))
    torch.testing.assert_close(algorithm.act(Seen(obs, first)).columns["value"], before, rtol=1e-4, atol=1e-4)


def test_huber_counts_large_errors_linearly():
    value = torch.tensor([0.5, 3.0, -20.0, 0.0], requires_grad=True)
    zeros, mask = torch.zeros(4), torch.ones(4, dtype=torch.bool)
    settings = {"clip": 0.2, "value_clip": math.inf, "value_coef": 1.0, "entropy_coef": 0.0}
    loss = ppo_loss_of(zeros, zeros, value, zeros, zeros, zeros, zeros, row_weight(mask), value_huber=2.0, **settings)
    expected = torch.nn.functional.huber_loss(value, zeros, delta=2.0)
    torch.testing.assert_close(loss.value, expected)
    torch.testing.assert_close(torch.autograd.grad(loss.value, value)[0], torch.autograd.grad(expected, value)[0])
    config = dataclasses.replace(TEAM, ppo=TeamPPOConfig(value_huber=0.01))
    assert updates(config, 1)[0][0]["loss/value"] < 0.5 * updates(TEAM, 1)[0][0]["loss/value"]


# --- agents that are not there ---


def test_absent_agents_have_no_part_in_anything():
    """Whatever stands in masked rows, be it NaN, gradients, statistics and metrics are the same to the bit."""
    trainer = make_trainer(dataclasses.replace(TEAM, mappo=MAPPOConfig(critic="agent")))
    algorithm = trainer.algorithm
    trainer.start()
    batch = trainer.engine.collect(bool).batch
    trainer.close()
    assert 0.2 < (~batch["mask"]).float().mean() < 0.6
    absent = ~batch["mask"] & (torch.arange(batch.segments) % 4 == 3)[:, None]  # three of four players are there
    assert (batch["obs"][absent] == 0).all()
    spoil = {name: torch.where(absent, math.nan, batch[name]) for name in ("value", "logprob")}
    spoil["obs"] = torch.where(absent[..., None], 1e9, batch["obs"])
    spoil["reward"] = torch.where(absent, 1e9, batch["reward"])
    saved = {name: {k: v.clone() for k, v in module.state_dict().items()} for name, module in algorithm.named_children()}
    results = []
    for given in (batch, batch.also(**spoil)):
        for name, module in algorithm.named_children():
            module.load_state_dict(saved[name])
        prepared = algorithm.prepare(given, 0.0)
        loss, metrics = algorithm.loss(prepared)
        parameters = [p for m in algorithm.children() for p in m.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        algorithm.finish(prepared)
        statistics = [b.clone() for name, m in algorithm.named_children() for k, b in m.named_buffers() if "running" not in k]
        results.append(([g for g in gradients if g is not None], statistics, metrics))
    (gradients, statistics, metrics), (same, still, again) = results
    assert all(torch.equal(a, b) for a, b in zip(gradients, same, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(statistics, still, strict=True))
    assert metrics == again and any((g != 0).any() for g in gradients)


def test_a_masked_choice_is_never_drawn():
    trainer = make_trainer(dataclasses.replace(TEAM, env="connect4", env_kwargs={}))
    vec = trainer.source.vec
    vec.reset(seed=0)
    full = np.zeros(len(vec.rows.mask), bool)
    for _ in range(60):
        rows = vec.rows
        obs, first, allowed = map(torch.from_numpy, (rows.obs, rows.first, rows.action_mask))
        act = trainer.algorithm.act(Seen(obs, first, action_mask=allowed))
        action = act.env_action.numpy()
        assert rows.action_mask[np.arange(len(action)), action].all()
        full |= ~rows.action_mask.all(1)
        vec.step(action)
    vec.close()
    assert full.any()


# --- elsewhere ---


@pytest.mark.slow
@pytest.mark.parametrize(("critic", "networks"), [("state", "per_agent"), ("observations", "shared")])
def test_where_worlds_live_on_a_device_it_learns_the_same(critic, networks):
    """Rows of one time lie together there, and kernels, emulated here, gather minibatches."""
    config = dataclasses.replace(TEAM, mappo=MAPPOConfig(critic=critic, networks=networks))
    expected, _ = updates(config, 2)
    with emulation():
        seen, _ = updates(dataclasses.replace(config, vector=VectorConfig(num_envs=8, backend="device", device="cpu")), 2)
    for ours, theirs in zip(seen, expected, strict=True):
        for name in ("loss/policy", "loss/value", "loss/entropy", "loss/explained_variance", "steps"):
            assert math.isclose(ours[name], theirs[name], rel_tol=1e-3, abs_tol=1e-4), (name, ours[name], theirs[name])


# --- going on, and going wrong ---

CASES = {
    "state": {},
    "one agent": {"env": "cartpole", "env_kwargs": {}, "minibatch": 64, "steps": 12 * 64},
    "observations, popart": {"mappo": MAPPOConfig(critic="observations", value_norm="popart")},
    "separate networks, lstm": {
        "mappo": MAPPOConfig(networks="per_agent"),
        "policy": PolicyConfig(hidden=(16,), core="lstm", core_size=8),
    },
    "groups in batches": {
        "mappo": MAPPOConfig(networks="groups", groups=(0, 1, 0, 1)),
        "vector": VectorConfig(num_envs=8, batch_size=2),
    },
}


RESUMED = {name: dataclasses.replace(TEAM, **case) for name, case in CASES.items()}
"""gone on with in tests/contract/test_resumed.py"""


def test_actors_begin_with_the_weights_they_are_given(tmp_path):
    *_, given = updates(TEAM, 1)
    save_weights(given.policy, tmp_path / "start.safetensors")
    config = dataclasses.replace(TEAM, policy=dataclasses.replace(TEAM.policy, start=str(tmp_path / "start.safetensors")))
    *_, begun = updates(config, 0)
    weights = begun.policy.state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in given.policy.state_dict().items())


def crowd() -> gymnasium.vector.VectorEnv:
    return gymnasium.make_vec("CartPole-v1", num_envs=200, vectorization_mode="vector_entry_point")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"env": "multiagent", "env_kwargs": {}, "mappo": MAPPOConfig(critic="state")}, "--mappo.critic observations"),
        ({"mappo": MAPPOConfig(networks="groups", groups=(0, 1))}, "--mappo.groups 0 1 0 0"),
        (
            {"env": "tests.algorithm.test_mappo:crowd", "env_kwargs": {}, "minibatch": None},
            "--algorithm ppo if they are independent",
        ),
    ],
)
def test_what_does_not_fit_the_environment_is_refused_before_training(changes, said):
    with pytest.raises(ConfigError, match=said):
        make_trainer(dataclasses.replace(TEAM, **changes))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"critic": "stat"}, "Did you mean"),
        ({"groups": (0, 1)}, "--mappo.networks groups"),
        ({"networks": "groups"}, "--mappo.groups 0 0 1"),
        ({"networks": "groups", "groups": (0, 2)}, "without gaps"),
        ({"value_decay": 1.0}, "below 1"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        MAPPOConfig(**settings)


def test_a_central_critic_learns_where_an_independent_one_does_not():
    """Forty batches of 128 rows; without the hidden bonus both would be there after fifteen."""
    base = preset("hidden_bonus", algorithm="mappo")
    scores = {}
    for critic in ("state", "own"):
        seen, _ = updates(dataclasses.replace(base, threads=1, mappo=MAPPOConfig(critic=critic)), 40)
        scores[critic] = float(np.mean([metrics["env/score"] for metrics in seen[-5:]]))
    assert scores["state"] >= 0.97 and scores["own"] <= 0.85, scores
