"""Foreign vector envs as rows: against hand-computed tables, single envs stepped by hand, and fugu's own emulation of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gs
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

import fugu.vector
from fugu.emulation.env import Rows, spec_of
from fugu.emulation.factory import Emulation, emulate
from fugu.emulation.gymnasium_vector import GymnasiumVectorEnv, split_infos
from fugu.errors import ConfigError, SpaceError
from fugu.spaces import bound

NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
Script = list[tuple[int, str]]


class Counter(gymnasium.Env):
    """Episode k of the script lasts so many steps and ends so. An observation is (episode, clock), a reward 10 x episode + clock.

    Infos: the clock on even clocks, nothing on odd ones.
    """

    observation_space = gs.Box(-1, 100, (2,), np.float32)
    action_space = gs.Discrete(3)

    def __init__(self, script: Script) -> None:
        self.script, self.episode, self.clock = script, -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.clock = self.episode + 1, 0
        return self._obs(), self._info()

    def step(self, action: Any) -> Any:
        self.clock += 1
        length, how = self.script[self.episode % len(self.script)]
        over = self.clock == length
        reward = 10.0 * self.episode + self.clock
        return self._obs(), reward, over and how == "terminated", over and how == "truncated", self._info()

    def _obs(self) -> np.ndarray:
        return np.array([self.episode, self.clock], np.float32)

    def _info(self) -> dict[str, Any]:
        return {"clock": self.clock, "place": {"episode": self.episode}} if self.clock % 2 == 0 else {}


def counters(scripts: list[Script], mode: AutoresetMode, **settings: Any) -> VectorEnv:
    return SyncVectorEnv([functools.partial(Counter, script) for script in scripts], autoreset_mode=mode, **settings)


def rows_for(env: Any) -> Rows:
    """Rows full of rubbish, so that whatever is left unwritten shows."""
    rows = Rows.zeros(spec_of(env))
    rows.obs[...] = 77
    rows.reward[...] = 77
    for column in (rows.terminated, rows.truncated, rows.first, rows.mask):
        column[...] = True
    return rows


def play(env: Any, actions: Any, seed: int | None = 0) -> list[tuple[Rows, Any]]:
    """Copies of all rows of a run through two slots, each with the infos that came with it."""
    memory, kept = [rows_for(env), rows_for(env)], []
    for t, action in enumerate([None, *actions]):
        out = memory[t % 2]
        infos = env.reset(seed, out) if action is None else env.step(np.asarray(action), out)
        columns = (out.obs, out.reward, out.terminated, out.truncated, out.first, out.mask, out.action_mask)
        kept.append((Rows(*(None if column is None else column.copy() for column in columns)), infos))
    return kept


def marks(rows: Rows, i: int) -> str:
    """Flags of one row: (t)erminated, (u) truncated, (f)irst, (m)ask."""
    flags = ((rows.terminated, "t"), (rows.truncated, "u"), (rows.first, "f"), (rows.mask, "m"))
    return "".join(letter for column, letter in flags if column[i])


TWO_STEPS: Script = [
    (2, "terminated"),
    (2, "truncated"),
    (3, "terminated"),
    (2, "truncated"),
    (1, "terminated"),
    (2, "truncated"),
]

BY_HAND = {
    NEXT: [
        ([0, 0], 0, "fm"),
        ([0, 1], 1, "m"),
        ([0, 2], 2, "t"),
        ([1, 0], 0, "fm"),
        ([1, 1], 11, "m"),
        ([1, 2], 12, "u"),
        ([2, 0], 0, "fm"),
        ([2, 1], 21, "m"),
        ([2, 2], 22, "m"),
        ([2, 3], 23, "t"),
        ([3, 0], 0, "fm"),
    ],
    SAME: [
        ([0, 0], 0, "fm"),
        ([0, 1], 1, "m"),
        ([1, 0], 2, "tfm"),
        ([1, 1], 11, "m"),
        ([1, 2], 12, "u"),
        ([2, 1], 0, "fm"),  # the step from (2, 0) is hidden
        ([2, 2], 22, "m"),
        ([3, 0], 23, "tfm"),
        ([3, 1], 31, "m"),
        ([3, 2], 32, "u"),
        ([5, 0], 0, "fm"),  # the hidden step was all of episode 4
        ([5, 1], 51, "m"),
    ],
}
BY_HAND[DISABLED] = BY_HAND[SAME]


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("mode", [NEXT, SAME, DISABLED])
def test_rows_of_a_counter_are_those_computed_by_hand(mode: AutoresetMode, copy: bool) -> None:
    env = emulate(counters([TWO_STEPS, [(99, "terminated")]], mode, copy=copy))
    assert isinstance(env, GymnasiumVectorEnv)
    expected = BY_HAND[mode]
    for t, ((rows, _), (obs, reward, flags)) in enumerate(
        zip(play(env, [[0, 0]] * (len(expected) - 1)), expected, strict=True)
    ):
        assert (rows.obs[0].tolist(), rows.reward[0], marks(rows, 0)) == (obs, reward, flags), f"step {t}"
        assert (rows.obs[1].tolist(), rows.reward[1], marks(rows, 1)) == ([0, t], t, "m" if t else "fm"), f"neighbour at {t}"


@pytest.mark.parametrize("mode", [SAME, DISABLED])
def test_an_episode_that_the_hidden_step_truncates_is_left_out(mode: AutoresetMode) -> None:
    env = emulate(counters([[(1, "truncated"), (1, "truncated"), (2, "terminated")]], mode))
    run = play(env, [[0]] * 5)
    assert [(rows.obs[0].tolist(), rows.reward[0], marks(rows, 0)) for rows, _ in run] == [
        ([0, 0], 0, "fm"),
        ([0, 1], 1, "u"),
        ([2, 0], 0, "fm"),  # the hidden step was all of episode 1
        ([2, 1], 21, "m"),
        ([3, 0], 22, "tfm"),
        ([3, 1], 31, "u"),
    ]
    assert all("final_obs" not in info for _, infos in run for info in (infos or {}).values()), "the rows have it"


@pytest.mark.parametrize(("mode", "steps"), [(NEXT, 2), (SAME, 4), (DISABLED, 4)])
def test_a_reset_right_after_an_ending_leaves_nothing_behind(mode: AutoresetMode, steps: int) -> None:
    env = emulate(counters([TWO_STEPS], mode))
    out = rows_for(env)
    env.reset(0, out)
    for _ in range(steps):
        env.step(np.zeros(1, np.int64), out)
    assert not out.mask[0]
    env.reset(0, out)
    episode = out.obs[0, 0]
    env.step(np.zeros(1, np.int64), out)
    assert (out.obs[0].tolist(), out.reward[0], marks(out, 0)) == ([episode, 1], 10 * episode + 1, "m")


@pytest.mark.parametrize("mode", [NEXT, SAME, DISABLED])
def test_statistics_are_exact_but_for_the_hidden_step_after_a_truncation(mode: AutoresetMode) -> None:
    episodes = []
    with fugu.vector.make(lambda: counters([TWO_STEPS], mode), backend="serial") as vec:
        vec.reset()
        for _ in range(13):
            infos = vec.step(np.zeros(1, np.int64))[4]
            episodes += [(info["episode"]["r"], info["episode"]["l"]) for info in infos.values() if "episode" in info]
    if mode is NEXT:
        assert episodes == [(1 + 2, 2), (11 + 12, 2), (21 + 22 + 23, 3), (31 + 32, 2)]
    else:
        assert episodes == [(1 + 2, 2), (11 + 12, 2), (22 + 23, 2), (31 + 32, 2), (51 + 52, 2)]


def by_hand(env: gymnasium.Env, seed: int, actions: np.ndarray, *, reset_at_once: bool) -> list[tuple[Any, float, str]]:
    """One env stepped without any vector machinery: (obs, reward, marks) per row."""
    rows, ended = [(env.reset(seed=seed)[0], 0.0, "fm")], False
    for action in actions:
        if ended:
            rows.append((env.reset()[0], 0.0, "fm"))
            ended = False
            continue
        obs, reward, terminated, truncated, _ = env.step(action)
        assert not truncated
        if terminated and reset_at_once:
            rows.append((env.reset()[0], float(reward), "tfm"))
        else:
            rows.append((obs, float(reward), "t" if terminated else "m"))
            ended = terminated
    return rows


@pytest.mark.parametrize("mode", [NEXT, SAME, DISABLED])
def test_cartpole_rows_equal_single_envs_stepped_by_hand(mode: AutoresetMode) -> None:
    seed, actions = 5, np.random.default_rng(0).integers(0, 2, (150, 3))
    vector = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode})
    env = emulate(vector)
    run = play(env, actions, seed)
    for i in range(3):
        expected = by_hand(gymnasium.make("CartPole-v1"), seed + i, actions[:, i], reset_at_once=mode is not NEXT)
        for t, ((rows, _), (obs, reward, flags)) in enumerate(zip(run, expected, strict=True)):
            np.testing.assert_array_equal(rows.obs[i], obs, err_msg=f"env {i} step {t}")
            assert (rows.reward[i], marks(rows, i)) == (reward, flags), f"env {i} step {t}"
        assert sum("t" in flags for _, _, flags in expected) > 3
    env.close()
    assert vector.closed


def test_cartpole_returns_are_the_same_in_every_mode_and_by_fugu_itself() -> None:
    """Actions depend on the observation alone, so every mode plays the same episodes."""

    def episodes(env: Any, num_envs: int) -> list[list[tuple[float, int]]]:
        found: list[list[tuple[float, int]]] = [[], [], []]
        with fugu.vector.make(env, num_envs, backend="serial") as vec:
            obs, _ = vec.reset(seed=[7] if num_envs == 1 else [7, 8, 9])
            for _ in range(160):
                obs, _, _, _, infos = vec.step((obs[:, 2] > 0).astype(np.int64))
                for agent, info in infos.items():
                    if "episode" in info:
                        found[agent].append((info["episode"]["r"], info["episode"]["l"]))
        return [agent[:2] for agent in found]

    own = episodes("CartPole-v1", 3)
    assert all(len(agent) == 2 and agent[0][0] == agent[0][1] > 8 for agent in own)
    for mode in (NEXT, SAME, DISABLED):
        make = functools.partial(gymnasium.make_vec, "CartPole-v1", 3, "sync", {"autoreset_mode": mode})
        assert episodes(make, 1) == own, mode


def test_gymnasiums_numpy_cartpole_passes_through() -> None:
    def make() -> VectorEnv:
        return gymnasium.make_vec("CartPole-v1", num_envs=4, vectorization_mode="vector_entry_point", max_episode_steps=12)

    actions = np.random.default_rng(1).integers(0, 2, (60, 4))
    run, plain, before = play(emulate(make()), actions, 3), make(), np.zeros(4, bool)
    np.testing.assert_array_equal(run[0][0].obs, plain.reset(seed=3)[0])
    truncations = 0
    for (rows, _), action in zip(run[1:], actions, strict=True):
        obs, reward, terminated, truncated, _ = plain.step(action)
        np.testing.assert_array_equal(rows.obs, obs)
        np.testing.assert_array_equal(rows.reward, reward)
        np.testing.assert_array_equal(rows.terminated, terminated)
        np.testing.assert_array_equal(rows.truncated, truncated)
        np.testing.assert_array_equal(rows.first, before)
        np.testing.assert_array_equal(rows.mask, ~(terminated | truncated))
        before = terminated | truncated
        truncations += truncated.sum()
    assert truncations > 0


@pytest.mark.parametrize("mode", [SAME, DISABLED])
def test_same_step_gives_what_fugu_gives_for_single_envs(mode: AutoresetMode) -> None:
    settings = {"backend": "serial", "autoreset": "same_step"}
    with (
        fugu.vector.make(lambda: counters([TWO_STEPS] * 2, mode), **settings) as foreign,
        fugu.vector.make(lambda: Counter(TWO_STEPS), 2, **settings) as own,
    ):
        foreign.reset()
        own.reset()
        for t in range(12):
            got, expected = foreign.step(np.zeros(2, np.int64)), own.step(np.zeros(2, np.int64))
            for a, b in zip(got[:4], expected[:4], strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"step {t}")
            assert set(got[4]) == set(expected[4])
            for agent, info in got[4].items():
                info.get("episode", {}).pop("t", None)
                expected[4][agent].get("episode", {}).pop("t", None)
                np.testing.assert_equal(info, expected[4][agent])


def test_same_step_is_refused_where_the_env_resets_on_the_next() -> None:
    with pytest.raises(ConfigError, match=r"AutoresetMode\.SAME_STEP"):
        emulate(counters([TWO_STEPS], NEXT), Emulation(autoreset="same_step"))


@pytest.mark.parametrize("mode", [None, "whenever"])
def test_an_unknown_autoreset_mode_is_refused_with_what_to_do(mode: str | None) -> None:
    env = counters([TWO_STEPS], NEXT)
    env.metadata = {} if mode is None else {"autoreset_mode": mode}
    with pytest.raises(ConfigError, match=r"NEXT_STEP, AutoresetMode\.SAME_STEP.*got .*Set env\.metadata"):
        emulate(env)


class Sampler(gymnasium.Env):
    """Observations drawn from the space, actions kept."""

    def __init__(self, observation_space: gs.Space, action_space: gs.Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        return self.observation_space.sample(), 1.0, False, False, {}


def nested() -> gs.Space:
    return gs.Dict(
        image=gs.Box(0, 255, (4, 3), np.uint8),
        choice=gs.Discrete(5, start=3),
        pair=gs.Tuple((gs.MultiBinary(3), gs.MultiDiscrete([2, 7]), gs.Box(-1, 1, (), np.float32))),
    )


SPACES: dict[str, Callable[[], gs.Space]] = {
    "box": lambda: gs.Box(-1, 1, (3,), np.float64),
    "discrete": lambda: gs.Discrete(4, start=-1),
    "nested": nested,
    "text": lambda: gs.Dict(words=gs.Text(8), inner=nested()),
    "only text": lambda: gs.Text(5),
    "one of": lambda: gs.OneOf((gs.Discrete(3), gs.Box(0, 1, (2,), np.float32))),
    "sequence": lambda: gs.Tuple((bound(gs.Sequence(gs.Discrete(6)), 32), gs.Discrete(2))),
}


@pytest.mark.parametrize("name", SPACES)
def test_any_space_gives_the_rows_and_actions_of_single_envs(name: str) -> None:
    """The batched path against fugu's emulation of each env by itself, both as observations and as actions."""
    count, seed = 3, 11

    def make() -> Sampler:
        return Sampler(SPACES[name](), SPACES[name]())

    vector = emulate(SyncVectorEnv([make] * count))
    singles = [emulate(make()) for _ in range(count)]
    out, single_out = rows_for(vector), [rows_for(env) for env in singles]
    vector.reset(seed, out)
    for i, env in enumerate(singles):
        env.reset(seed + i, single_out[i])
    for _ in range(4):
        for i in range(count):
            np.testing.assert_array_equal(out.obs[i], single_out[i].obs[0])
        action = out.obs.copy()
        vector.step(action, out)
        for i, env in enumerate(singles):
            env.step(action[i : i + 1], single_out[i])
        action[...] = 0  # it is only lent to the envs
    for i, env in enumerate(singles):
        for got, expected in zip(vector.env.envs[i].actions, env.env.actions, strict=True):
            np.testing.assert_equal(got, expected)


