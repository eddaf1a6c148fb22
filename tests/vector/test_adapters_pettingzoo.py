"""Environments of several agents as PettingZoo's ParallelEnv, against PettingZoo's own tests and the rows they are made of."""

import sys
import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gs
from pettingzoo import ParallelEnv
from pettingzoo.test import parallel_api_test, parallel_seed_test

import fugu.vector
from fugu.errors import CallOrderError, ConfigError, MissingExtra, SpaceError
from fugu.vector import as_pettingzoo


class Leaving(ParallelEnv):
    """Agents that leave one by one, and one that comes late."""

    metadata = {"name": "leaving"}  # noqa: RUF012
    possible_agents = ["x", "y", "late"]  # noqa: RUF012

    def observation_space(self, agent: Any) -> gs.Space:
        return gs.Box(0, 9, (1,))

    def action_space(self, agent: Any) -> gs.Space:
        return gs.Discrete(3, start=1)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.agents, self.steps, self.options = ["x", "y"], 0, options
        return {a: np.zeros(1, np.float32) for a in self.agents}, {a: {"options": options} for a in self.agents}

    def step(self, actions: Any) -> Any:
        assert set(actions) == set(self.agents)
        assert all(self.action_space(a).contains(action) for a, action in actions.items())
        self.steps += 1
        told = list(self.agents) + (["late"] if self.steps == 2 else [])
        ends = {"x": 1, "y": 3, "late": 4}
        over = {a: self.steps >= ends[a] for a in told}
        self.agents = [a for a in told if not over[a]]
        obs = {a: np.full(1, self.steps, np.float32) for a in told}
        return obs, {a: float(actions.get(a, 0)) for a in told}, over, dict.fromkeys(told, False), {a: {} for a in told}


@pytest.mark.parametrize("env", ["foraging", "connect4", "snake", Leaving])
def test_pettingzoos_own_tests_pass_without_a_warning(env: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        parallel_api_test(as_pettingzoo(env, backend="serial"), num_cycles=60)
        if env is not Leaving:
            parallel_seed_test(lambda: as_pettingzoo(env, backend="serial"), num_cycles=30)


def test_agents_are_told_what_stands_in_their_rows(opened: list[Any]) -> None:
    face, vec = as_pettingzoo("foraging", backend="native"), fugu.vector.make("foraging", 1, backend="native")
    opened += [face, vec]
    obs, _ = face.reset(seed=5)
    assert face.agents == face.possible_agents == [f"agent_{i}" for i in range(4)]
    rows, _ = vec.reset(seed=[5])
    rng = np.random.default_rng(0)
    for _ in range(40):
        for i, agent in enumerate(face.possible_agents):
            for name, view in vec.views(rows).items():
                np.testing.assert_array_equal(obs[agent][name], view[i])
        action = rng.integers(0, 6, 4)
        obs, rewards, terminated, truncated, _ = face.step(dict(zip(face.possible_agents, action, strict=True)))
        rows, reward, *ends, _ = vec.step(action)
        for told, column in zip((rewards, terminated, truncated), (reward, *ends), strict=True):
            assert list(told.values()) == column.tolist()
        if not face.agents:
            break
    assert face.observation_space("agent_0") is not face.observation_space("agent_1")


def test_agents_come_and_go_under_their_own_names(opened: list[Any]) -> None:
    face = as_pettingzoo(Leaving, backend="serial")
    opened.append(face)
    _, infos = face.reset(options={"a": 1})
    assert face.agents == ["x", "y"] and infos["x"]["options"] == {"a": 1}
    seen = []
    for _ in range(4):
        *_, terminated, _, _ = face.step(dict.fromkeys(face.agents, 2))
        seen.append((sorted(terminated), sorted(face.agents)))
    assert seen == [(["x", "y"], ["y"]), (["late", "y"], ["late", "y"]), (["late", "y"], ["late"]), (["late"], [])]
    with pytest.raises(CallOrderError, match="the episode is over"):
        face.step({})
    assert face.reset()[0]["x"] == [0.0]


def test_agents_that_wait_for_their_turn_need_no_action_and_masks_stand_in_infos(opened: list[Any]) -> None:
    face = as_pettingzoo("connect4")
    opened.append(face)
    _, infos = face.reset(seed=0)
    for _ in range(60):
        mover = next(agent for agent in face.agents if face.vec.rows.mask[face.possible_agents.index(agent)])
        mask = infos[mover]["action_mask"]
        assert mask.dtype == np.int8 and mask.shape == (7,)
        *_, infos = face.step({mover: face.action_space(mover).sample(mask)})
        if not face.agents:
            break
    assert not face.agents
    assert face.render().shape[-1] == 3


def test_wrong_actions_and_settings_say_what_is_expected(opened: list[Any]) -> None:
    face = as_pettingzoo("snake")
    opened.append(face)
    face.reset(seed=0)
    good = dict.fromkeys(face.agents, 0)
    with pytest.raises(ConfigError, match="no action for 'agent_3'"):
        face.step(dict.fromkeys(face.agents[:3], 0))
    with pytest.raises(ConfigError, match="'nobody'.*possible_agents"):
        face.step({**good, "nobody": 1})
    with pytest.raises(SpaceError, match="agent_2"):
        face.step({**good, "agent_2": 99})
    face.step(good)
    with pytest.raises(ConfigError, match="must not be negative"):
        face.reset(seed=-1)
    with pytest.raises(ConfigError, match="one environment with its agents, got 2"):
        as_pettingzoo(fugu.vector.make("foraging", 2))


def test_without_pettingzoo_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "fugu.vector.adapters_pettingzoo", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "pettingzoo"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(MissingExtra, match=r'the PettingZoo adapter needs an extra: pip install "fugu-rl\[pettingzoo\]"'):
        as_pettingzoo("foraging")
