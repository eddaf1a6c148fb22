"""PettingZoo envs as rows: against hand-computed tables and against plain PettingZoo loops with the same seed and moves."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces as gs
from pettingzoo.test import api_test, parallel_api_test

import fugu.vector
from fugu.check import check_env
from fugu.emulation.env import Rows, spec_of
from fugu.emulation.factory import Emulation, emulate
from fugu.emulation.pettingzoo import ParallelEnv, TurnBasedEnv
from fugu.errors import ConfigError, EnvError, SpaceError

OBS = gs.Box(-100, 100, (3,), np.float32)


class Shifts(pettingzoo.ParallelEnv):
    """Agents come and go by a timetable ``name -> (joins after step, leaves at step, how)``; nobody knows more than the clock.

    An observation is (agent's number from 1, clock, last action), a reward 10 x number + clock. ``dead_talk``: sloppy, the env
    goes on listing the dead and reporting on everybody.
    """

    metadata: ClassVar = {"name": "shifts_v0"}
    render_mode = None

    def __init__(self, table: dict[str, tuple[int, int, str]], *, mask: bool = False, dead_talk: bool = False) -> None:
        self.table, self.mask, self.dead_talk = table, mask, dead_talk
        self.possible_agents = list(table)
        self.agents: list[str] = []
        self.seen: list[dict[str, Any]] = []
        self.resets: list[tuple[Any, Any]] = []

    @functools.cache  # noqa: B019
    def observation_space(self, agent: str) -> gs.Space:
        return OBS

    @functools.cache  # noqa: B019
    def action_space(self, agent: str) -> gs.Space:
        return gs.Discrete(4)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.clock = 0
        self.resets.append((seed, options))
        self.agents = [name for name, (joins, _, _) in self.table.items() if joins == 0]
        return {a: self._obs(a, -1) for a in self.agents}, {a: self._info(a) for a in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.seen.append({a: int(v) for a, v in actions.items()})
        self.clock += 1
        self.agents += [a for a, (joins, _, _) in self.table.items() if joins == self.clock]
        talk = self.possible_agents if self.dead_talk else self.agents
        end = {a: self.table[a][2] if self.clock >= self.table[a][1] else "" for a in talk}
        result = (
            {a: self._obs(a, actions.get(a, -1)) for a in talk},
            {a: 10.0 * self._number(a) + self.clock for a in talk},
            {a: end[a] == "terminated" for a in talk},
            {a: end[a] == "truncated" for a in talk},
            {a: self._info(a) for a in talk},
        )
        if not self.dead_talk:
            self.agents = [a for a in self.agents if not end[a]]
        return result

    def _number(self, agent: str) -> int:
        return self.possible_agents.index(agent) + 1

    def _obs(self, agent: str, action: int) -> np.ndarray:
        return np.array([self._number(agent), self.clock, action], np.float32)

    def _info(self, agent: str) -> dict[str, Any]:
        return {"action_mask": np.arange(4) <= self.clock % 4} if self.mask else {}


TABLE = {
    "short": (0, 2, "terminated"),
    "never": (99, 99, ""),
    "long": (0, 4, "truncated"),
    "late": (2, 4, "terminated"),
}


class Brawl(pettingzoo.AECEnv):
    """Agents in a ring; action 1 hits the next one: +1, and -2 for who is hit. Two hits end an agent, ``limit`` moves all.

    The last agent joins after ``late`` moves; ``lazy`` leaves the dead in the ring until their turn comes; ``mask`` forbids hits.
    An observation is (agent's number from 1, moves so far, hits taken).
    """

    metadata: ClassVar = {"name": "brawl_v0"}
    render_mode = None

    def __init__(self, count: int = 3, limit: int = 20, late: int = 0, lazy: bool = False, mask: bool = False) -> None:
        self.possible_agents = [f"p{i}" for i in range(count)]
        self.limit, self.late, self.lazy, self.mask = limit, late, lazy, mask

    @functools.cache  # noqa: B019
    def observation_space(self, agent: str) -> gs.Space:
        return OBS

    @functools.cache  # noqa: B019
    def action_space(self, agent: str) -> gs.Space:
        return gs.Discrete(2)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.agents, self.moves, self.hits = [], 0, {}
        self.rewards, self._cumulative_rewards, self.terminations, self.truncations, self.infos = {}, {}, {}, {}, {}
        for agent in self.possible_agents[:-1] if self.late else self.possible_agents:
            self._join(agent)
        self.agent_selection = self.agents[0]

    def observe(self, agent: str) -> np.ndarray:
        return np.array([self.possible_agents.index(agent) + 1, self.moves, self.hits[agent]], np.float32)

    def step(self, action: int | None) -> None:
        actor = self.agent_selection
        if self.terminations[actor] or self.truncations[actor]:
            following = self._next(actor)
            self._was_dead_step(action)
            if self.lazy and self.agents:
                self.agent_selection = following
            return
        self._cumulative_rewards[actor] = 0
        self._clear_rewards()
        self.moves += 1
        target = self._next(actor)
        if action == 1 and not self.terminations[target]:
            self.rewards[actor] += 1
            self.rewards[target] -= 2
            self.hits[target] += 1
            self.terminations[target] = self.hits[target] == 2
        if self.moves == self.late:
            self._join(self.possible_agents[-1])
        if self.moves == self.limit or sum(not dead for dead in self.terminations.values()) == 1:
            self.truncations = {a: not self.terminations[a] for a in self.agents}
        self._accumulate_rewards()
        self.agent_selection = self._next(actor)
        if not self.lazy:
            while self.terminations[self.agent_selection] and not all(map(self._ended, self.agents)):
                self.agent_selection = self._next(self.agent_selection)
            self._deads_step_first()

    def _ended(self, agent: str) -> bool:
        return self.terminations[agent] or self.truncations[agent]

    def _next(self, agent: str) -> str:
        return self.agents[(self.agents.index(agent) + 1) % len(self.agents)]

    def _join(self, agent: str) -> None:
        self.agents.append(agent)
        self.rewards[agent] = self._cumulative_rewards[agent] = self.hits[agent] = 0
        self.terminations[agent] = self.truncations[agent] = False
        self.infos[agent] = {"action_mask": [1, 0]} if self.mask else {}


# --- running an adapter by hand ---


def rows_for(env: Any) -> Rows:
    """Rows full of rubbish, so that whatever the adapter leaves unwritten shows."""
    rows = Rows.zeros(spec_of(env))
    rows.obs[...] = 77
    rows.reward[...] = 77
    for column in (rows.terminated, rows.truncated, rows.first, rows.mask):
        column[...] = True
    return rows


def play(env: Any, actions: Iterator[Any] | list[Any], seed: int | None = 0, *, slots: int = 2) -> list[Rows]:
    """Copies of all rows of a run; ``slots=0``: fresh memory on every step."""
    memory = [rows_for(env) for _ in range(slots)]
    kept = []
    for t, action in enumerate([None, *actions]):
        out = memory[t % slots] if slots else rows_for(env)
        if action is None:
            env.reset(seed, out)
        else:
            env.step(np.asarray(action), out)
        kept.append(copy_rows(out))
    return kept


def copy_rows(rows: Rows) -> Rows:
    columns = (rows.obs, rows.reward, rows.terminated, rows.truncated, rows.first, rows.mask, rows.action_mask)
    return Rows(*(None if column is None else column.copy() for column in columns))


def same_rows(a: Rows, b: Rows) -> None:
    for name in ("obs", "reward", "terminated", "truncated", "first", "mask", "action_mask"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


def random_table(rng: np.random.Generator) -> dict[str, tuple[int, int, str]]:
    """A legal timetable: whoever joins does so while somebody is there."""
    table = {"anchor": (0, 9, "terminated")}
    for name in ("b", "c", "d", "e"):
        joins = int(rng.integers(0, 7)) if rng.random() < 0.8 else 99
        table[name] = (joins, joins + int(rng.integers(1, 3)), str(rng.choice(["terminated", "truncated"])))
    return table


# --- parallel ---


def test_the_test_envs_are_legal_pettingzoo_envs() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parallel_api_test(Shifts(TABLE), num_cycles=20)
        for seed in range(5):
            parallel_api_test(Shifts(random_table(np.random.default_rng(seed))), num_cycles=20)
        api_test(Brawl(), num_cycles=50)
        api_test(Brawl(late=2), num_cycles=50)


def test_parallel_agents_that_die_join_late_or_never_come_follow_the_row_convention() -> None:
    env = emulate(Shifts(TABLE))
    assert isinstance(env, ParallelEnv)
    assert (env.num_agents, env.name) == (4, "shifts_v0")
    run = play(env, [[1, 1, 2, 3]] * 6)
    zero = [0.0, 0.0, 0.0]
    # per step: obs, reward, terminated, truncated, first, mask of short, never, long, late
    expected = [
        ([[1, 0, -1], zero, [3, 0, -1], zero], [0, 0, 0, 0], "....", "....", "x.x.", "x.x."),
        ([[1, 1, 1], zero, [3, 1, 2], zero], [11, 0, 31, 0], "....", "....", "....", "x.x."),
        ([[1, 2, 1], zero, [3, 2, 2], [4, 2, -1]], [12, 0, 32, 42], "x...", "....", "...x", "..xx"),
        ([zero, zero, [3, 3, 2], [4, 3, 3]], [0, 0, 33, 43], "....", "....", "....", "..xx"),
        ([zero, zero, [3, 4, 2], [4, 4, 3]], [0, 0, 34, 44], "...x", "..x.", "....", "...."),
        ([[1, 0, -1], zero, [3, 0, -1], zero], [0, 0, 0, 0], "....", "....", "x.x.", "x.x."),
        ([[1, 1, 1], zero, [3, 1, 2], zero], [11, 0, 31, 0], "....", "....", "....", "x.x."),
    ]
    for t, (rows, (obs, reward, *flags)) in enumerate(zip(run, expected, strict=True)):
        np.testing.assert_array_equal(rows.obs, obs, err_msg=f"obs at {t}")
        np.testing.assert_array_equal(rows.reward, reward, err_msg=f"reward at {t}")
        for name, marks in zip(("terminated", "truncated", "first", "mask"), flags, strict=True):
            np.testing.assert_array_equal(getattr(rows, name), [m == "x" for m in marks], err_msg=f"{name} at {t}")


def test_parallel_env_is_given_the_actions_of_the_agents_that_are_there_and_only_those() -> None:
    env = emulate(Shifts(TABLE))
    play(env, [[0, 1, 2, 3]] * 5)
    there = [{"short": 0, "long": 2}] * 2 + [{"long": 2, "late": 3}] * 2
    assert env.env.seen == there, "the fifth step resets and acts on nobody"


@pytest.mark.parametrize("seed", range(20))
def test_parallel_rows_carry_every_reward_once_and_nothing_from_two_steps_ago(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = random_table(rng)
    actions = rng.integers(0, 4, (25, 5))
    run = play(emulate(Shifts(table)), actions)
    for two_slots, fresh in zip(run, play(emulate(Shifts(table)), actions, slots=0), strict=True):
        same_rows(two_slots, fresh)

    plain, earned, endings = Shifts(table), np.zeros(5), np.zeros(5)
    plain.reset()
    for action in actions:
        if not plain.agents:
            plain.reset()
            continue
        _, rewards, terminated, truncated, _ = plain.step({a: action[plain._number(a) - 1] for a in plain.agents})
        for agent, reward in rewards.items():
            earned[plain._number(agent) - 1] += reward
            endings[plain._number(agent) - 1] += terminated[agent] or truncated[agent]
    np.testing.assert_array_equal(sum(rows.reward for rows in run), earned)
    np.testing.assert_array_equal(sum((rows.terminated | rows.truncated).astype(int) for rows in run), endings)
    alive = run[-1].mask.astype(int)
    np.testing.assert_array_equal(sum(rows.first.astype(int) for rows in run), endings + alive)


def test_parallel_env_that_goes_on_listing_and_reporting_its_dead_gives_the_same_rows() -> None:
    actions = [[1, 1, 2, 3]] * 9
    for quiet, talking in zip(
        play(emulate(Shifts(TABLE)), actions), play(emulate(Shifts(TABLE, dead_talk=True)), actions), strict=True
    ):
        same_rows(quiet, talking)


def test_parallel_action_masks_come_from_infos_and_open_up_on_rows_that_do_not_act() -> None:
    env = emulate(Shifts(TABLE, mask=True))
    run = play(env, [[0, 0, 0, 0]] * 4)
    for t, rows in enumerate(run):
        for i in range(4):
            expected = np.arange(4) <= t % 4 if rows.mask[i] else np.ones(4, bool)
            np.testing.assert_array_equal(rows.action_mask[i], expected, err_msg=f"agent {i} at {t}")
    assert not run[1].action_mask[0].all(), "the mask restricts somebody"


def test_seed_options_and_infos_pass_through() -> None:
    env = emulate(Shifts(TABLE, mask=True))
    out = rows_for(env)
    infos = env.reset(5, out, options={"level": 2})
    assert sorted(infos) == [0, 2]
    assert env.env.resets == [(5, {"level": 2})]
    assert emulate(Shifts(TABLE)).reset(None, rows_for(env)) is None


def test_a_reset_that_demands_seed_and_options_gets_both() -> None:
    class Demanding(Shifts):
        def reset(self, seed: int | None, options: dict[str, Any] | None) -> Any:
            return super().reset(seed, options)

    env = emulate(Demanding(TABLE))
    env.reset(None, rows_for(env))
    env.reset(None, rows_for(env), options={"level": 2})
    assert env.env.resets == [(None, None), (None, {"level": 2})]
    assert not check_env(lambda: Demanding(TABLE), steps=20).has("reset()", "error")


class Kinds(Shifts):
    """``long`` sees five numbers and has seven choices, the others three and four."""

    def observation_space(self, agent: str) -> gs.Space:
        return gs.Box(-1, 900, (5,), np.float32) if agent == "long" else OBS

    def action_space(self, agent: str) -> gs.Space:
        return gs.Discrete(7 if agent == "long" else 4)

    def _obs(self, agent: str, action: int) -> np.ndarray:
        obs = super()._obs(agent, action)
        return np.concatenate([obs, [50, 60]]).astype(np.float32) if agent == "long" else obs

    def _info(self, agent: str) -> dict[str, Any]:
        return {"action_mask": np.arange(self.action_space(agent).n) <= self.clock % 4} if self.mask else {}


@pytest.mark.parametrize("mask", [False, True])
def test_agents_of_different_kinds_share_a_space_with_room_for_all(mask: bool) -> None:
    env = emulate(Kinds(TABLE, mask=mask))
    assert env.action_space == gs.Discrete(7)
    assert env.observation_space == gs.Box(
        np.array([-100, -100, -100, -1, -1], np.float32), np.array([900, 900, 900, 900, 900], np.float32)
    )
    out, long = rows_for(env), list(TABLE).index("long")
    env.reset(0, out)
    short = list(TABLE).index("short")
    np.testing.assert_array_equal(out.obs[long, 3:], [50, 60])
    np.testing.assert_array_equal(out.obs[short, 3:], [0, 0])
    assert not out.action_mask[short, 4:].any() and out.action_mask[short, :4].any()
    assert mask or (out.action_mask[short, :4].all() and out.action_mask[long].all())
    action = np.zeros(env.num_agents, np.int64)
    action[long] = 6
    env.step(action, out)
    assert env.env.seen[-1]["long"] == 6 and out.obs[long, 2] == 6
    action[short] = 5
    with pytest.raises(SpaceError, match=r"'short': action 5 .* has 4 choices; choose by the action_mask"):
        env.step(action, out)


def test_an_observation_that_is_not_of_its_own_kind_is_refused_although_there_is_room() -> None:
    class Wrong(Kinds):
        def _obs(self, agent: str, action: int) -> np.ndarray:
            return super()._obs(agent, action)[:2]

    env = emulate(Wrong(TABLE))
    with pytest.raises(SpaceError, match=r"agent 'short': expected \(3,\)"):
        env.reset(0, rows_for(env))


@pytest.mark.parametrize(
    ("method", "other"),
    [
        ("observation_space", gs.Discrete(3)),
        ("observation_space", gs.Box(0, 1, (3, 3), np.float32)),
        ("observation_space", gs.Dict({"a": OBS})),
        ("action_space", gs.Box(0, 1, (3,), np.float32)),
        ("action_space", gs.Discrete(4, start=1)),
    ],
)
def test_agents_whose_spaces_have_nothing_in_common_are_refused_by_name(method: str, other: gs.Space) -> None:
    class Mixed(Shifts):
        pass

    space_of = getattr(Shifts, method)
    setattr(Mixed, method, lambda self, agent: other if agent == "long" else space_of(self, agent))
    with pytest.raises(
        ConfigError, match=rf"(?s)no {method} has room for both 'short' and 'long'.*'long': .*wrap the environment"
    ):
        emulate(Mixed(TABLE))


def test_missing_possible_agents_and_same_step_are_refused() -> None:
    env = Shifts(TABLE)
    del env.possible_agents
    with pytest.raises(ConfigError, match="possible_agents"):
        emulate(env)
    with pytest.raises(ConfigError, match='autoreset="next_step"'):
        emulate(Shifts(TABLE), Emulation(autoreset="same_step"))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r: r[0].update(long=np.zeros(4, np.float32)), r"agent 'long'.*shape \[3\], got \[4\]"),
        (lambda r: r[0].update(long=np.zeros(3, np.float64)), "agent 'long'.*float32, got float64"),
        (lambda r: r[0].update(long=np.full(3, np.nan, np.float32)), "agent 'long'.*finite"),
        (lambda r: r[1].update(long=float("inf")), "agent 'long'.*reward"),
        (lambda r: r[2].update(long="yes"), "agent 'long'.*terminated"),
        (lambda r: r[1].pop("long"), "agent 'long'.*no rewards"),
        (lambda r: r[4].update(long={"action_mask": [1, 1]}), "agent 'long'.*expected 4 choices, got 2"),
    ],
)
def test_what_an_agent_gets_wrong_is_refused_with_its_name(spoil: Callable[[Any], Any], message: str) -> None:
    class Spoilt(Shifts):
        def step(self, actions: dict[str, Any]) -> Any:
            result = super().step(actions)
            spoil(result)
            return result

    env = emulate(Spoilt(TABLE))
    out = rows_for(env)
    env.reset(0, out)
    with pytest.raises(SpaceError, match=message):
        env.step(np.zeros(4, np.int64), out)


def test_an_agent_that_leaves_without_an_ending_is_refused() -> None:
    class Vanishing(Shifts):
        def step(self, actions: dict[str, Any]) -> Any:
            result = super().step(actions)
            result[2].update(short=False)
            return result

    with pytest.raises(SpaceError, match=r"'short' is gone.*never terminated or truncated"):
        play(emulate(Vanishing(TABLE)), [[0, 0, 0, 0]] * 3)


def test_an_agent_nobody_announced_is_refused() -> None:
    class Stranger(Shifts):
        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            result = super().reset(seed, options)
            self.agents.append("stranger")
            return result

    with pytest.raises(SpaceError, match="'stranger' is not in possible_agents"):
        play(emulate(Stranger(TABLE)), [])


def test_a_reset_that_leaves_no_agents_is_refused_instead_of_looping() -> None:
    class Forgets(Shifts):
        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return super().reset(seed, options) if not self.resets else ({}, {})

    class ForgetsInTurns(Brawl):
        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
            super().reset(seed, options)
            self.agents.clear()

    with pytest.raises(SpaceError, match=r"reset\(\) left no agents; set self.agents"):
        play(emulate(Forgets(TABLE)), [[0, 0, 0, 0]] * 6)
    with pytest.raises(SpaceError, match=r"reset\(\) left no agents; set self.agents"):
        play(emulate(ForgetsInTurns()), [])


def test_structured_actions_reach_each_agent_as_its_space_says() -> None:
    space = gs.Dict(move=gs.Box(-1, 1, (2,), np.float32), jump=gs.Discrete(3))
    got: list[Any] = []

    class Structured(Shifts):
        def action_space(self, agent: str) -> gs.Space:
            return space

        def step(self, actions: dict[str, Any]) -> Any:
            got.append(actions)
            return super().step(dict.fromkeys(actions, 0))

    with fugu.vector.make(lambda: Structured(TABLE), backend="serial") as vec:
        vec.reset()
        move = np.arange(8, dtype=np.float32).reshape(4, 2) / 8
        vec.step({"move": move, "jump": np.array([0, 1, 2, 1])})
    assert list(got[0]) == ["short", "long"]
    for i, agent in ((0, "short"), (2, "long")):
        assert space.contains(got[0][agent])
        np.testing.assert_array_equal(got[0][agent]["move"], move[i])
        assert got[0][agent]["jump"] == [0, 1, 2, 1][i]


def test_vector_statistics_count_each_agent_by_its_own_life() -> None:
    with fugu.vector.make(lambda: Shifts(TABLE), 2, backend="serial") as vec:
        vec.reset()
        episodes = {}
        for _ in range(4):
            infos = vec.step(np.zeros(8, np.int64))[4]
            episodes |= {agent: (info["episode"]["r"], info["episode"]["l"]) for agent, info in infos.items()}
    one = {0: (11 + 12, 2), 2: (31 + 32 + 33 + 34, 4), 3: (42 + 43 + 44, 2)}
    assert episodes == one | {agent + 4: episode for agent, episode in one.items()}


# --- turn-based ---

Choose = Callable[[Any, Any], int]


def plain_loop(env: Any, choose: Choose, seed: int, episodes: int) -> list[list[tuple[Any, ...]]]:
    """What PettingZoo's own loop tells the agents, grouped by what one row step must hold: the endings, then whose turn it is."""
    told: list[list[tuple[Any, ...]]] = []
    for episode in range(episodes):
        env.reset(seed=seed if episode == 0 else None)
        told.append([])
        for agent in env.agent_iter():
            obs, reward, terminated, truncated, info = env.last()
            told[-1].append((agent, obs, reward, terminated, truncated))
            if terminated or truncated:
                env.step(None)
            else:
                env.step(choose(obs, info))
                told.append([])
    return told


def rows_loop(env: Any, choose: Choose, seed: int, episodes: int) -> list[Rows]:
    """The rows of the same number of episodes, moves chosen in the same order."""
    memory, run, over = [rows_for(env), rows_for(env)], [], 0
    infos = env.reset(seed, memory[0])
    while True:
        rows = memory[len(run) % 2]
        run.append(copy_rows(rows))
        over += not rows.mask.any()
        if over == episodes:
            return run
        action = np.zeros(env.num_agents, np.int64)
        for i in np.flatnonzero(rows.mask):
            action[i] = choose(env.packer.unpack(rows.obs[i]), (infos or {}).get(int(i), {}))
        infos = env.step(action, memory[len(run) % 2])


def assert_rows_tell_what_the_loop_told(env: Any, run: list[Rows], told: list[list[tuple[Any, ...]]]) -> None:
    """Every selection of the plain loop stands in the rows of its step with all it said, and nothing else does."""
    assert len(run) == len(told)
    earned = dict.fromkeys(env.agents, 0.0)
    before = None
    for t, (rows, step) in enumerate(zip(run, told, strict=True)):
        for agent, obs, reward, terminated, truncated in step:
            i = env.index[agent]
            row = env.packer.layout.zeros()
            env.packer.pack(obs, row)
            np.testing.assert_array_equal(rows.obs[i], row, err_msg=f"{agent} at {t}")
            assert (rows.reward[i], rows.terminated[i], rows.truncated[i]) == (reward, terminated, truncated)
            assert rows.mask[i] == (not (terminated or truncated))
            earned[agent] += reward
        quiet = [i for agent, i in env.index.items() if agent not in {entry[0] for entry in step}]
        assert not rows.reward[quiet].any() and not rows.mask[quiet].any()
        assert not rows.terminated[quiet].any() and not rows.truncated[quiet].any()
        for i in quiet:
            if before is not None and before.mask.any() and not rows.first[i]:
                gone = before.terminated[i] | before.truncated[i]
                np.testing.assert_array_equal(rows.obs[i], 0 if gone else before.obs[i], err_msg=f"waiting {i} at {t}")
        before = rows
    assert {agent: sum(float(rows.reward[i]) for rows in run) for agent, i in env.index.items()} == earned


def brawler(seed: int) -> Choose:
    rng = np.random.default_rng(seed)
    return lambda obs, info: int(rng.random() < 0.4)


@pytest.mark.parametrize(
    "settings", [{}, {"late": 2}, {"lazy": True}, {"count": 5, "limit": 30}, {"count": 4, "late": 3, "lazy": True}]
)
@pytest.mark.parametrize("seed", range(5))
def test_turn_based_rows_tell_each_agent_what_pettingzoo_tells_it(seed: int, settings: dict[str, Any]) -> None:
    env = emulate(Brawl(**settings))
    assert isinstance(env, TurnBasedEnv)
    told = plain_loop(Brawl(**settings), brawler(seed), seed, episodes=6)
    assert any(entry[2] < 0 and entry[3] for step in told for entry in step), "somebody is ended by another's move"
    assert_rows_tell_what_the_loop_told(env, rows_loop(env, brawler(seed), seed, episodes=6), told)


def test_turn_based_agents_all_start_on_the_reset_row_and_late_ones_when_they_join() -> None:
    env = emulate(Brawl(count=3, limit=4, late=1))
    run = play(env, [[0, 0, 0]] * 5)
    first = [rows.first.tolist() for rows in run]
    everyone_there, nobody = [True, True, False], [False] * 3
    assert first == [everyone_there, [False, False, True], nobody, nobody, nobody, everyone_there]
    assert [rows.mask.tolist() for rows in run] == [
        [True, False, False],
        [False, True, False],  # the joiner waits
        [False, False, True],
        [True, False, False],
        nobody,
        [True, False, False],
    ]
    # waiting agents are shown what they last saw (number, moves, hits); the joiner has an empty row before it joins
    assert [rows.obs[1].tolist() for rows in run] == [[2, 0, 0], [2, 1, 0], [2, 1, 0], [2, 1, 0], [2, 4, 0], [2, 0, 0]]
    assert [rows.obs[2].tolist() for rows in run] == [[0, 0, 0], [3, 1, 0], [3, 2, 0], [3, 2, 0], [3, 4, 0], [0, 0, 0]]
    assert run[4].truncated.tolist() == [True] * 3


@pytest.mark.parametrize("mask", [False, True])
def test_turn_based_rows_do_not_depend_on_what_their_memory_held(mask: bool) -> None:
    actions = np.random.default_rng(3).integers(0, 2, (60, 4))
    run = play(emulate(Brawl(count=3, mask=mask)), actions[:, :3])
    for two_slots, fresh in zip(run, play(emulate(Brawl(count=3, mask=mask)), actions[:, :3], slots=0), strict=True):
        same_rows(two_slots, fresh)
        expected = [[True, not (mask and acts)] for acts in two_slots.mask]
        np.testing.assert_array_equal(two_slots.action_mask, expected)


def test_an_agent_that_sees_nothing_before_its_turn_waits_on_an_empty_first_row() -> None:
    class Blindfold(Brawl):
        def observe(self, agent: str) -> Any:
            return super().observe(agent) if agent == self.agent_selection else None

    run = play(emulate(Blindfold()), [[0, 0, 0]])
    assert run[0].first.tolist() == [True] * 3
    assert run[0].obs.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert (run[1].first.tolist(), run[1].obs[1].tolist()) == ([False] * 3, [2, 1, 0])


@pytest.mark.parametrize("make", [lambda: Shifts(TABLE), lambda: Brawl(count=4)])
def test_an_env_that_replaces_another_writes_all_of_its_rows(make: Callable[[], Any]) -> None:
    """As after a restart: the memory and its writers were another env's."""
    actions = [[0, 0, 0, 0]] * 5
    first, second = emulate(make()), emulate(make())
    out = rows_for(first)
    first.reset(0, out)
    out.obs[...] = 55
    out.mask[...] = True
    second.reset(0, out)
    same_rows(copy_rows(out), play(emulate(make()), [])[0])
    for action, expected in zip(actions, play(emulate(make()), actions)[1:], strict=True):
        second.step(np.asarray(action), out)
        same_rows(copy_rows(out), expected)


def test_turn_based_env_that_keeps_its_dead_is_refused_instead_of_looping() -> None:
    class Undead(Brawl):
        def step(self, action: int | None) -> None:
            if action is not None:
                super().step(action)

    with pytest.raises(SpaceError, match=r"'p\d' has ended, but step\(None\)"):
        play(emulate(Undead(limit=2)), [[0, 0, 0]] * 3)


@pytest.mark.parametrize("game", ["tictactoe_v3", "connect_four_v3"])
@pytest.mark.parametrize("seed", range(3))
def test_classic_games_match_a_plain_loop_in_rewards_observations_and_action_masks(game: str, seed: int) -> None:
    pytest.importorskip("pygame", reason="pettingzoo[classic] needs it")
    module = pytest.importorskip(f"pettingzoo.classic.{game}")

    def legal(seed: int) -> Choose:
        rng = np.random.default_rng(seed)
        return lambda obs, info: int(rng.choice(np.flatnonzero(obs["action_mask"])))

    env, plain = emulate(module.env()), module.env()
    told = plain_loop(plain, legal(seed), seed, episodes=4)
    run = rows_loop(env, legal(seed), seed, episodes=4)
    assert_rows_tell_what_the_loop_told(env, run, told)
    assert any(entry[2] == -1 for step in told for entry in step), "somebody loses"
    for rows, step in zip(run, told, strict=True):
        turn = {env.index[agent]: obs["action_mask"] for agent, obs, _, *ended in step if not any(ended)}
        for i in range(2):
            np.testing.assert_array_equal(rows.action_mask[i], np.asarray(turn.get(i, np.ones(env.action_space.n)), bool))
    env.close()


def test_vector_statistics_of_a_turn_based_game_agree_with_its_rules() -> None:
    with fugu.vector.make(lambda: Brawl(count=2, limit=99), backend="serial") as vec:
        vec.reset()
        moves = [1, 0, 1]  # p0 hits twice, p1 does nothing: p1 has two hits and is out
        for move in moves:
            _, reward, terminated, truncated, infos = vec.step(np.full(2, move))
    assert {agent: (info["episode"]["r"], info["episode"]["l"]) for agent, info in infos.items()} == {0: (2, 2), 1: (-4, 1)}
    assert (terminated.tolist(), truncated.tolist()) == ([False, True], [True, False])
    assert reward.tolist() == [1, -2]


def test_errors_in_a_vector_env_name_the_env_and_the_agent() -> None:
    class Bad(Brawl):
        def observe(self, agent: str) -> np.ndarray:
            return super().observe(agent).astype(np.float64) if self.moves == 2 else super().observe(agent)

    with fugu.vector.make([Brawl, Bad], backend="serial") as vec:
        vec.reset()
        vec.step(np.zeros(6, np.int64))
        with pytest.raises(EnvError, match="agent 'p2'") as caught:
            vec.step(np.zeros(6, np.int64))
    assert caught.value.envs == (1,)
