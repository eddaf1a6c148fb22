"""A replay against brute force: which rows are in a batch, how often each is drawn, how many batches are due, and what is saved."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
import torch
from gymnasium import spaces as gs

import fugu
from fugu.emulation.stats import EpisodeLog, together
from fugu.errors import ConfigError, FuguError
from fugu.native import keep_freed_memory
from fugu.rollout.acting import Act, Actor, Seen
from fugu.rollout.config import ReplayConfig
from fugu.rollout.device import DeviceRollout
from fugu.rollout.envs import Envs
from fugu.rollout.onpolicy import OnPolicy
from fugu.rollout.priorities import SumTree
from fugu.rollout.replay import BEFORE, Replay
from fugu.rollout.ring import Ring
from fugu.rollout.source import Page, Stopped

INT, FLOAT = ((), torch.int64), ((), torch.float32)


class Counting(gymnasium.Env):
    """Says its seed, the number of the episode and the step; episodes of 3 to 7 steps end in both ways."""

    observation_space, action_space = gs.Box(0, 1e6, (3,), np.float32), gs.Discrete(3)

    def __init__(self) -> None:
        self.key, self.episode = 0, -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.key, self.episode = seed % 1000, -1
        self.episode, self.t = self.episode + 1, 0
        return self._seen(), {}

    def _seen(self) -> Any:
        return np.array([self.key, self.episode, self.t], np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        over = self.t >= 3 + (self.key + self.episode) % 5
        return self._seen(), float(self.t), bool(over and self.episode % 2), bool(over and not self.episode % 2), {}


def act(seen: Seen) -> Act:
    """Carry how many rows there were so far in the episode, times two."""
    before = seen.carry["twice"] if seen.carry else torch.zeros(len(seen.first))
    before = torch.where(seen.first, 0.0, before)
    action = seen.obs[:, 2].long() % 3
    return Act(action, {"twice": before + 2}, {"action": action[:, None]})


def made(
    every: int = 1, horizon: int = 3, envs: int = 3, minibatch: int | None = 12, carry: bool = True, **config: Any
) -> Replay:
    vec = fugu.vector.make(Counting, envs, backend="serial")
    settings = ReplayConfig(**{"size": 20 * envs, "start": 1, "ratio": 4, "every": every, **config})
    forms = {"twice": FLOAT} if carry else {}
    inner = OnPolicy(vec, every, carry={"twice": FLOAT})
    replay = Replay(inner, settings, horizon=horizon, minibatch=minibatch, acted={"action": ((1,), torch.int64)}, carry=forms)
    replay.restart(7)
    return replay


def truth(replay: Replay) -> dict[int, list[dict[str, Any]]]:
    """All rows that the ring has, of each agent, as lists of numbers."""
    ring = replay._ring
    columns = ring.rows(ring.begin, ring.end)
    return {
        agent: [
            {name: column[agent, t].numpy().tolist() for name, column in columns.items()} for t in range(ring.end - ring.begin)
        ]
        for agent in range(ring.agents)
    }


# --- the ring ---


@pytest.mark.parametrize("capacity", [5, 16])
def test_the_ring_holds_the_last_rows_of_every_agent(capacity):
    random, agents = np.random.default_rng(0), 3
    forms = {"obs": ((2,), torch.float32), "mask": ((), torch.bool), "first": ((), torch.bool)}
    forms |= {"terminated": ((), torch.bool), "truncated": ((), torch.bool)}
    ring, rows = Ring(agents, capacity, forms, torch.device("cpu")), [[] for _ in range(agents)]
    for _ in range(30):
        steps = int(random.integers(1, 8))
        obs = torch.from_numpy(random.normal(size=(agents, steps, 2)).astype(np.float32))
        flags = {name: torch.zeros(agents, steps, dtype=torch.bool) for name in ("first", "terminated", "truncated")}
        ring.write({"obs": obs, "mask": torch.ones(agents, steps, dtype=torch.bool), **flags})
        for agent in range(agents):
            rows[agent] += obs[agent].tolist()
        assert ring.end == len(rows[0]) and ring.begin == max(0, ring.end - capacity)
        for _ in range(5):
            horizon = int(random.integers(1, min(4, ring.end - ring.begin) + 1))
            agent, row = int(random.integers(agents)), int(random.integers(ring.begin, ring.end - horizon + 1))
            found = ring.segments(torch.tensor([agent]), torch.tensor([row]), horizon)["obs"][0].tolist()
            assert found == rows[agent][row : row + horizon]
        assert ring.rows(ring.begin, ring.end)["obs"].tolist() == [each[ring.begin : ring.end] for each in rows]


def test_where_environments_start_anew_episodes_have_ended():
    replay = made(every=2, horizon=2)
    actor = Actor(act)
    for seed in (11, 12, 13):
        for _ in range(9):
            replay.next(actor)
        replay.restart(seed)
    replay.next(actor)
    for rows in truth(replay).values():
        firsts = [t for t, row in enumerate(rows) if row["first"] and t > 1]
        assert len(firsts) > 2
        for t in firsts:
            assert not rows[t - 1]["mask"]
            if rows[t - 2]["mask"]:
                assert rows[t - 2]["terminated"] or rows[t - 2]["truncated"]
        for now, then in itertools.pairwise(rows):
            if now["mask"]:  # what follows is what the action led to, the true last observation of an episode included
                assert then["obs"] == [now["obs"][0], now["obs"][1], now["obs"][2] + 1]


# --- drawing ---


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("horizon", [1, 3])
def test_a_batch_is_rows_that_were_played_and_the_row_after_them(every, horizon):
    replay = made(every=every, horizon=horizon)
    actor = Actor(act)
    for _ in range(60):
        batch = replay.next(actor).batch
        rows, begin = truth(replay), replay._ring.begin
        assert replay._drawn is not None
        for i, (agent, row) in enumerate(zip(*replay._drawn, strict=True)):
            own = rows[int(agent)][int(row) - begin :]
            assert own[0]["mask"]
            for name in ("obs", "first", "mask", "reward", "terminated", "truncated", "action"):
                assert batch[name][i].numpy().tolist() == [each[name] for each in own[:horizon]], name
            assert batch["obs_after"][i].tolist() == own[horizon]["obs"]
            assert batch["acts_after"][i].item() == own[horizon]["mask"]
            if not own[0]["first"]:
                assert batch["twice"][i].item() == 2 * own[0]["obs"][2]
    assert replay._ring.begin > 0 and batch["twice"].dim() == 1 and "importance" not in batch


def chi_square(counts: Counter, expected: dict[Any, float]) -> float:
    assert counts.keys() <= expected.keys()
    return sum((counts[key] - wanted) ** 2 / wanted for key, wanted in expected.items())


def limit(cells: int) -> float:
    """Far beyond what chance does: five deviations of chi-square."""
    return cells + 5 * (2 * cells) ** 0.5


def test_every_row_on_which_an_agent_acted_is_drawn_equally_often():
    replay = made(horizon=2)
    for _ in range(40):
        replay.next(Actor(act))
    rows, begin = truth(replay), replay._ring.begin
    can = [(agent, begin + t) for agent, own in rows.items() for t in range(len(own) - 2) if own[t]["mask"]]
    counts: Counter = Counter()
    for _ in range(4000):
        counts.update(zip(*(each.tolist() for each in replay._chosen()), strict=True))
    expected = dict.fromkeys(can, sum(counts.values()) / len(can))
    assert chi_square(counts, expected) < limit(len(can))


def test_segments_are_drawn_in_proportion_to_their_priorities_and_weighed_against_it():
    replay = made(horizon=2, minibatch=8, priority=0.7, correction=0.6)
    random = np.random.default_rng(3)
    own: dict[tuple[int, int], float] = {}
    highest = 1.0
    for _ in range(60):
        batch = replay.next(Actor(act)).batch
        assert replay._drawn is not None
        found = random.exponential(size=batch.segments).astype(np.float32)
        order = torch.from_numpy(random.permutation(batch.segments))
        batch.rows(order).hand_back(priority=torch.from_numpy(found)[order])
        # by hand: new rows have the highest priority so far; of a segment that is there twice, the last one counts
        for agent, row in [(a, r) for a in range(3) for r in range(replay._ring.end - 2)]:
            own.setdefault((agent, row), highest)
        for i in order.tolist():
            own[int(replay._drawn[0][i]), int(replay._drawn[1][i])] = float(found[i])
        highest = max(highest, float(found.max()))
    rows, begin = truth(replay), replay._ring.begin
    can = {
        (a, begin + t): own[a, begin + t] ** 0.7 for a, each in rows.items() for t in range(len(each) - 2) if each[t]["mask"]
    }
    total = sum(can.values())
    counts: Counter = Counter()
    draws = 4000
    for _ in range(draws):
        agent, row = replay._chosen()
        counts.update(zip(agent.tolist(), row.tolist(), strict=True))
    expected = {key: draws * len(agent) * weight / total for key, weight in can.items()}
    assert chi_square(counts, expected) < limit(len(can))
    weights = np.array([(len(can) * can[int(a), int(r)] / total) ** -0.6 for a, r in zip(agent, row, strict=True)])
    np.testing.assert_allclose(replay._importance(agent, row).numpy(), weights / weights.max(), rtol=1e-5)


def test_a_share_of_each_batch_is_the_newest_rows():
    replay = made(horizon=2, minibatch=16, newest=0.5)
    for _ in range(40):
        batch = replay.next(Actor(act)).batch
    assert replay._drawn is not None and batch.segments == 8
    end = replay._ring.end
    newest = list(zip(*(each.tolist() for each in replay._drawn), strict=True))[:4]
    assert newest == [(0, end - 3), (1, end - 3), (2, end - 3), (0, end - 5)]


def test_the_tree_is_a_table_of_weights():
    random, size = np.random.default_rng(0), 37
    tree, table = SumTree(size), np.zeros(size)
    for _ in range(200):
        index = random.integers(size, size=5)
        weight = np.where(random.random(5) < 0.3, 0.0, random.exponential(size=5))
        tree.set(index, weight)
        for i, w in zip(index, weight, strict=True):
            table[i] = w
        np.testing.assert_array_equal(tree[:], table)
        assert tree.total == pytest.approx(table.sum()) and tree.count == np.count_nonzero(table)
        if tree.total:
            points = np.concatenate([random.random(20), [0.0, 1.0]])
            drawn = tree.draw(points)
            assert (table[drawn] > 0).all()
            borders = np.concatenate([[0], np.cumsum(table)]) / table.sum()
            assert ((borders[drawn] <= points + 1e-9) & (points <= borders[drawn + 1] + 1e-9)).all()
    fresh = SumTree(size)
    fresh.set(np.arange(size), table)
    assert fresh.total == tree.total  # it depends on the weights alone


# --- how much is learned ---


@pytest.mark.parametrize(
    "ratio, every, minibatch, envs", [(4, 1, 12, 3), (1, 1, 30, 3), (7, 2, 15, 3), (50, 1, 30, 1), (3, 4, None, 2)]
)
def test_the_ratio_is_exact(ratio, every, minibatch, envs):
    replay = made(ratio=ratio, every=every, minibatch=minibatch, envs=envs, start=10)
    played = learned = batches = 0
    empty = 0
    for _ in range(80):
        found = replay.next(Actor(act))
        played, batches = played + int(found.rows), batches + 1
        learned += found.batch.segments * found.batch.horizon
        empty += found.rows == 0
        due = ratio * (played - 10)
        assert learned <= due  # never early, and late by less than what one call of the inner source brings
        assert due - learned < found.batch.segments * found.batch.horizon + ratio * every * envs + ratio * 10
        assert replay._credit == due - learned
        assert (found.acted is None) == (found.ended is None) == (found.rows == 0)
    assert (empty > 0) == (ratio in (7, 50))  # more than one batch is due for what one call plays
    assert abs(replay.played * ratio - learned / batches) < ratio


def test_what_was_played_is_told_once_with_the_episodes_that_ended():
    replay = made(start=30, every=2)
    first = replay.next(Actor(act))
    log = first.episodes()
    assert first.rows >= 30 and log.episodes >= 3 and log.mean_return > 5 and first.acted is not None and first.acted.all()
    rows = sum(len([row for row in own if row["mask"]]) for own in truth(replay).values())
    assert first.rows == rows


def test_episodes_of_several_looks_are_those_of_one():
    logs = [
        EpisodeLog(2, 3.0, 4.0, {"x": 1.0}, {}, {"win": (1, 1.0)}, {"a": (2, 3.0, 4.0)}),
        EpisodeLog(0, 0.0, 0.0, {}),
        EpisodeLog(6, 7.0, 8.0, {"x": 5.0}, {}, {"win": (3, 0.0)}, {"b": (6, 7.0, 8.0)}),
    ]
    whole = together(logs)
    assert whole[:4] == (8, 6.0, 7.0, {"x": 4.0}) and whole.infos == {"win": (4, 0.25)}
    assert whole.agents == {"a": (2, 3.0, 4.0), "b": (6, 7.0, 8.0)} and together([]).episodes == 0


# --- the carry ---


def test_the_carry_is_refreshed_by_what_learning_found():
    replay = made(horizon=3, minibatch=9)
    for _ in range(30):
        batch = replay.next(Actor(act)).batch
    assert replay._drawn is not None
    agent, row = (each.copy() for each in replay._drawn)
    newer = torch.arange(float(4 * batch.segments)).view(-1, 4) + 1000
    order = torch.arange(batch.segments).flip(0)
    batch.rows(order).hand_back(twice=newer[order])
    expected = {}
    for i in order.tolist():
        for t in range(4):
            expected[int(agent[i]), int(row[i]) + t] = newer[i, t].item()
    ring = replay._ring
    for (a, r), value in expected.items():
        assert ring.columns[BEFORE + "twice"][a, r % ring.capacity].item() == value


# --- saving ---


@pytest.mark.parametrize("priority", [0.0, 0.8])
@pytest.mark.parametrize("calls", [3, 40])
def test_it_goes_on_from_what_was_kept(priority, calls):
    one, other = (made(priority=priority, start=5) for _ in range(2))
    random = np.random.default_rng(0)

    def after(replay: Replay, batch: Any) -> None:
        batch.hand_back(priority=torch.from_numpy(random.random(batch.segments)), twice=torch.rand(batch.segments, 3))

    written: list[Any] = []
    for number in range(calls):
        after(one, one.next(Actor(act)).batch)
        if number % 7 == 0 or number == calls - 1:
            kept = one.kept()
            for page in kept.pages:
                if page.file is None:
                    page.file = {"number": len(written)}
                    written.append(copy.deepcopy(page.columns()))
    files = [page.file["number"] for page in kept.pages]
    other.remember(kept.tensors, [Page(lambda file=file: written[file], {"number": file}) for file in files])
    one.restart(50), other.restart(50)
    for _ in range(5):
        found, again = one.next(Actor(act)), other.next(Actor(act))
        assert found.rows == again.rows and found.batch.columns.keys() == again.batch.columns.keys()
        for name, column in found.batch.columns.items():
            assert torch.equal(column, again.batch[name]), name
        values = torch.rand(found.batch.segments)
        found.batch.hand_back(priority=values), again.batch.hand_back(priority=values)


def test_pages_are_not_made_twice_and_go_with_their_rows():
    replay = made(every=2)
    seen: list[Page] = []
    for _ in range(30):
        replay.next(Actor(act))
        pages = list(replay.kept().pages)
        assert all(page in seen or page is pages[-1] for page in pages)
        seen = pages
        for page in pages:
            page.file = page.file or {"name": "there"}
        rows = sum(next(iter(page.columns().values())).shape[1] for page in pages)
        assert rows == replay._ring.end - replay._ring.begin
    assert replay._ring.begin > 0 and len(pages) < 25


# --- what is refused ---


def test_what_does_not_fit_is_refused_before_it_is_taken():
    with pytest.raises(
        ConfigError, match=r"replay.size=.* takes .* GB of memory, 28 bytes a row, and .* are free; try --replay.size \d+$"
    ):
        made(size=10**13, carry=False)
    with pytest.raises(ConfigError, match="leaves 3 rows for each of 3 agents.*try --replay.size 15"):
        made(size=9)
    with pytest.raises(
        ConfigError, match=r"replay.ratio=\d+ makes batches of [\d,]+ rows, .* are free; try --replay.ratio \d+$"
    ):
        made(ratio=10**12, carry=False)
    with pytest.raises(ConfigError, match="replay.start=50 is more than replay.size=20"):
        ReplayConfig(size=20, start=50)
    replay = made(size=3_000_000)
    assert replay.note is not None and "up to 96.0 MB of memory (cpu) for 3,000,000 rows" in replay.note


def test_memory_is_taken_as_rows_come():
    keep_freed_memory()  # as a training does: zeros of malloc would be written at once
    process = psutil.Process()
    before = process.memory_info().rss
    replay = made(size=9_000_000)
    assert replay.nbytes > 280_000_000
    assert process.memory_info().rss - before < 50_000_000


def test_rows_of_other_agents_are_refused():
    one, other = made(envs=3), made(envs=2)
    one.next(Actor(act))
    kept = one.kept()
    with pytest.raises(ConfigError, match="rows of 3 agents, and there are 2 now"):
        other.remember(kept.tensors, kept.pages)


def test_an_environment_in_which_nobody_acts_is_an_error():
    class Idle(OnPolicy):
        def next(self, actor, stop=bool):
            found = super().next(actor, stop)
            found.batch["mask"].zero_()
            found.rows = 0
            return found

    vec = fugu.vector.make(Counting, 1, backend="serial")
    replay = Replay(Idle(vec, 1), ReplayConfig(size=50, start=1), horizon=1, minibatch=4, acted={"action": ((1,), torch.int64)})
    replay.restart(1)
    with pytest.raises(FuguError, match="no agent was to act"):
        replay.next(Actor(lambda seen: Act(seen.obs[:, 2].long() % 3, columns={"action": seen.obs[:, 2:].long()})))


def test_a_rollout_that_is_given_up_loses_no_count():
    replay, told, asked = made(start=200, every=2, size=600), 0, 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked == 31  # in the middle of what the inner source plays

    with pytest.raises(Stopped):
        replay.next(Actor(act), stop)
    assert replay._ring.end == 30  # whole calls of the inner source only
    again = made(start=200, every=2, size=600)
    kept = replay.kept()
    again.remember(kept.tensors, kept.pages)
    again.restart(9)
    found = again.next(Actor(act))
    told += int(found.rows)
    assert told == again._rows >= 200 and again._credit == 4 * (told - 200) - found.batch.segments * found.batch.horizon


class Worlds:
    """Counting, as torch functions over all worlds: episodes of four steps."""

    observation_space, action_space, name = gs.Box(0, 100, (2,), np.float32), gs.Discrete(3), "counting"

    def reset(self, n: int, uniform: Any) -> dict[str, torch.Tensor]:
        return {"key": torch.floor(50 * uniform()), "t": torch.zeros(n, device=uniform.device)}

    def step(self, state: dict[str, torch.Tensor], action: torch.Tensor) -> Any:
        t = state["t"] + 1
        return {"key": state["key"], "t": t}, t, t >= 4, {}

    def observe(self, state: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.stack([state["key"], state["t"]], 1)


def test_rows_of_environments_on_a_device_are_kept_as_well():
    class Acting:
        act = staticmethod(
            lambda seen: Act((seen.obs[:, 1].long() + 1) % 3, {"twice": 2 * seen.obs[:, 1]}, {"action": seen.obs[:, 1:]})
        )

    with fugu.vector.make(Worlds, 5, device="cpu") as vec:
        envs = Envs(vec=vec, horizon=2, minibatch=20, device=torch.device("cpu"))
        replay = envs.replay(Acting(), ReplayConfig(size=100, start=1, ratio=4, every=3))
        assert isinstance(replay, Replay) and isinstance(replay.inner, DeviceRollout) and not replay.static
        replay.restart(1)
        for _ in range(30):
            batch = replay.next(Actor(Acting.act)).batch
            steps = torch.cat([batch["obs"][..., 1], batch["obs_after"][:, None, 1]], 1)
            follows = ~batch["first"][:, 1:] & batch["mask"][:, :-1]
            assert ((steps[:, 1:-1] == steps[:, :-2] + 1) | ~follows).all() and torch.equal(
                batch["action"][..., 0], steps[:, :-1]
            )
            old = ~batch["first"][:, 0]
            assert torch.equal(batch["twice"][old], 2 * (steps[old, 0] - 1))
        assert replay._ring.begin > 0
