"""The environments of teams: what they pay, who sees what, and the rules of foraging played again in Python."""

from __future__ import annotations

import numpy as np
import pytest

import fugu
from tests.envs.test_sanity import always, near, play

# hidden_bonus


def parts(vec, rows):
    """observation and state, each ``[worlds, agents, ...]``."""
    return [view.reshape(vec.num_envs, -1, *view.shape[1:]) for view in vec.obs_layout.leaf_views(rows)]


def test_hidden_bonus_pays_everyone_the_share_that_was_right_and_what_the_context_adds():
    with fugu.vector.make("hidden_bonus", 500, env_kwargs={"bonus": 6.0}) as vec:
        obs, _ = vec.reset(seed=0)
        bit, state = parts(vec, obs)
        action = np.random.default_rng(0).integers(0, 2, (500, 4))
        _, reward, terminated, _, _ = vec.step(action.ravel())
        right = (action == bit[:, :, 0]).mean(1)
        context = state[:, 0, :4].argmax(1)
        np.testing.assert_allclose(
            reward.reshape(500, 4), np.repeat((right + np.linspace(-6, 6, 4)[context])[:, None], 4, 1), rtol=1e-5
        )
        assert terminated.all() and set(context) == {0, 1, 2, 3}
        assert (state[:, :, :4].sum(2) == 1).all() and (state == state[:, :1]).all()
        np.testing.assert_array_equal(state[:, 0, 4:], bit[:, :, 0])


def test_hidden_bonus_by_chance_and_at_its_best():
    assert play("hidden_bonus", lambda obs, rng: obs[:, 0].astype(np.int64), bonus=0.0).mean_return == 1
    log = play("hidden_bonus", always(1))
    assert log.mean_values["score"] == near(0.5)
    assert log.mean_return == near(0.5, 7.5, 5000)  # four agents share a bonus, whose deviation is 7.45


# foraging


class Reference:
    """Foraging by its description: things are ``[row, column, level]``, level 0 where there is none."""

    def __init__(self, things: np.ndarray, size: int) -> None:
        self.agents, self.food, self.size = things[:4].copy(), things[4:].copy(), size
        self.total = self.food[:, 2].sum()

    def step(self, action: np.ndarray) -> float:
        gathered = 0
        before = self.agents.copy()
        for food in self.food:
            lifters = [a for a, agent in zip(action, before, strict=True) if a == 5 and abs(agent[:2] - food[:2]).sum() == 1]
            strength = sum(
                agent[2] for a, agent in zip(action, before, strict=True) if a == 5 and abs(agent[:2] - food[:2]).sum() == 1
            )
            if food[2] and lifters and strength >= food[2]:
                gathered += food[2]
                food[2] = 0
        ways = {1: (-1, 0), 2: (0, 1), 3: (1, 0), 4: (0, -1)}
        here = [i for i in range(4) if before[i, 2]]
        lying = {tuple(food[:2]) for food in self.food if food[2]}
        wanted = {}
        for i in here:
            cell = tuple(before[i, :2] + np.array(ways.get(int(action[i]), (0, 0))))
            free = all(0 <= x < self.size for x in cell) and cell not in lying
            wanted[i] = cell if free else tuple(before[i, :2])
        while clashing := [i for i in here if wanted[i] != tuple(before[i, :2]) and list(wanted.values()).count(wanted[i]) > 1]:
            for i in clashing:
                wanted[i] = tuple(before[i, :2])
        for i in here:
            self.agents[i, :2] = wanted[i]
        return gathered / self.total


def things(state: np.ndarray, size: int) -> np.ndarray:
    """What `state` says, in whole numbers: ``[8, 3]``."""
    return np.rint(state.reshape(8, 3) * [size, size, 4]).astype(int)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"players": 4, "size": 5, "food": 4}, {"together": 1, "max_level": 3, "food": 1}])
