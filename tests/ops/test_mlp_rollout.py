"""A rollout in one kernel against the CPU's engine, which steps with the same actions, and torch, which says what they should be."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

import fugu
from fugu.algorithm.config import PPOConfig
from fugu.algorithm.parts.fused import Fused, moments_of, parameters_of, shape_of
from fugu.algorithm.parts.scale import ValueScale
from fugu.algorithm.ppo import PPO
from fugu.errors import ConfigError, GpuError
from fugu.gpu import emulation, libraries
from fugu.gpu.module import EXACT, cubin
from fugu.ops import mlp_ppo as mlp
from fugu.ops import mlp_rollout
from fugu.ops.mlp_plan import Card, MlpShape, Plan, plan_rollout
from fugu.ops.mlp_rollout import RolloutSlabs
from fugu.ops.sample import sample_categorical_reference
from fugu.policy.actor_critic import ActorCritic, make_policy
from fugu.policy.config import PolicyConfig
from fugu.rollout.acting import Act, Actor, Seen, forms_of
from fugu.rollout.device import DeviceRollout
from fugu.rollout.envs import blank
from fugu.vector.device import DeviceVec

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ENVS = [
    "cartpole",
    "breakout",
    *(pytest.param(env, marks=pytest.mark.slow) for env in ("acrobot", "bandit", "mountain_car", "pong")),
]
WORLDS, STEPS = 37, 24
"""two strips and a part of one"""
COLUMNS = ("reward", "terminated", "truncated")
NEXT = ("obs", "first", "mask")


def start(
    env: str, device: str, steps: int = STEPS, worlds: int = WORLDS, passes: int = 3, **config: object
) -> tuple[ActorCritic, MlpShape, DeviceVec, RolloutSlabs]:
    """A policy that does not choose at random, worlds after their reset, and slabs with their first row."""
    vec = fugu.vector.make(env, worlds, backend="device", device=device, env_kwargs={"max_steps": 11})
    policy = make_policy(vec.observation_space, vec.action_space, PolicyConfig(**config), seed=3).to(device)
    with torch.no_grad():
        policy.net.heads[0].weight[:-1] *= 100
    shape = shape_of(policy, passes, normalized=True)
    slabs = RolloutSlabs.new(shape, worlds, steps, torch.device(device))
    slabs.uniform.copy_(torch.rand(steps, worlds, generator=torch.Generator().manual_seed(4)))
    rows = vec.rows()
    vec.reset(5, rows)
    for name in NEXT:
        getattr(slabs, name)[0] = getattr(rows, name).reshape(getattr(slabs, name)[0].shape)
    return policy, shape, vec, slabs


def assert_is_a_rollout(
    env: str, policy: ActorCritic, slabs: RolloutSlabs, episodes: int, values: ValueScale | None = None
) -> None:
    """Every row is the engine's for these actions, every action torch's for these rows and uniforms."""
    host = fugu.vector.make(env, slabs.obs.shape[1], backend="native", num_workers=1, env_kwargs={"max_steps": 11})
    host.reset(seed=5)
    steps = len(slabs.uniform)
    policy = policy.cpu()
    for t in range(steps + 1):
        for name in NEXT:
            assert getattr(host.rows, name).tobytes() == getattr(slabs, name)[t].cpu().numpy().tobytes(), (name, t)
        obs = torch.from_numpy(host.rows.obs.copy())
        with torch.no_grad():
            out = policy(obs, None, torch.zeros(len(obs), dtype=torch.bool))
        value = slabs.bootstrap if t == steps else slabs.value[t]
        expected = out.value if values is None else values.real(out.value)
        torch.testing.assert_close(value.cpu(), expected, atol=3e-5, rtol=1e-5)
        if t == steps:
            break
        action, logprob = sample_categorical_reference(out.params, slabs.uniform[t].cpu())
        assert torch.equal(action, slabs.action[t].cpu()), t
        torch.testing.assert_close(slabs.logprob[t].cpu(), logprob, atol=1e-5, rtol=1e-4)
        host.step(action.numpy())
        for name in COLUMNS:
            assert getattr(host.rows, name).tobytes() == getattr(slabs, name)[t].cpu().numpy().tobytes(), (name, t)
    assert host.drain_log().episodes == episodes > slabs.obs.shape[1]


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("env", ENVS)
def test_rows_are_those_of_the_engine_and_actions_those_of_torch(env: str, device: str) -> None:
    policy, shape, vec, slabs = start(env, device)
    mlp_rollout.mlp_rollout(shape, vec.worlds, slabs, *parameters_of(policy), carry=False)
    assert_is_a_rollout(env, policy, slabs, vec.drain_log().episodes)
    assert len(slabs.action.unique()) > 1


def test_observations_and_values_are_normalised_but_stored_as_they_are() -> None:
    policy, shape, vec, slabs = start("acrobot", "cpu", normalize_observation=True)
    values = ValueScale()
    values.update(7 + 2 * torch.randn(50), torch.ones(50, dtype=torch.bool))
    policy.observe(0.3 + torch.randn(40, shape.inputs))
    given = {"moments": moments_of(policy), "value_moments": values.moments}
    mlp_rollout.mlp_rollout(shape, vec.worlds, slabs, *parameters_of(policy), **given, carry=False)
    assert_is_a_rollout("acrobot", policy, slabs, vec.drain_log().episodes, values)


@pytest.mark.slow
@pytest.mark.parametrize(("strips", "split"), [(1, 4), (2, 2), (8, 1)])
def test_any_division_among_warps_gives_the_same_bits(strips: int, split: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def divided(shape: MlpShape, worlds: int, card: Card) -> Plan:
        return Plan(strips, split, 1, -(-worlds // (16 * strips)), 4 * shape.shared_words(16 * strips))

    results: list[list[Tensor]] = []
    for patch in (False, True):
        policy, shape, vec, slabs = start("pong", "cpu", 3, hidden=(32, 64), activation="relu")
        if patch:
            monkeypatch.setattr(mlp_rollout, "plan_rollout", divided)
        mlp_rollout.mlp_rollout(shape, vec.worlds, slabs, *parameters_of(policy), carry=False)
        results.append([getattr(slabs, field.name) for field in fields(RolloutSlabs)] + [vec.worlds.parts.words])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_rollouts_carry_on_where_the_last_one_ended() -> None:
    policy, shape, vec, whole = start("cartpole", "cpu", 20)
    mlp_rollout.mlp_rollout(shape, vec.worlds, whole, *parameters_of(policy), carry=False)
    episodes = vec.drain_log().episodes
    policy, shape, vec, first = start("cartpole", "cpu", 10)
    second = RolloutSlabs(**{field.name: getattr(first, field.name) for field in fields(RolloutSlabs)})
    first.uniform.copy_(whole.uniform[:10])
    mlp_rollout.mlp_rollout(shape, vec.worlds, first, *parameters_of(policy), carry=False)
    second.uniform = whole.uniform[10:].clone()
    mlp_rollout.mlp_rollout(shape, vec.worlds, second, *parameters_of(policy), carry=True)
    for name in (*NEXT, "action", "logprob", "value", *COLUMNS):
        expected = getattr(whole, name)[10:]
        assert torch.equal(getattr(second, name), expected), name
    assert torch.equal(second.bootstrap, whole.bootstrap)
    assert vec.drain_log().episodes == episodes


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("passes", [1, 3])
def test_the_first_ratio_is_exactly_one(passes: int, device: str) -> None:
    """The loss sees the very probabilities that the rollout stored."""
    policy, shape, vec, slabs = start("pong", device, 8, passes=passes, hidden=(64, 48))
    weights, biases = parameters_of(policy)
    mlp_rollout.mlp_rollout(shape, vec.worlds, slabs, weights, biases, carry=False)
    columns = {"action": slabs.action, "old_logprob": slabs.logprob, "old_value": slabs.value, "mask": slabs.mask[:-1]}
    columns |= {"obs": slabs.obs[:-1], "advantage": slabs.reward, "value_target": slabs.value}
    by_segment = {name: column.transpose(0, 1) for name, column in columns.items()}
    settings = {"clip": 0.0, "value_coef": 0.5, "entropy_coef": 0.0}
    _, stats = mlp.mlp_ppo(shape, weights=weights, biases=biases, **by_segment, **settings)
    assert stats["kl"] == stats["clip_fraction"] == stats["value"] == 0


def test_it_fills_the_slabs_of_a_device_rollout() -> None:
    """Two batches in a row: the second begins where the first ended."""
    policy, _, vec, _ = start("cartpole", "cpu", 1)
    with emulation():
        fill = Fused(policy, None, passes=3).rollout(vec, torch.Generator().manual_seed(1))
    algorithm = PPO(policy, PPOConfig(), num_agents=WORLDS, seed=0)
    columns = forms_of(algorithm.act(blank(vec, algorithm.device)).columns)
    rollout = DeviceRollout(vec, 6, columns, whole=fill)
    rollout.restart(5)
    host = fugu.vector.make("cartpole", WORLDS, backend="native", num_workers=1, env_kwargs={"max_steps": 11})
    host.reset(seed=5)
    drawn = []
    for _ in range(2):
        batch = rollout.next(Actor(no_actor)).batch
        assert batch["action"].shape == (WORLDS, 6, 1) and batch["logprob"].shape == batch["value"].shape == (WORLDS, 6)
        for t in range(6):
            assert host.rows.obs.tobytes() == batch["obs"][:, t].contiguous().numpy().tobytes()
            out = policy(batch["obs"][:, t], None, batch["first"][:, t])
            expected = policy.distribution.logprob(out.params, batch["action"][:, t])
            torch.testing.assert_close(batch["logprob"][:, t], expected.detach(), atol=1e-5, rtol=1e-4)
            host.step(batch["action"][:, t, 0].contiguous().numpy())
            assert host.rows.reward.tobytes() == batch["reward"][:, t].contiguous().numpy().tobytes()
        torch.testing.assert_close(
            batch["bootstrap"], policy(torch.from_numpy(host.rows.obs.copy()), None, batch["first"][:, 0]).value.detach()
        )
        drawn.append(batch["action"].clone())
    assert not torch.equal(*drawn)


def no_actor(_: Seen) -> Act:
    raise AssertionError("the kernel acts by itself")


def test_worlds_it_cannot_play_are_refused_by_name() -> None:
    _, shape, vec, slabs = start("cartpole", "cpu", 2)
    weights, biases = mlp_weights(shape)
    for other, message in [
        ("connect4", "2 agents"),
        ("tetris", "observation"),
        ("acrobot", "observation"),
        ("memory", "observation"),
    ]:
        others = fugu.vector.make(other, WORLDS, backend="device", device="cpu")
        with pytest.raises(ConfigError, match=message):
            mlp_rollout.mlp_rollout(shape, others.worlds, slabs, weights, biases, carry=False)
    with pytest.raises(ConfigError, match="not one of 3"):
        mlp_rollout.mlp_rollout(replace(shape, choices=3), vec.worlds, slabs, weights, biases, carry=False)
    fewer = fugu.vector.make("cartpole", 5, backend="device", device="cpu")
    with pytest.raises(ConfigError, match="5 worlds"):
        mlp_rollout.mlp_rollout(shape, fewer.worlds, slabs, weights, biases, carry=False)
    slabs.value = slabs.value[:1]
    with pytest.raises(TypeError, match="value: expected"):
        mlp_rollout.mlp_rollout(shape, vec.worlds, slabs, weights, biases, carry=False)


def mlp_weights(shape: MlpShape) -> tuple[list[Tensor], list[Tensor]]:
    pairs = list(zip(shape.widths, shape.widths[1:], strict=False))
    return [torch.zeros(out, into) for into, out in pairs], [torch.zeros(out) for _, out in pairs]


@pytest.mark.parametrize("env", ["cartpole", "breakout"])
def test_the_kernel_compiles_for_a_card(env: str) -> None:
    try:
        libraries.nvrtc()
    except GpuError as error:
        pytest.skip(str(error))
    _, shape, vec, _ = start(env, "cpu", 1)
    source = vec.worlds.parts.source
    text = mlp_rollout.rollout_source(shape, plan_rollout(shape, 8192, Card()), source)
    assert cubin(text, "sm_90", EXACT, source.files, "the rollout").stat().st_size > 0