def test_spaces_without_text_are_written_leaf_by_leaf() -> None:
    """What the test above compares is really the batched path."""
    by_leaf = {}
    for name, space in SPACES.items():
        env = GymnasiumVectorEnv(SyncVectorEnv([functools.partial(Sampler, space(), gs.Discrete(2))] * 2))
        by_leaf[name] = env._obs.by_leaf
    assert [name for name, flag in by_leaf.items() if flag] == ["box", "discrete", "nested"]


def test_infos_reach_only_the_sub_envs_that_have_them() -> None:
    env = emulate(counters([[(99, "")], [(3, "terminated")]], NEXT))
    run = play(env, [[0, 0]] * 5)
    at = [infos for _, infos in run]
    assert at[0] == {0: {"clock": 0, "place": {"episode": 0}}, 1: {"clock": 0, "place": {"episode": 0}}}
    assert at[1] is None and at[3] is None
    assert at[4] == {0: {"clock": 4, "place": {"episode": 0}}, 1: {"clock": 0, "place": {"episode": 1}}}
    assert at[5] is None


def test_infos_without_presence_go_to_all_and_final_ones_to_the_ended() -> None:
    info = {
        "lives": np.array([3, 2]),
        "final_obs": np.zeros((2, 4)),
        "version": "x",
        "nested": {"a": np.array([1, 2]), "_a": [0, 1]},
    }
    found = split_infos(info, ended=np.array([False, True]))
    assert found[0] == {"lives": 3, "version": "x"}
    assert found[1]["nested"] == {"a": 2} and found[1]["lives"] == 2
    info["final_obs"][...] = 7  # envs use their arrays again
    np.testing.assert_array_equal(found[1]["final_obs"], np.zeros(4))