def test_foraging_goes_by_its_rules(settings):
    size, worlds = settings.get("size", 6), 60
    rng = np.random.default_rng(0)
    with fugu.vector.make("foraging", worlds, env_kwargs=settings) as vec:
        vec.reset(seed=0)
        taken, moved_on = 0, 0
        copies: list[Reference | None] = [None] * worlds
        for _ in range(150):
            rows = vec.rows
            state = parts(vec, rows.obs)[1][:, 0].copy()
            ended = rows.terminated.reshape(worlds, 4)[:, 0] | rows.truncated.reshape(worlds, 4)[:, 0]
            for w in range(worlds):
                if rows.first.reshape(worlds, 4)[w, 0]:
                    copies[w] = Reference(things(state[w], size), size)
                    starts_as_described(copies[w], settings)
            action = rng.integers(0, 6, (worlds, 4))
            action[rng.random((worlds, 4)) < 0.3] = 5
            vec.step(action.ravel())
            for w in np.flatnonzero(~ended):
                copy = copies[w]
                paid = copy.step(action[w])
                now = things(parts(vec, vec.rows.obs)[1][w, 0], size)
                there = np.concatenate([copy.agents, copy.food])[:, 2] > 0
                np.testing.assert_array_equal(now[there], np.concatenate([copy.agents, copy.food])[there])
                assert (now[~there] == 0).all()
                np.testing.assert_allclose(vec.rows.reward.reshape(worlds, 4)[w], paid, rtol=1e-6)
                assert vec.rows.terminated.reshape(worlds, 4)[w].all() == (copy.food[:, 2] == 0).all()
                taken, moved_on = taken + (paid > 0), moved_on + 1
    assert taken >= 5 and moved_on > 5000


def starts_as_described(world: Reference, settings: dict[str, int]) -> None:
    players, most = settings.get("players", 2), settings.get("max_level", 2)
    levels = world.agents[:players, 2]
    assert ((levels >= 1) & (levels <= most)).all() and (world.agents[players:] == 0).all()
    food = world.food[world.food[:, 2] > 0]
    assert 1 <= len(food) <= settings.get("food", 2) and (food[:, 2] <= levels.sum()).all()
    assert ((food[:, :2] >= 1) & (food[:, :2] <= world.size - 2)).all()
    cells = [tuple(cell) for cell in (*food[:, :2], *world.agents[:players, :2])]
    assert len(set(cells)) == len(cells)
    for i, one in enumerate(food):
        assert all(abs(one[:2] - other[:2]).max() > 1 for other in food[:i])
    if settings.get("together"):
        assert (food[:, 2] == levels.sum()).all()


def test_foraging_shows_an_agent_what_is_near_and_the_absent_nothing():
    size, sight = 8, 2
    with fugu.vector.make("foraging", 200, env_kwargs={"players": 3, "size": size, "food": 4, "sight": sight}) as vec:
        obs, _ = vec.reset(seed=0)
        own, state = parts(vec, obs)
        assert (own[:, 3] == 0).all() and (state[:, 3] == 0).all() and not vec.rows.mask.reshape(200, 4)[:, 3].any()
        assert vec.rows.mask.reshape(200, 4)[:, :3].all()
        hidden = 0
        for w in range(200):
            whole = things(state[w, 0], size)
            for a in range(3):
                seen = things(own[w, a], size)
                np.testing.assert_array_equal(seen[0], whole[a])
                others = np.delete(whole, a, 0)
                for told, thing in zip(seen[1:], others, strict=True):
                    away = thing[:2] - whole[a, :2]
                    visible = thing[2] > 0 and abs(away).max() <= sight
                    np.testing.assert_array_equal(told, [*away, thing[2]] if visible else [0, 0, 0])
                    hidden += thing[2] > 0 and not visible
        assert hidden > 100


def test_foraging_by_chance_gathers_little():
    log = play("foraging", lambda obs, rng: rng.integers(0, 6, len(obs)), episodes=8000)
    assert 0.2 < log.mean_return < 0.5 and log.mean_return == pytest.approx(log.mean_values["score"], abs=1e-6)
