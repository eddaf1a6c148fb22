"""What a checkpoint says of its environments: read back it is equal, and anything else is refused."""

from __future__ import annotations

import json

import pytest
from gymnasium import spaces as gs

from fugu.emulation.env import EnvSpec
from fugu.emulation.spec_json import spec_from_json, spec_to_json
from fugu.errors import SpaceError

SHORT, LONG = gs.Box(-1, 1, (2,)), gs.Box(-1, 1, (3,))
SPEC = EnvSpec(
    LONG,
    gs.Discrete(4),
    2,
    name="team",
    costs=("fuel",),
    columns={"risk": ((), "float32")},
    agents=("red", "blue"),
    agent_spaces=((SHORT, gs.Discrete(4)), (LONG, gs.Discrete(2))),
)
WRITTEN = spec_to_json(SPEC)


def test_a_spec_comes_back_equal():
    assert spec_from_json(json.loads(json.dumps(WRITTEN, allow_nan=False))) == SPEC


def test_a_spec_that_json_cannot_hold_is_left_out():
    assert spec_to_json(EnvSpec(gs.Dict({("a", 1): SHORT}), gs.Discrete(2), 1)) is None


def test_names_that_json_cannot_hold_are_left_out():
    spec = EnvSpec(SHORT, gs.Discrete(2), 1, agents=(("a", 1),))
    assert spec_from_json(spec_to_json(spec)).agents == ()


@pytest.mark.parametrize(
    "change",
    [
        {"num_agents": 0},
        {"num_agents": 3},
        {"num_agents": True},
        {"agents": ["red", "red"]},
        {"agents": [["red"], "blue"]},
        {"agent_spaces": [WRITTEN["agent_spaces"][0]]},
        {"agent_spaces": [1, 2]},
        {"observation_space": None},
        {"costs": "fuel"},
        {"columns": {"risk": [[0], "float32"]}},
    ],
    ids=str,
)
def test_anything_else_is_refused(change):
    with pytest.raises(SpaceError):
        spec_from_json({**WRITTEN, **change})


def test_what_is_no_object_is_refused():
    with pytest.raises(SpaceError):
        spec_from_json([1])
