"""Which policies fit the fused network."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces as gs

from fugu.algorithm.parts.fused import moments_of, parameters_of, shape_of
from fugu.errors import ConfigError
from fugu.ops.mlp_plan import MlpShape
from fugu.policy.actor_critic import make_policy
from fugu.policy.config import PolicyConfig

BOX = gs.Box(-1, 1, (4,), np.float32)


def test_normalised_observations_are_taken_where_the_kernels_get_their_moments() -> None:
    policy = make_policy(BOX, gs.Discrete(3), PolicyConfig(normalize_observation=True))
    assert shape_of(policy, normalized=True).inputs == 4
    assert moments_of(policy) is policy.moments["0"]
    assert moments_of(make_policy(BOX, gs.Discrete(3))) is None


def test_the_shape_of_a_policy_is_found() -> None:
    policy = make_policy(BOX, gs.Discrete(3), PolicyConfig(hidden=(64, 32), activation="relu"))
    assert shape_of(policy, 3) == MlpShape(4, (64, 32), 3, "relu", 3)
    weights, biases = parameters_of(policy)
    in_order = [parameter for layer in zip(weights, biases, strict=True) for parameter in layer]
    assert all(one is other for one, other in zip(in_order, policy.parameters(), strict=True))
    assert shape_of(policy).parameters == sum(parameter.numel() for parameter in policy.parameters())


@pytest.mark.parametrize(
    ("observation", "action", "settings", "message"),
    [
        (BOX, gs.Discrete(2), {"share": False}, "share"),
        (BOX, gs.Discrete(2), {"core": "lstm"}, "memory"),
        (BOX, gs.Discrete(2), {"normalize_observation": True}, "normalised"),
        (BOX, gs.MultiDiscrete([2, 2]), {}, "one choice"),
        (BOX, BOX, {}, "one choice"),
        (gs.Box(0, 9, (4,), np.int8), gs.Discrete(2), {}, "Box of float32"),
        (gs.Box(0, 9, (4,), np.float64), gs.Discrete(2), {}, "Box of float32"),
        (gs.Box(-1, 1, (2, 3), np.float32), gs.Discrete(2), {}, "axes"),
        (gs.Dict(a=BOX, b=BOX), gs.Discrete(2), {}, "Box of float32"),
        (BOX, gs.Discrete(2), {"hidden": (50,)}, "multiples of 16"),
    ],
)
def test_policies_it_cannot_compute_are_refused_by_name(
    observation: gs.Space, action: gs.Space, settings: dict, message: str
) -> None:
    policy = make_policy(observation, action, PolicyConfig(**settings))
    with pytest.raises(ConfigError, match=message):
        shape_of(policy)
