"""Costs: from what an environment says of a step to the column of its row, for every kind of environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from torch import Tensor

import fugu
from fugu.emulation.tensor import Uniform
from fugu.errors import ConfigError, EnvError, SpaceError


class Spending(gymnasium.Env):
    """What is spent (0 to 2) is the cost; three steps."""

    observation_space, action_space = gs.Box(0, 9, (1,), np.float32), gs.Discrete(3)
    costs = ("spent",)

    def __init__(self, said: Any = None) -> None:
        self.said = said

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.t = 0
        return np.zeros(1, np.float32), {"spent": 7.0}  # a reset costs nothing, whatever it says

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        info = {"spent": action} if self.said is None else self.said
        return np.full(1, self.t, np.float32), 1.0, self.t == 3, False, info


class Wrapped(gymnasium.Wrapper):
    """Says nothing of costs itself."""


class AlsoWaiting(gymnasium.Wrapper):
    costs = ("spent", "waited")

    def step(self, action: int) -> Any:
        *result, info = self.env.step(action)
        return (*result, {**info, "waited": float(action == 0)})


def costs_of(env: Any, actions: list[int], **settings: Any) -> list[list[float]]:
    with fugu.vector.make(env, 1, **settings) as vec:
        vec.reset(0)
        seen = [vec.rows.cost[0].tolist()]
        for action in actions:
            vec.step(np.array([action]))
            seen.append(vec.rows.cost[0].tolist())
        assert vec.spec.costs
        return seen


def test_what_a_step_costs_stands_with_its_reward():
    expected = [[0], [2], [1], [2], [0], [1]]  # the first row, three steps, the step that restarts, a step
    assert costs_of(Spending, [2, 1, 2, 2, 1], backend="serial") == expected
    assert costs_of(lambda: Wrapped(Spending()), [2, 1, 2, 2, 1], backend="serial") == expected


def test_a_wrapper_may_add_costs():
    assert costs_of(lambda: AlsoWaiting(Spending()), [2, 0], backend="serial") == [[0, 0], [2, 0], [0, 1]]


def test_episode_costs_are_logged():
    with fugu.vector.make(Spending, 2, backend="serial", infos="all") as vec:
        vec.reset(0)
        for _ in range(3):
            infos = vec.step(np.array([2, 1]))[-1]
        assert [infos[agent]["episode"]["c"] for agent in (0, 1)] == [[6.0], [3.0]]
        assert vec.drain_log().mean_costs == {"spent": 4.5}
        assert vec.drain_log().mean_costs == {"spent": 0.0}


@pytest.mark.parametrize(
    "said, problem",
    [({}, "info has no 'spent'"), ({"spent": float("nan")}, "not finite"), ({"spent": "much"}, "expected a number")],
)
def test_a_cost_that_is_missing_or_no_number_is_named(said, problem):
    with fugu.vector.make(lambda: Spending(said), 1, backend="serial") as vec:
        vec.reset(0)
        with pytest.raises(EnvError, match=problem):
            vec.step(np.array([1]))


def test_environments_with_different_costs_do_not_share_a_batch():
    with pytest.raises(ConfigError, match="another costs"):
        fugu.vector.make([Spending, lambda: AlsoWaiting(Spending())], 2, backend="serial")


def test_costs_of_a_vector_env_are_refused():
    class Costly(gymnasium.vector.SyncVectorEnv):
        costs = ("spent",)

    with pytest.raises(ConfigError, match="give the single environment"):
        fugu.vector.make(lambda: Costly([Spending] * 2), 1, backend="serial")


def test_the_checker_sees_costs_that_were_never_written():
    class Forgetful:
        observation_space, action_space = gs.Box(0, 1, (1,), np.float32), gs.Discrete(2)
        num_agents, costs = 1, ("spent",)

        def reset(self, seed: int | None, out: Any) -> None:
            out.start()
            out.obs[...] = 0

        def step(self, action: Any, out: Any) -> None:
            out.obs[...] = out.reward[...] = 0
            out.terminated[...] = out.truncated[...] = out.first[...] = False
            out.mask[...] = True

        def close(self) -> None: ...

    assert any(finding.where == "cost" for finding in fugu.check_env(Forgetful).findings)


class Pair:
    """A PettingZoo parallel environment of two steps; b leaves after the first."""

    possible_agents = ["a", "b"]  # noqa: RUF012 - as in PettingZoo
    metadata = {"name": "pair"}  # noqa: RUF012
    costs = ("spent",)

    def observation_space(self, agent: str) -> gs.Space:
        return gs.Box(0, 9, (1,), np.float32)

    def action_space(self, agent: str) -> gs.Space:
        return gs.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.t, self.agents = 0, ["a", "b"]
        return {agent: np.zeros(1, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        self.t += 1
        here = self.agents
        ended = {agent: agent == "b" or self.t == 2 for agent in here}
        self.agents = [agent for agent in here if not ended[agent]]
        obs = {agent: np.full(1, self.t, np.float32) for agent in here}
        infos = {agent: {"spent": actions[agent]} for agent in here}
        return obs, dict.fromkeys(here, 1.0), ended, dict.fromkeys(here, False), infos

    def close(self) -> None: ...


def test_native_costs_are_in_the_infos_of_gymnasiums_own_kinds():
    actions = np.array([1, 0, 1])
    many = gymnasium.make_vec("fugu.envs:fugu/KnapsackCmdp-v0", num_envs=3)
    many.reset(seed=0)
    info = many.step(actions)[-1]
    assert info["cost"].tolist() == [1, 0, 1] and info["_cost"].all()
    many.close()
    one = gymnasium.make("fugu.envs:fugu/KnapsackCmdp-v0")
    assert "cost" not in one.reset(seed=0)[1]
    assert [one.step(action)[-1]["cost"] for action in actions] == [1, 0, 1]


def test_each_agent_of_a_team_pays_its_own():
    with fugu.vector.make(Pair, 1, backend="serial") as vec:
        vec.reset(0)
        seen = []
        for actions in ([1, 2], [2, 2], [2, 2], [0, 1]):
            vec.step(np.array(actions))
            seen.append(vec.rows.cost[:, 0].tolist())
        assert seen == [[1, 2], [2, 0], [0, 0], [0, 1]]  # b is gone in the second step; the third starts anew
        assert vec.drain_log().mean_costs["spent"] == pytest.approx((3 + 2 + 1) / 3)


class Knapsack:
    """knapsack_cmdp of native/envs as torch functions: the same random numbers, so the same rows."""

    observation_space, action_space = gs.Box(0, 1, (2,), np.float32), gs.Discrete(2)
    costs, name = ("cost",), "knapsack"

    def reset(self, n: int, uniform: Uniform) -> dict[str, Tensor]:
        return {"offer": torch.floor(2 * uniform()).long(), "t": torch.zeros(n, dtype=torch.int64, device=uniform.device)}

    def step(self, state: dict[str, Tensor], action: Tensor, uniform: Uniform) -> Any:
        reward = action * torch.where(state["offer"] == 0, 2.0, 0.5)
        later = {"offer": torch.floor(2 * uniform()).long(), "t": state["t"] + 1}
        return later, reward, later["t"] >= 20, action[:, None]

    def observe(self, state: dict[str, Tensor]) -> Tensor:
        return torch.nn.functional.one_hot(state["offer"], 2).float()


@pytest.mark.parametrize("settings", [{}, {"backend": "serial"}, {"batch_size": 3}])
def test_costs_of_a_torch_environment_are_those_of_the_native_one(settings):
    with fugu.vector.make(Knapsack, 6, **settings) as vec, fugu.vector.make("knapsack_cmdp", 6) as host:
        vec.async_reset(4)
        host.reset(4)
        random = np.random.default_rng(0)
        for _ in range(60):
            action = random.integers(0, 2, 6)
            for _ in vec.groups:
                rows = vec.recv()
                for name in ("obs", "reward", "cost", "first", "mask", "terminated"):
                    np.testing.assert_array_equal(getattr(rows, name), getattr(host.rows, name)[rows.agents], name)
                vec.send(action[rows.agents])
            host.step(action)
        expected = host.drain_log()
        for _ in vec.groups:
            vec.recv()
            vec.park()
        assert vec.drain_log()[:3] == pytest.approx(expected[:3]) and expected.episodes > 6


def test_a_torch_environment_that_forgets_its_costs_is_told():
    class Forgetful(Knapsack):
        def step(self, state: dict[str, Tensor], action: Tensor, uniform: Uniform) -> Any:
            return super().step(state, action, uniform)[:3]

    with fugu.vector.make(Forgetful, 2) as vec:
        vec.reset(0)
        with pytest.raises(SpaceError, match="cost"):
            vec.step(np.zeros(2, np.int64))


WALKERS = """#pragma once
#include <fugu/env.h>
struct Walkers {
  static constexpr const char* name = "walkers";
  static constexpr int agents = 2, time_limit = 0;
  static constexpr bool independent = true;
  struct Obs { float steps; };
  using Action = int64_t;
  static constexpr fugu::Field observation[] = {fugu::box("", 1)};
  static constexpr fugu::Field action[] = {fugu::discrete("", 3)};
  static constexpr const char* costs[] = {"effort", "time"};
  struct Params { int32_t last = 2; };
  static constexpr fugu::Param<Params> params[] = {{"last", &Params::last}};
  struct State { int32_t steps[agents]; };
  FUGU_HD static void reset(State& s, const Params&, fugu::Rng&) { s.steps[0] = s.steps[1] = 0; }
  FUGU_HD static void step(State& s, const Params& p, fugu::Rng&, const Action* action, const bool* fresh, float* reward,
                           bool* terminated, float* costs) {
    for (int a = 0; a < agents; ++a) {
      s.steps[a] = fresh[a] ? 0 : s.steps[a] + 1;
      reward[a] = 1;
      costs[2 * a] = static_cast<float>(action[a]);
      costs[2 * a + 1] = static_cast<float>(a + 1);
      terminated[a] = s.steps[a] >= p.last + a;
    }
  }
  FUGU_HD static void observe(const State& s, const Params&, int agent, Obs* row) { row->steps = static_cast<float>(s.steps[agent]); }
};
FUGU_ENVIRONMENT(Walkers)
"""


def test_agents_that_end_one_by_one_pay_several_costs_each(tmp_path):
    header = tmp_path / "walkers.h"
    header.write_text(WALKERS)
    with fugu.vector.make(str(header), 2) as vec:
        vec.reset(0)
        seen = []
        for _ in range(4):
            vec.step(np.array([2, 1, 0, 2]))
            seen.append(vec.rows.cost.tolist())
        assert vec.spec.costs == ("effort", "time")
        once = [[2, 1], [1, 2], [0, 1], [2, 2]]
        none = [0, 0]
        assert seen == [once, once, [none, once[1], none, once[3]], [once[0], none, once[2], none]]
        log = vec.drain_log()  # agents 0 and 2 ended after two steps, 1 and 3 after three
        assert log.mean_costs == {"effort": (4 + 3 + 0 + 6) / 4, "time": (2 + 6 + 2 + 6) / 4}


LANES = """#pragma once
#include <fugu/env.h>
struct Drift {
  static constexpr const char* name = "drift";
  static constexpr int agents = 1, time_limit = 7;
  static constexpr bool lanes = true;
  struct Obs { float at; };
  using Action = int64_t;
  static constexpr fugu::Field observation[] = {fugu::box("", 1)};
  static constexpr fugu::Field action[] = {fugu::discrete("", 3)};
  static constexpr const char* costs[] = {"left", "right"};
  struct Params { float end = 4; };
  static constexpr fugu::Param<Params> params[] = {{"end", &Params::end}};
  struct State { float at; };
  FUGU_HD static void reset(State& s, const Params&, fugu::Rng& rng) { s.at = static_cast<float>(rng.below(3)); }
  FUGU_HD static bool step(State& s, const Params& p, const Action* action, float* reward, float* costs) {
    const int way = static_cast<int>(action[0]) - 1;
    s.at += static_cast<float>(way);
    reward[0] = s.at;
    costs[0] = fugu::select(way < 0, 1.0f, 0.0f);
    costs[1] = fugu::select(way > 0, 0.5f, 0.0f);
    return s.at >= p.end;
  }
  FUGU_HD static void observe(const State& s, const Params&, int, Obs* row) { row->at = s.at; }
};
FUGU_ENVIRONMENT(Drift)
"""


def test_worlds_stepped_in_lanes_pay_as_those_stepped_alone(tmp_path):
    """150 worlds are two blocks of lanes and a part of one; alone, each is a block of one."""
    header = tmp_path / "drift.h"
    header.write_text(LANES)
    random = np.random.default_rng(0)
    with fugu.vector.make(str(header), 150) as vec, fugu.vector.make(str(header), 150, backend="serial") as alone:
        vec.reset(3)
        alone.reset(3)
        for _ in range(40):
            action = random.integers(0, 3, 150)
            counts = vec.rows.mask.copy()
            vec.step(action)
            alone.step(action)
            expected = np.stack([(action == 0) * 1.0, (action == 2) * 0.5], 1) * counts[:, None]
            np.testing.assert_array_equal(vec.rows.cost, expected)
            np.testing.assert_array_equal(alone.rows.cost, expected)
        log, other = vec.drain_log(), alone.drain_log()
        assert log.episodes == other.episodes > 300 and log.mean_costs == pytest.approx(other.mean_costs)


def test_a_header_whose_step_takes_no_costs_is_told(tmp_path):
    header = tmp_path / "walkers.h"
    header.write_text(WALKERS.replace("bool* terminated, float* costs)", "bool* terminated)").replace("costs[2", "reward[0"))
    with pytest.raises(ConfigError, match="needs a step with a last argument float\\* costs"):
        fugu.vector.make(str(header), 2)
