"""The whole policy: shapes, stepping against sequences, initialisation, normalisation, saving."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from torch import Tensor

import fugu
from fugu.errors import ConfigError
from fugu.policy import ActorCritic, PolicyConfig, make_policy
from fugu.spaces import Packer

VECTOR = gs.Box(-1, 1, (4,))
MIXED = gs.Dict(
    image=gs.Box(0, 255, (7, 7, 3), np.uint8),
    direction=gs.Discrete(4),
    speed=gs.Box(-np.inf, np.inf, (2,)),
    height=gs.Box(-1, 1, (), np.float64),
)
ACTIONS = gs.Dict(move=gs.Discrete(3), push=gs.Box(-1, 1, (2,)), keys=gs.MultiBinary(2))
CORES: list[dict[str, Any]] = [{"core": "none"}, {"core": "lstm"}, {"core": "mingru", "core_layers": 2}]


def random_rows(policy: ActorCritic, *batch: int) -> Tensor:
    layout = policy.obs_layout
    layout.space.seed(0)
    packer, rows = Packer(layout), layout.zeros(*batch)
    for index in np.ndindex(*batch):
        packer.pack(layout.space.sample(), rows[(*index, ...)])
    return torch.from_numpy(rows)


@pytest.mark.parametrize("core", CORES, ids=lambda core: core["core"])
@pytest.mark.parametrize("obs", [VECTOR, MIXED], ids=["vector", "mixed"])
@pytest.mark.parametrize("action", [gs.Discrete(5), ACTIONS], ids=["discrete", "mixed"])
def test_a_sequence_equals_its_steps(obs: gs.Space, action: gs.Space, core: dict[str, Any]) -> None:
    config = PolicyConfig(core_size=8, hidden=(16,), normalize_observation=True, **core)
    policy = make_policy(obs, action, config, seed=0)
    rows = random_rows(policy, 3, 6)
    policy.observe(rows)
    first = torch.zeros(3, 6, dtype=torch.bool)
    first[0, 0] = first[1, 2] = first[2, 5] = True
    start = torch.randn(3, policy.state_size)
    params, value, last = policy(rows, start, first)
    assert params.shape == (3, 6, policy.distribution.size) and value.shape == (3, 6)
    state: Tensor | None = start
    for t in range(6):
        one = policy(rows[:, t], state, first[:, t])
        state = one.state
        assert one.params.shape == (3, policy.distribution.size) and one.value.shape == (3,)
        torch.testing.assert_close(one.params, params[:, t], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(one.value, value[:, t], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state, last, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [*CORES, {"share": False}, {"std": "state"}, {"hidden": ()}, {"hidden": (8, 8, 8), "activation": "silu"}],
    ids=str,
)
def test_every_weight_gets_a_gradient(settings: dict[str, Any]) -> None:
    policy = make_policy(MIXED, ACTIONS, PolicyConfig(**settings), seed=0)
    first = torch.zeros(2, 4, dtype=torch.bool)
    out = policy(random_rows(policy, 2, 4), torch.randn(2, policy.state_size), first)
    action = policy.distribution.sample(out.params.detach(), None, torch.Generator().manual_seed(0))
    logprob, entropy = policy.distribution.evaluate(out.params, action)
    (logprob.sum() + entropy.sum() + out.value.square().sum()).backward()
    without = [name for name, weight in policy.named_parameters() if weight.grad is None or not weight.grad.abs().sum() > 0]
    assert not without


def test_policy_and_value_share_nothing_when_told_so() -> None:
    policy = make_policy(VECTOR, gs.Discrete(2), PolicyConfig(share=False), seed=0)
    first = torch.zeros(3, dtype=torch.bool)
    policy(random_rows(policy, 3), None, first).value.sum().backward()
    touched = {
        name.removeprefix("net.").removesuffix(".weight").removesuffix(".bias").split(".layers")[0]
        for name, weight in policy.named_parameters()
        if weight.grad is not None and weight.grad.any()
    }
    assert touched == {"value_trunk", "heads.1"}


def test_weights_start_orthogonal() -> None:
    net = make_policy(VECTOR, gs.Discrete(3), PolicyConfig(hidden=(32, 32)), seed=0).net
    square = net.trunk.layers[1].weight
    torch.testing.assert_close(square @ square.T, 2 * torch.eye(32), rtol=0, atol=1e-4)
    head = net.heads[0].weight[:3]  # the last row is the value's
    torch.testing.assert_close(head @ head.T, 1e-4 * torch.eye(3), rtol=0, atol=1e-8)
    assert float(net.heads[0].weight[3].detach().norm()) == pytest.approx(1, abs=1e-4)
    assert not any(layer.bias.any() for layer in (*net.trunk.layers, *net.heads))


@pytest.mark.parametrize("std", ["free", "state"])
def test_continuous_actions_start_with_the_stated_deviation(std: Any) -> None:
    policy = make_policy(VECTOR, ACTIONS, PolicyConfig(std=std, initial_std=0.5), seed=0)
    params = policy(random_rows(policy, 5), None, torch.zeros(5, dtype=torch.bool)).params
    log_std = params[:, -2:]
    torch.testing.assert_close(log_std, torch.full((5, 2), math.log(0.5)), rtol=0, atol=0.05)
    assert (log_std.std(0) > 0).all() if std == "state" else torch.equal(log_std[0], log_std[4])


def test_the_seed_decides_the_weights_and_nothing_else_changes() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, two, other = (make_policy(VECTOR, gs.Discrete(2), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.net.trunk.layers[0].weight, two.net.trunk.layers[0].weight)
    assert not torch.equal(one.net.trunk.layers[0].weight, other.net.trunk.layers[0].weight)


def test_observations_are_normalised_by_what_was_observed() -> None:
    policy = make_policy(MIXED, gs.Discrete(2), PolicyConfig(normalize_observation=True), seed=0)
    rows = random_rows(policy, 40)
    mask = torch.arange(40) < 30
    policy.observe(rows, mask)
    obs, raw = policy.structured(rows), fugu.Layout(MIXED).views(rows.numpy())
    for name in ("speed", "height"):
        seen = raw[name][:30].astype(np.float64)
        expected = ((raw[name] - seen.mean(0)) / seen.std(0)).astype(np.float32)
        np.testing.assert_allclose(obs[name], expected, atol=1e-4)
    assert np.array_equal(obs["image"], raw["image"]) and obs["image"].dtype == torch.uint8
    assert np.array_equal(obs["direction"], raw["direction"])


def test_images_of_reals_are_not_normalised() -> None:
    space = gs.Dict(camera=gs.Box(0, 1, (20, 20)), speed=gs.Box(-1, 1, (2,)))
    policy = make_policy(space, gs.Discrete(2), PolicyConfig(normalize_observation=True), seed=0)
    assert [moments.mean.shape for moments in policy.moments.values()] == [(2,)]


def test_what_was_observed_is_saved_and_observing_needs_no_gradient() -> None:
    config = PolicyConfig(normalize_observation=True, core="lstm", core_size=8)
    policy, other = (make_policy(VECTOR, gs.Discrete(2), config, seed=seed) for seed in (0, 1))
    policy.observe(random_rows(policy, 5, 4), torch.ones(5, 4, dtype=torch.bool))
    other.load_state_dict(policy.state_dict())
    rows, first = random_rows(policy, 3), torch.zeros(3, dtype=torch.bool)
    state = policy.initial_state(3)
    assert torch.equal(policy(rows, state, first).params, other(rows, state, first).params)


def test_nothing_is_observed_unless_asked_for() -> None:
    policy = make_policy(VECTOR, gs.Discrete(2), seed=0)
    policy.observe(random_rows(policy, 5))
    assert not any("moments" in name for name in policy.state_dict())


def test_the_state_starts_at_zero_and_is_nothing_without_a_core() -> None:
    sizes = []
    for core in CORES:
        policy = make_policy(VECTOR, gs.Discrete(2), PolicyConfig(core_size=8, **core), seed=0)
        state = policy.initial_state(3)
        assert state.shape == (3, policy.state_size) and not state.any()
        sizes.append(policy.state_size)
    assert sizes == [0, 16, 16]


def test_rows_may_be_slices_of_a_larger_buffer() -> None:
    policy = make_policy(MIXED, gs.Discrete(2), seed=0)
    rows = random_rows(policy, 4, 6)
    first = torch.zeros(4, 6, dtype=torch.bool)
    whole = policy(rows, None, first).params
    torch.testing.assert_close(policy(rows[1:3, 2:5], None, first[1:3, 2:5]).params, whole[1:3, 2:5])
    torch.testing.assert_close(policy(rows.transpose(0, 1)[3], None, first[:, 3]).params, whole[:, 3])


def test_the_policy_is_public() -> None:
    assert fugu.policy.make_policy is make_policy


def test_an_empty_observation_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to observe"):
        make_policy(gs.Box(0, 1, (0,)), gs.Discrete(2))
