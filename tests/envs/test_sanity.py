"""The grid, board and sanity environments: the optimum and the chance level that each header states, and their rules."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fugu
from fugu.vector.vecenv import EpisodeLog

Policy = Callable[[np.ndarray, np.random.Generator], Any]
"""rows of observations, randomness -> actions"""


def play(name: str, policy: Policy, episodes: int = 20_000, worlds: int = 512, **settings: float) -> EpisodeLog:
    """Statistics of at least ``episodes`` episodes under a policy that sees the present rows only."""
    rng = np.random.default_rng(0)
    count = 0
    with fugu.vector.make(name, worlds, env_kwargs=settings) as vec:
        obs, _ = vec.reset(seed=1)
        means = []
        while count < episodes:
            for _ in range(20):
                obs, *_ = vec.step(policy(obs, rng))
            means.append(vec.drain_log())
            count += means[-1].episodes
    weights = np.array([m.episodes for m in means])

    def mean(values):
        return float(np.average(list(values), weights=weights))

    values = {key: mean(m.mean_values[key] for m in means) for key in means[-1].mean_values}
    costs = {key: mean(m.mean_costs[key] for m in means) for key in means[-1].mean_costs}
    return EpisodeLog(count, mean(m.mean_return for m in means), mean(m.mean_length for m in means), values, costs)


def always(action: int) -> Policy:
    return lambda obs, rng: np.full(len(obs), action)


def coin(probability_of_one: float = 0.5) -> Policy:
    return lambda obs, rng: (rng.random(len(obs)) < probability_of_one).astype(np.int64)


def uniform(choices: int) -> Policy:
    return lambda obs, rng: rng.integers(0, choices, len(obs))


def near(value: float, spread: float = 0.5, episodes: int = 20_000) -> Any:
    """Five standard errors of a mean of ``episodes`` values whose deviation is at most ``spread``."""
    return pytest.approx(value, abs=5 * spread / math.sqrt(episodes))


# bandit


def test_bandit_pays_each_arm_its_probability():
    payouts = [0.1, 0.3, 0.9, 0.6]
    for arm, payout in enumerate(payouts):
        log = play("bandit", always(arm))
        assert log.mean_return == near(payout)
        assert log.mean_values["score"] == pytest.approx(payout / 0.9)
        assert log.mean_length == 1
    log = play("bandit", uniform(4))
    assert log.mean_return == near(0.475)
    assert log.mean_values["score"] == near(0.475 / 0.9)
    assert play("bandit", always(1), payout1=1.0).mean_return == 1.0


# squared

MOVES = [(0, -1), (1, -1), (1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1)]


def marks() -> list[tuple[int, int]]:
    return [(x, y) for x in range(11) for y in range(11) if x in (0, 10) or y in (0, 10)]


def squared_by_chance(limit: int = 20) -> tuple[float, float]:
    """Mean return and mean score of the uniformly random policy, exactly."""
    returns = scores = 0.0
    for mark_x, mark_y in marks():
        here = np.zeros((11, 11))  # [y, x], the probability of being there, not arrived
        here[5, 5] = 1
        for step in range(1, limit + 1):
            after = np.zeros((11, 11))
            for y, x in zip(*np.nonzero(here), strict=True):
                for dx, dy in MOVES:
                    after[min(max(y + dy, 0), 10), min(max(x + dx, 0), 10)] += here[y, x] / 8
            scores += after[mark_y, mark_x] * 5 / step / 40
            returns += after[mark_y, mark_x] / 40
            after[mark_y, mark_x] = 0
            here = after
        for y, x in zip(*np.nonzero(here), strict=True):
            returns += here[y, x] * (1 - max(abs(x - mark_x), abs(y - mark_y)) / 5) / 40
    return returns, scores


def test_squared_straight_to_the_mark_is_the_optimum():
    def straight(obs, rng):
        agent, mark = (np.argmax(obs.reshape(len(obs), -1) == cell, axis=1) for cell in (2, 1))
        dx, dy = np.sign(mark % 11 - agent % 11), np.sign(mark // 11 - agent // 11)
        return np.array([MOVES.index(way) if way != (0, 0) else 0 for way in zip(dx, dy, strict=True)])

    log = play("squared", straight, episodes=2000)
    assert log.mean_return == pytest.approx(1) and log.mean_length == 5 and log.mean_values["score"] == 1


def test_squared_by_chance_is_what_counting_all_ways_says():
    returns, scores = squared_by_chance()
    log = play("squared", uniform(8))
    assert log.mean_return == near(returns)
    assert log.mean_values["score"] == near(scores, 0.2)
    assert (returns, scores) == pytest.approx((-0.163, 0.019), abs=5e-4)


def test_squared_moves_as_drawn_and_marks_every_border_field():
    rng = np.random.default_rng(0)
    seen = set()
    with fugu.vector.make("squared", 256) as vec:
        vec.async_reset(seed=0)
        rows = vec.recv()
        for _ in range(60):
            before, acts, action = rows.obs.copy(), rows.mask.copy(), rng.integers(0, 8, 256)
            vec.send(action)
            rows = vec.recv()
            for i in np.flatnonzero(acts):
                (y, x), (mark_y, mark_x) = np.argwhere(before[i] == 2)[0], np.argwhere(before[i] == 1)[0]
                seen.add((int(mark_x), int(mark_y)))
                to_x, to_y = min(max(x + MOVES[action[i]][0], 0), 10), min(max(y + MOVES[action[i]][1], 0), 10)
                expected = np.zeros((11, 11), np.uint8)
                expected[mark_y, mark_x] = 1
                expected[to_y, to_x] = 2
                np.testing.assert_array_equal(rows.obs[i], expected)
                was, now = max(abs(x - mark_x), abs(y - mark_y)), max(abs(to_x - mark_x), abs(to_y - mark_y))
                assert rows.reward[i] == pytest.approx((was - now) / 5, abs=1e-6)
                assert rows.terminated[i] == (now == 0)
    assert seen == set(marks())


# password


def test_password_opens_for_the_right_digits_only():
    for password in (22, 5):
        digits = [password >> i & 1 for i in range(5)]

        def type_it(obs, rng, digits=digits):
            typed = np.minimum((obs != 0).sum(1), 4)
            return np.array(digits)[typed]

        log = play("password", type_it, episodes=2000, password=password)
        assert log.mean_return == log.mean_values["score"] == 1 and log.mean_length == 5
    with fugu.vector.make("password", 32) as vec:
        vec.reset(seed=0)
        for i in range(5):
            obs, reward, terminated, _, _ = vec.step(np.arange(32) >> i & 1)
            assert (reward[np.arange(32) != 22] == 0).all() and reward[22] == (i == 4) and terminated.all() == (i == 4)
            np.testing.assert_array_equal(obs[:, : i + 1], (np.arange(32)[:, None] >> np.arange(i + 1) & 1) * 2 - 1)
            assert (obs[:, i + 1 :] == 0).all()


def test_password_by_chance_opens_once_in_32():
    assert play("password", coin()).mean_values["score"] == near(1 / 32, 0.175)


# memory


@pytest.mark.parametrize(("length", "delay"), [(3, 2), (1, 0), (16, 5)])
def test_memory_pays_1_to_who_repeats_what_was_shown(length, delay):
    with fugu.vector.make("memory", 256, infos="episode", env_kwargs={"length": length, "delay": delay}) as vec:
        obs, _ = vec.reset(seed=0)
        shown: list[list[int]] = [[] for _ in range(256)]
        returns = []
        for _ in range(3 * (2 * length + delay + 1)):
            action = np.zeros(256, np.int64)
            for i in range(256):
                if obs[i, 0]:
                    shown[i].append(int(obs[i, 0] > 0))
                elif obs[i, 1]:
                    action[i] = shown[i].pop(0)
            obs, *_, infos = vec.step(action)
            returns += [(info["episode"]["r"], info["episode"]["l"]) for info in infos.values()]
        assert len(returns) == 3 * 256 and {r[1] for r in returns} == {2 * length + delay}
        np.testing.assert_allclose([r[0] for r in returns], 1, atol=1e-6)
        assert vec.drain_log().mean_values["score"] == pytest.approx(1)


def test_memory_no_function_of_the_present_observation_beats_chance():
    with fugu.vector.make("memory", 256) as vec:
        rows = [vec.reset(seed=0)[0].copy()] + [vec.step(np.zeros(256, np.int64))[0].copy() for _ in range(20)]
    looks = np.unique(np.concatenate(rows), axis=0)
    for table in itertools.product([0, 1], repeat=len(looks)):

        def policy(obs, rng, table=table):
            return np.select([(obs == look).all(1) for look in looks], table)

        log = play("memory", policy, episodes=5000)
        assert log.mean_values["score"] == near(0.5, 0.29, 5000) and log.mean_return == near(0.5, 0.29, 5000)
    assert play("memory", coin()).mean_return == near(0.5, 0.29)


# stochastic


def closeness(q: float, n: int = 32, p: float = 0.75) -> float:
    """Mean return of the policy that plays 0 with probability q."""
    return sum(math.comb(n, k) * q**k * (1 - q) ** (n - k) * (1 - abs(k / n - p) / max(p, 1 - p)) for k in range(n + 1))


def test_stochastic_rewards_the_right_coin_more_than_any_other_or_a_fixed_action():
    grid = np.linspace(0, 1, 201)
    best = max(grid, key=closeness)
    assert abs(best - 0.75) <= 0.02 and closeness(best) - closeness(0.75) < 2e-3
    assert closeness(0.75) == pytest.approx(0.919, abs=1e-3)
    for q in (0.75, 0.5, 0.9):
        log = play("stochastic", coin(1 - q))
        assert log.mean_return == near(closeness(q), 0.12) and log.mean_values["score"] == pytest.approx(log.mean_return)
        assert log.mean_length == 32
    fixed = [play("stochastic", always(action), episodes=2000).mean_return for action in (0, 1)]
    assert fixed == pytest.approx([2 / 3, 0], abs=1e-5)
    assert max(fixed) < closeness(0.75) - 0.2


# continuous


def test_continuous_straight_to_the_target_is_the_optimum():
    log = play("continuous", lambda obs, rng: np.clip((obs[:, 2:] - obs[:, :2]) / 0.1, -1, 1), episodes=5000)
    assert log.mean_return == pytest.approx(1, abs=1e-5) and log.mean_values["score"] == pytest.approx(1)
    assert log.mean_length <= 10


def test_continuous_by_chance_does_not_reach_the_target():
    log = play("continuous", lambda obs, rng: rng.uniform(-1, 1, (len(obs), 2)).astype(np.float32), episodes=10_000)
    assert log.mean_return == pytest.approx(-0.11, abs=0.02)
    assert log.mean_values["score"] == pytest.approx(0.12, abs=0.01)


def test_continuous_moves_by_the_cut_off_action_and_pays_the_way_made():
    rng = np.random.default_rng(0)
    with fugu.vector.make("continuous", 512) as vec:
        vec.async_reset(seed=0)
        rows = vec.recv()
        start = np.linalg.norm(rows.obs[:, 2:], axis=1)
        assert (rows.obs[:, :2] == 0).all() and (abs(rows.obs[:, 2:]) >= 0.3).all() and (abs(rows.obs[:, 2:]) <= 1).all()
        arrived = 0
        for _ in range(49):
            before, acts = rows.obs.copy(), rows.mask.copy()
            action = rng.uniform(-3, 3, (512, 2)).astype(np.float32)
            vec.send(action)
            rows = vec.recv()
            to = np.clip(before[:, :2] + 0.1 * np.clip(action, -1, 1), -1, 1)
            there = np.linalg.norm(to - before[:, 2:], axis=1) <= 0.1
            to[there] = before[there, 2:]
            way = np.linalg.norm(before[:, :2] - before[:, 2:], axis=1) - np.linalg.norm(to - before[:, 2:], axis=1)
            np.testing.assert_allclose(rows.obs[acts, :2], to[acts], atol=1e-6)
            np.testing.assert_array_equal(rows.terminated[acts], there[acts])
            np.testing.assert_allclose(rows.reward[acts], (way / start)[acts], atol=1e-5)
            fresh = ~acts
            start[fresh] = np.linalg.norm(rows.obs[fresh, 2:], axis=1)
            arrived += there[acts].sum()
        assert arrived > 10


# spaces


def answers(vec: fugu.vector.VecEnv, rows: np.ndarray) -> dict[str, np.ndarray]:
    flat, image = vec.obs_layout.leaf_views(rows)
    return {"flat": (flat.sum(1) > 0).astype(np.int64), "image": (image.sum((1, 2)) > 0).astype(np.int64)}


def spaces_log(change: Callable[[dict[str, np.ndarray], np.random.Generator], dict[str, np.ndarray]]) -> EpisodeLog:
    rng = np.random.default_rng(0)
    with fugu.vector.make("spaces", 2000) as vec:
        rows, _ = vec.reset(seed=0)
        for _ in range(20):
            rows, *_ = vec.step(change(answers(vec, rows), rng))
        return vec.drain_log()


def test_spaces_each_part_of_the_action_answers_its_part_of_the_observation():
    log = spaces_log(lambda right, rng: right)
    assert log.episodes == 20_000 and log.mean_return == 1 and log.mean_values == {"score": 1, "flat": 1, "image": 1}
    wrong = spaces_log(lambda right, rng: {"flat": 1 - right["flat"], "image": right["image"]})
    assert wrong.mean_return == 0.5 and wrong.mean_values == {"score": 0.5, "flat": 0, "image": 1}
    swapped = spaces_log(lambda right, rng: {"flat": right["image"], "image": right["flat"]})
    half = spaces_log(lambda right, rng: {"flat": right["flat"], "image": rng.integers(0, 2, 2000)})
    chance = spaces_log(lambda right, rng: {part: rng.integers(0, 2, 2000) for part in right})
    assert swapped.mean_return == near(0.5) and chance.mean_return == near(0.5) and half.mean_return == near(0.75)


def test_spaces_rows_lie_as_the_layout_says():
    with fugu.vector.make("spaces", 100) as vec:
        rows, _ = vec.reset(seed=0)
        flat, image = vec.obs_layout.leaf_views(rows)
        worlds = np.frombuffer(vec._runner._worlds.state, np.uint8).reshape(100, -1)
        np.testing.assert_array_equal(flat, worlds[:, :5].view(np.int8))
        levels = worlds[:, 7:32].reshape(100, 5, 5)
        np.testing.assert_allclose(image, (2.0 * levels - 255) / 255, atol=1e-6)
        assert len(np.unique(levels)) > 200 and set(np.unique(flat)) == {-1, 1}
        assert [leaf.offset for leaf in vec.obs_layout.leaves] == [0, 8]


# multiagent


def test_multiagent_pays_each_agent_for_its_own_number():
    with fugu.vector.make("multiagent", 3) as vec:
        obs, _ = vec.reset(seed=0)
        np.testing.assert_array_equal(obs[:, 0], [0, 1, 0, 1, 0, 1])
        _, reward, terminated, _, _ = vec.step(np.array([0, 1, 0, 0, 1, 1]))
        np.testing.assert_array_equal(reward, [1, 1, 1, 0, 0, 1])
        assert terminated.all()
    log = play("multiagent", lambda obs, rng: obs[:, 0].astype(np.int64), episodes=2000)
    assert log.mean_return == log.mean_values["score"] == 1
    assert play("multiagent", always(0)).mean_return == play("multiagent", always(1)).mean_return == 0.5
    assert play("multiagent", coin()).mean_return == near(0.5)


# maze


def maze_of(state: np.ndarray, size: int) -> tuple[np.ndarray, tuple[int, int], tuple[int, int]]:
    """Walls ``[y, x]``, the agent and the goal as (x, y), from the bytes of one world."""
    lines = state[: 27 * 4].view(np.uint32)[3 : 3 + size]
    walls = (lines[:, None] >> np.arange(3, 3 + size, dtype=np.uint32) & 1).astype(bool)
    x, y, goal_x, goal_y = (int(v) for v in state[27 * 4 : 27 * 4 + 4].view(np.int8))
    return walls, (x, y), (goal_x, goal_y)


def distances(walls: np.ndarray, source: tuple[int, int]) -> np.ndarray:
    """Steps from every field to ``source``; -1 where there is no way."""
    far = np.full(walls.shape, -1)
    far[source[1], source[0]] = 0
    queue = deque([source])
    while queue:
        x, y = queue.popleft()
        for dx, dy in ((0, -1), (1, 0), (0, 1), (-1, 0)):
            if not walls[y + dy, x + dx] and far[y + dy, x + dx] < 0:
                far[y + dy, x + dx] = far[y, x] + 1
                queue.append((x + dx, y + dy))
    return far


def view_of(walls: np.ndarray, agent: tuple[int, int], goal: tuple[int, int]) -> np.ndarray:
    size = len(walls)
    whole = np.full((size + 6, size + 6), 3, np.uint8)
    whole[3:-3, 3:-3] = walls
    whole[goal[1] + 3, goal[0] + 3] = 2
    return whole[agent[1] : agent[1] + 7, agent[0] : agent[0] + 7]


@pytest.mark.parametrize("size", [5, 11, 21])
def test_maze_is_a_tree_of_all_cells_and_differs_between_episodes(size):
    with fugu.vector.make("maze", 200, env_kwargs={"size": size}) as vec:
        vec.reset(seed=0)
        worlds = np.frombuffer(vec._runner._worlds.state, np.uint8).reshape(200, -1)
        seen = set()
        for state in worlds:
            walls, agent, goal = maze_of(state, size)
            cells = (size - 1) // 2
            assert walls[0].all() and walls[-1].all() and walls[:, 0].all() and walls[:, -1].all()
            far = distances(walls, goal)
            assert (far[1::2, 1::2] >= 0).all()  # every cell can be reached
            assert (~walls).sum() == 2 * cells**2 - 1  # with one passage less than cells: a tree
            assert agent != goal and far[agent[1], agent[0]] > 0 and far.max() <= (size - 1) ** 2 // 2
            seen.add(walls.tobytes())
        assert len(seen) > (195 if size > 5 else 3)


@pytest.mark.parametrize(("size", "made"), [(5, 5), (11, 11), (20, 19), (21, 21)])
def test_maze_shortest_way_is_the_optimum_and_the_view_shows_what_is_there(size, made):
    with fugu.vector.make("maze", 20, infos="episode", env_kwargs={"size": size, "step_cost": 0.001}) as vec:
        obs, _ = vec.reset(seed=0)
        lengths: dict[int, int] = {}
        ended = np.zeros(20, bool)
        for step in range(made * made // 2 + 1):
            worlds = np.frombuffer(vec._runner._worlds.state, np.uint8).reshape(20, -1)
            action = np.zeros(20, np.int64)
            for i in np.flatnonzero(~ended):
                walls, (x, y), goal = maze_of(worlds[i], made)
                np.testing.assert_array_equal(obs[i], view_of(walls, (x, y), goal))
                far = distances(walls, goal)
                if step == 0:
                    lengths[i] = int(far[y, x])
                around = [far[y + dy, x + dx] for dx, dy in ((0, -1), (1, 0), (0, 1), (-1, 0))]
                action[i] = around.index(far[y, x] - 1)
            obs, _, terminated, _, infos = vec.step(action)
            for i, info in infos.items():
                if not ended[i]:
                    assert info["episode"]["l"] == lengths[i]
                    assert info["episode"]["r"] == pytest.approx(1 - 0.001 * lengths[i], abs=1e-5)
            ended |= terminated
        assert ended.all()


def test_maze_by_chance_is_solved_in_a_third_of_the_episodes():
    assert play("maze", uniform(4), episodes=5000).mean_values["score"] == pytest.approx(0.34, abs=0.03)


def test_maze_walls_stop_the_agent_and_time_runs_out():
    with fugu.vector.make("maze", 50, env_kwargs={"max_steps": 40}) as vec:
        vec.reset(seed=0)
        rng, late = np.random.default_rng(0), 0
        for step in range(1, 41):
            before = np.frombuffer(vec._runner._worlds.state, np.uint8).reshape(50, -1)
            action = rng.integers(0, 4, 50)
            _, reward, terminated, truncated, _ = vec.step(action)
            after = np.frombuffer(vec._runner._worlds.state, np.uint8).reshape(50, -1)
            for i in range(50):
                walls, (x, y), goal = maze_of(before[i], 11)
                now, to, new_goal = maze_of(after[i], 11)
                if not np.array_equal(walls, now) or goal != new_goal:
                    continue  # a new episode
                dx, dy = ((0, -1), (1, 0), (0, 1), (-1, 0))[action[i]]
                assert to in ((x, y), (x + dx, y + dy)) and not walls[to[1], to[0]]
                if (x, y) != goal:
                    assert (to == (x, y)) == bool(walls[y + dy, x + dx])
                assert bool(terminated[i]) == (to == goal) == (reward[i] == 1)
                late += bool(truncated[i])
                assert not truncated[i] or (step == 40 and not terminated[i])
        assert late > 20


# connect4


def lines_of_four() -> np.ndarray:
    """Every four fields in a row, as [lines, 4] numbers of fields."""
    lines = []
    for r, c, (dr, dc) in itertools.product(range(6), range(7), ((0, 1), (1, 0), (1, 1), (1, -1))):
        fields = [(r + k * dr, c + k * dc) for k in range(4)]
        if all(0 <= a < 6 and 0 <= b < 7 for a, b in fields):
            lines.append([7 * a + b for a, b in fields])
    return np.array(lines)


LINES = lines_of_four()


class PlainConnect4:
    """The rules once more, by looking at every line of four."""

    def __init__(self) -> None:
        self.board = np.zeros((6, 7), int)  # 1 and 2, the top row first

    def allowed(self) -> np.ndarray:
        return self.board[0] == 0

    def drop(self, column: int, player: int) -> str:
        if self.board[0, column]:
            return "illegal"
        row = max(r for r in range(6) if self.board[r, column] == 0)
        self.board[row, column] = player
        if (self.board.reshape(-1)[LINES] == player).all(1).any():
            return "won"
        return "drawn" if self.board.all() else "goes on"


@pytest.mark.slow
@pytest.mark.parametrize("respect_mask", [True, False])
def test_connect4_games_go_as_the_plain_rules_say(respect_mask):
    worlds, rng = 100, np.random.default_rng(0)
    ends = dict.fromkeys(("won", "drawn", "illegal"), 0)
    begins = set()
    with fugu.vector.make("connect4", worlds) as vec:
        vec.async_reset(seed=0)
        rows = vec.recv()
        games = [PlainConnect4() for _ in range(worlds)]
        while sum(ends.values()) < 2000:
            mask, choices = rows.mask.reshape(worlds, 2).copy(), rows.action_mask.reshape(worlds, 2, 7).copy()
            weights = rng.random((worlds, 2, 7)) * (choices if respect_mask else 1)
            action = weights.argmax(2)
            vec.send(action.reshape(-1))
            rows = vec.recv()
            obs = rows.obs.reshape(worlds, 2, 6, 7)
            for w in range(worlds):
                reward, terminated = rows.reward[2 * w : 2 * w + 2], rows.terminated[2 * w : 2 * w + 2]
                if not mask[w].any():  # the row after an ending: a new game
                    games[w] = PlainConnect4()
                    assert rows.first[2 * w : 2 * w + 2].all() and not obs[w].any() and not reward.any()
                    begins.add(int(rows.mask[2 * w : 2 * w + 2].argmax()))
                    continue
                player = int(mask[w].argmax())
                assert mask[w].sum() == 1 and choices[w, 1 - player].all()
                np.testing.assert_array_equal(choices[w, player], games[w].allowed())
                outcome = games[w].drop(int(action[w, player]), player + 1)
                board = games[w].board
                np.testing.assert_array_equal(obs[w, 0], board)
                np.testing.assert_array_equal(obs[w, 1], np.array([0, 2, 1])[board])
                expected = np.zeros(2)
                expected[player] = {"won": 1, "illegal": -1}.get(outcome, 0)
                expected[1 - player] = -expected[player]
                np.testing.assert_array_equal(reward, expected)
                assert terminated.all() == terminated.any() == (outcome != "goes on")
                if outcome != "goes on":
                    ends[outcome] += 1
                else:
                    assert rows.mask[2 * w + 1 - player] and not rows.mask[2 * w + player]
        log = vec.drain_log()
    games_ended = sum(ends.values())
    assert ends["won"] > 500 and (ends["illegal"] > 300) != respect_mask and begins == {0, 1}
    assert log.episodes == 2 * games_ended and log.mean_return == 0 and log.mean_values["score"] == 0.5
    assert log.mean_values["draw"] == pytest.approx(ends["drawn"] / games_ended)
    assert log.mean_values["illegal"] == pytest.approx(ends["illegal"] / games_ended / 2)


def test_connect4_games_equal_pettingzoos():
    connect_four = pytest.importorskip("pettingzoo.classic.connect_four_v3")
    rng = np.random.default_rng(0)
    theirs = connect_four.env()
    with fugu.vector.make("connect4", 1) as vec:
        vec.async_reset(seed=0)
        for _ in range(100):
            rows = vec.recv()
            theirs.reset()
            first = int(rows.mask.argmax())
            for turn in itertools.count():
                player = (first + turn) % 2
                assert rows.mask[player] and not rows.mask[1 - player]
                seen, _, _, _, _ = theirs.last()
                mine, others = seen["observation"][..., 0], seen["observation"][..., 1]
                np.testing.assert_array_equal(rows.obs[player], mine + 2 * others)
                np.testing.assert_array_equal(rows.action_mask[player], seen["action_mask"])
                column = int(rng.choice(np.flatnonzero(seen["action_mask"])))
                theirs.step(column)
                vec.send(np.full(2, column))
                rows = vec.recv()
                ended = any(theirs.terminations.values())
                assert rows.terminated.all() == rows.terminated.any() == ended
                if ended:
                    rewards = [theirs.rewards[name] for name in theirs.possible_agents]
                    np.testing.assert_array_equal(rows.reward, rewards if first == 0 else rewards[::-1])
                    break
            vec.send(np.zeros(2, np.int64))


def test_connect4_a_full_board_is_a_draw():
    # columns filled in pairs so that no four stones of a kind meet
    moves = [0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 2, 3, 2, 3, 3, 2, 3, 2, 2, 3, 2, 3]
    moves += [4, 5, 4, 5, 5, 4, 5, 4, 4, 5, 4, 5, 6, 6, 6, 6, 6, 6]
    with fugu.vector.make("connect4", 1) as vec:
        vec.reset(seed=0)
        for i, column in enumerate(moves):
            _, reward, terminated, _, _ = vec.step(np.full(2, column))
            assert not reward.any() and terminated.all() == (i == 41)
        assert vec.drain_log().mean_values == {"score": 0.5, "draw": 1, "illegal": 0}


# knapsack_cmdp


def test_knapsack_pays_and_costs_what_its_header_says():
    spread = {"spread": 5.0}  # of a return: 20 offers, each worth at most 2
    for policy, gain, cost in (
        (lambda obs, rng: (obs[:, 0] == 1).astype(np.int64), 20, 10),  # the optimum with a limit of 10
        (always(1), 25, 20),
        (coin(), 12.5, 10),
        (always(0), 0, 0),
    ):
        log = play("knapsack_cmdp", policy)
        assert log.mean_return == near(gain, **spread) and log.mean_costs["cost"] == near(cost, **spread)
        assert log.mean_length == 20 and log.mean_values["score"] == near(gain / 20)
    assert play("knapsack_cmdp", always(1), steps=7, pay_b=2.0).mean_return == pytest.approx(14)


# safe_point


def test_safe_point_pays_the_straight_way_and_charges_for_hazards():
    def straight(obs, rng):
        return np.clip(5 * obs[:, 4:6] / np.linalg.norm(obs[:, 4:6], axis=1, keepdims=True), -1, 1).astype(np.float32)

    still = play("safe_point", lambda obs, rng: np.zeros((len(obs), 2), np.float32), episodes=500, worlds=256)
    assert still.mean_return == 0 and still.mean_costs["cost"] == 0  # no episode begins in a hazard
    log = play("safe_point", straight, episodes=500, worlds=256)
    assert log.mean_return > 20 and log.mean_values["score"] > 10 and log.mean_costs["cost"] > 30
    assert log.mean_length == 250
    assert play("safe_point", straight, episodes=500, worlds=256, hazard_radius=0.01).mean_costs["cost"] < 1


def test_safe_point_costs_are_steps_inside_a_hazard():
    """Rebuilt from what is observed: hazards are nearest first, so the first one decides."""
    with fugu.vector.make("safe_point", 64) as vec:
        obs, _ = vec.reset(0)
        rng = np.random.default_rng(0)
        paid = 0
        for _ in range(240):
            obs, *_ = vec.step(rng.uniform(-1, 1, (64, 2)).astype(np.float32))
            far = np.linalg.norm(obs[:, 6:].reshape(64, 8, 2), axis=2)
            assert (np.diff(far, axis=1) > -1e-6).all()
            sure = abs(far[:, 0] - 0.18) > 1e-5
            np.testing.assert_array_equal(vec.rows.cost[sure, 0], far[sure, 0] < 0.18)
            paid += vec.rows.cost.sum()
        assert paid > 500