class Batched(VectorEnv):
    """A vector env of its own make: truncates everything every second step, final observations in one batch."""

    def __init__(self, mode: AutoresetMode = SAME, **replies: Any) -> None:
        self.num_envs = 2
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = gs.Box(-9, 9, (1,), np.float32)
        self.single_action_space = gs.Discrete(2)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, 2)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, 2)
        self.replies, self.clock = replies, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions: Any) -> Any:
        self.clock += 1
        over = np.full(2, self.clock % 2 == 0)
        reply = {
            "obs": np.full((2, 1), 0 if over[0] else 1, np.float32),
            "reward": np.ones(2),
            "terminated": np.zeros(2, bool),
            "truncated": over,
            "info": {"final_obs": np.array([[5], [6]], np.float32)} if over[0] else {},
        } | self.replies
        return tuple(reply[name] for name in ("obs", "reward", "terminated", "truncated", "info"))


def test_final_observations_may_come_as_one_batch() -> None:
    run = play(emulate(Batched()), [[0, 0]] * 3)
    assert [rows.obs[:, 0].tolist() for rows, _ in run] == [[0, 0], [1, 1], [5, 6], [1, 1]]
    assert [marks(rows, 0) for rows, _ in run] == ["fm", "m", "u", "fm"]


def test_a_reset_on_the_next_step_earns_nothing_whatever_the_env_says() -> None:
    run = play(emulate(Batched(NEXT)), [[0, 0]] * 4)
    assert [rows.reward[0] for rows, _ in run] == [0, 1, 1, 0, 1]
    assert [marks(rows, 0) for rows, _ in run] == ["fm", "m", "u", "fm", "u"]


def test_a_choice_outside_its_space_is_refused() -> None:
    class Wrong(Sampler):
        def step(self, action: Any) -> Any:
            return 7, 0.0, False, False, {}

    env = emulate(SyncVectorEnv([lambda: Wrong(gs.Discrete(3), gs.Discrete(2))] * 2))
    with pytest.raises(SpaceError, match=r"sub-env 0: .*7 is outside Discrete\(3\)"):
        play(env, [[0, 0]])


@pytest.mark.parametrize(
    ("replies", "message"),
    [
        ({"obs": np.zeros((2, 1), np.float64)}, "sub-env 0: .*float32, got float64"),
        ({"obs": np.zeros((2, 3), np.float32)}, r"sub-env 0: .*shape \[1\], got \[3\]"),
        ({"obs": np.zeros((5, 1), np.float32)}, "batch of 2 observations, got 5"),
        ({"obs": None}, "does not fit Box"),
        ({"obs": np.array([[0], [np.nan]], np.float32)}, "sub-env 1: .*finite"),
        ({"reward": np.array([0, np.inf])}, "sub-env 1: reward"),
        ({"reward": np.zeros((2, 1))}, r"reward: expected numbers of shape \[2\].*float64\[2, 1\]"),
        ({"terminated": np.zeros(2)}, "terminated: expected bools"),
        ({"truncated": np.ones(2, bool)}, r"without info\['final_obs'\]"),
        ({"info": {"action_mask": np.ones((2, 5))}}, "sub-env 0: action_mask: expected 2 choices, got 5"),
    ],
)
def test_what_a_vector_env_gets_wrong_is_refused_with_the_sub_env(replies: dict[str, Any], message: str) -> None:
    env = emulate(Batched(**replies))
    with pytest.raises(SpaceError, match=message):
        play(env, [[0, 0]])


def test_another_dtype_of_the_same_kind_is_taken_with_cast() -> None:
    env = emulate(Batched(obs=np.full((2, 1), 0.5)), Emulation(cast=True))
    assert play(env, [[0, 0]])[1][0].obs.tolist() == [[0.5], [0.5]]


def test_action_masks_come_from_infos_or_observations_and_open_up_on_rows_that_do_not_act() -> None:
    mask = np.array([[1, 0], [0, 1]])
    run = play(emulate(Batched(info={"action_mask": mask, "final_obs": np.zeros((2, 1), np.float32)})), [[0, 0]] * 2)
    open_ = [[True] * 2] * 2
    assert [rows.action_mask.tolist() for rows, _ in run] == [open_, mask.astype(bool).tolist(), open_]

    env = emulate(Batched(info={"action_mask": mask}, truncated=np.zeros(2, bool)))
    out = rows_for(env)
    env.reset(0, out)
    env.step(np.zeros(2, np.int64), out)
    assert out.action_mask.tolist() == mask.astype(bool).tolist()
    env.env.replies["info"] = {}
    env.step(np.zeros(2, np.int64), out)
    assert out.action_mask.tolist() == open_, "a mask holds for one row only"

    class Masked(Counter):
        observation_space = gs.Dict(at=Counter.observation_space, action_mask=gs.MultiBinary(3))

        def _obs(self) -> Any:
            return {"at": super()._obs(), "action_mask": np.array([1, 0, self.clock == 1], np.int8)}

    for mode, after_the_ending in ((NEXT, [True, True, True]), (SAME, [True, False, False])):
        env = emulate(SyncVectorEnv([lambda: Masked([(2, "terminated")])], autoreset_mode=mode))
        masks = [rows.action_mask[0].tolist() for rows, _ in play(env, [[0]] * 2)]
        assert masks == [[True, False, False], [True, False, True], after_the_ending], mode
    with pytest.raises(ConfigError, match="4 entries"):
        wrong = gs.Dict(action_mask=gs.MultiBinary(4))
        emulate(SyncVectorEnv([lambda: Sampler(wrong, gs.Discrete(3))]))


def test_seeds_leave_room_for_every_sub_env_in_32_bits() -> None:
    seeds: list[int] = []

    class Seeded(Counter):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            seeds.append(seed)
            return super().reset(seed=seed)

    env = emulate(SyncVectorEnv([lambda: Seeded(TWO_STEPS)] * 3))
    env.reset(2**31 - 1, rows_for(env))
    assert len(set(seeds)) == 3 and max(seeds) < 2**31


def test_gymnasiums_async_vector_env_gives_the_rows_of_the_sync_one() -> None:
    def run(kind: Any) -> list[tuple[Rows, Any]]:
        env = emulate(kind([functools.partial(Counter, TWO_STEPS)] * 2, autoreset_mode=SAME))
        try:
            return play(env, [[0, 0]] * 8)
        finally:
            env.close()

    for (a, _), (b, _) in zip(run(SyncVectorEnv), run(AsyncVectorEnv), strict=True):
        np.testing.assert_array_equal(a.obs, b.obs)
        assert [marks(a, i) for i in range(2)] == [marks(b, i) for i in range(2)]


@pytest.mark.extras
@pytest.mark.parametrize("mode", [NEXT, SAME])
def test_ales_own_vector_env_runs_and_shows_final_observations(mode: AutoresetMode) -> None:
    vector_env = pytest.importorskip("ale_py.vector_env")
    env = emulate(vector_env.AtariVectorEnv("pong", num_envs=2, autoreset_mode=mode.value, max_num_frames_per_episode=20))
    run = play(env, [[0, 0]] * 12, seed=2**31 - 1)
    assert [marks(rows, 0) for rows, _ in run[4:8]] == ["m", "u", "fm", "m"]
    assert run[5][0].obs.any()
    assert all(infos[1]["env_id"] == 1 for _, infos in run)
    env.close()
