"""Recording: the episodes in the file are those that were played, all of them, each once, in every kind of environment."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

import fugu
from fugu.data import DataError, DataSet, Writer, tape
from fugu.data.random_play import RandomPlay
from fugu.data.recording import play
from fugu.vector.seeds import env_seeds
from tests.contract.test_backends import Costly, Mixed
from tests.emulation.test_pettingzoo import TABLE, Brawl, Shifts
from tests.faults.faulty import Faulty

ENVS: dict[str, tuple[Any, int]] = {
    "cartpole": ("cartpole", 5),
    "several agents": ("snake", 2),
    "turns and masks": ("connect4", 4),
    "structured": (Mixed, 3),
    "costs": (Costly, 3),
    "agents that come and go": (functools.partial(Shifts, TABLE), 3),
    "turn-based, with deaths": (functools.partial(Brawl, late=2), 3),
}


def make(name: str) -> fugu.vector.VecEnv:
    env, count = ENVS[name]
    return fugu.vector.make(env, count, **({} if isinstance(env, str) else {"backend": "serial"}))


def written(path: Path, vec: fugu.vector.VecEnv, seed: int = 3, **budget: Any) -> DataSet:
    masks = vec.num_choices > 0 and vec.masks_actions
    chance = RandomPlay(vec.action_layout, vec.num_agents, seed)
    with vec, Writer(path, vec.spec, action_mask=masks) as writer:
        source = writer.source({"policy": "random"})
        play(vec, writer, lambda rows: chance.next(rows.action_mask if masks else None), seed=seed, sources=[source], **budget)
    return fugu.data.open(path)


def plain_episodes(vec: fugu.vector.VecEnv, seed: int, steps: int) -> list[list[dict[str, Any]]]:
    """Return the episodes of each agent in turn, row by row in plain Python, and in the order in which they ended."""
    masks = vec.num_choices > 0 and vec.masks_actions
    chance = RandomPlay(vec.action_layout, vec.num_agents, seed)
    vec.reset(env_seeds(seed, vec.num_envs).tolist())
    running: dict[int, list[dict[str, Any]]] = {}
    over: dict[int, list[dict[str, Any]]] = {}
    found: list[list[dict[str, Any]]] = []
    for _ in range(steps):
        rows = vec.rows
        mask = rows.action_mask if masks else None
        now = {name: np.array(rows[name]) for name in ("obs", "mask", "first", *(["action_mask"] if masks else []))}
        for agent, rest in sorted(over.items()):
            found.append([*rest, {"obs": now["obs"][agent], **({"action_mask": now["action_mask"][agent]} if masks else {})}])
        over = {}
        action = np.array(chance.next(mask))
        vec.step(action)
        rows = vec.rows
        for agent in range(vec.num_agents):
            if now["first"][agent]:
                running[agent] = []
            if agent not in running:
                continue
            names = [name for name in rows.columns if name not in ("obs", "mask", "first", "action_mask")]
            row = {
                **{name: now[name][agent] for name in now if name != "first"},
                **{n: np.array(rows[n][agent]) for n in names},
            }
            row["action"] = action[agent] if row["mask"] else np.zeros_like(action[agent])
            running[agent].append(row)
            if rows.terminated[agent] or rows.truncated[agent]:
                over[agent] = running.pop(agent)
    return found


@pytest.mark.parametrize("name", ENVS)
def test_the_file_holds_the_episodes_that_were_played(tmp_path: Path, name: str) -> None:
    with make(name) as vec:
        expected = plain_episodes(vec, 3, 80)
    data = written(tmp_path / "d", make(name), steps=2000)
    assert data.check() == [] and len(expected) >= 6
    for number, rows in enumerate(expected):
        got = data.episode(number)
        assert data.lengths[number] + 1 == len(rows)
        for k, row in enumerate(rows):
            for column, value in row.items():
                if column not in got:
                    assert column == "action_mask" and value.all()
                    continue
                assert got[column][k].tobytes() == np.asarray(value, got[column].dtype).tobytes(), (number, k, column)
        assert not got["mask"][-1] and not got["reward"][-1].any() and not np.asarray(got["action"][-1]).any()


@pytest.mark.parametrize("name", ["cartpole", "turns and masks", "structured"])
def test_the_same_play_writes_the_same_bytes_however_often_it_is_emptied(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [written(tmp_path / "a", make(name), episodes=40)]
    monkeypatch.setattr(tape, "PATIENCE", 0.0)
    found.append(written(tmp_path / "b", make(name), episodes=40))
    monkeypatch.setattr(tape, "PATIENCE", 1e9)
    monkeypatch.setattr(tape, "TOGETHER", 1)
    monkeypatch.setattr(tape, "AT_ONCE", 1)
    found.append(written(tmp_path / "c", make(name), episodes=40))
    for file in sorted(path.name for path in (tmp_path / "a").iterdir()):
        contents = {(tmp_path / folder / file).read_bytes() for folder in "abc"}
        assert len(contents) == 1, file


def test_every_backend_writes_the_same_bytes(tmp_path: Path) -> None:
    for backend in ("serial", "process"):
        workers = {"num_workers": 2} if backend == "process" else {}
        written(tmp_path / backend, fugu.vector.make(Mixed, 4, backend=backend, **workers), episodes=20)
    for path in (tmp_path / "serial").iterdir():
        assert path.read_bytes() == (tmp_path / "process" / path.name).read_bytes(), path.name


def test_each_environment_plays_its_share_so_that_short_episodes_are_not_favoured(tmp_path: Path) -> None:
    data = written(tmp_path / "d", fugu.vector.make("cartpole", 8), episodes=20)
    seeds = env_seeds(3, 8)
    counts = [int((data.seeds == seed).sum()) for seed in seeds]
    assert data.episodes == 20 and counts == [3, 3, 3, 3, 2, 2, 2, 2]
    for seed in seeds:
        assert sorted(data.numbers[data.seeds == seed]) == list(range((data.seeds == seed).sum()))


def test_so_many_steps_are_recorded_in_whole_episodes(tmp_path: Path) -> None:
    data = written(tmp_path / "d", fugu.vector.make("cartpole", 8), steps=500)
    assert 500 <= data.steps < 1000 and (data.terminated | data.truncated).all()


def test_seed_and_number_lead_to_the_episode_again(tmp_path: Path) -> None:
    data = written(tmp_path / "d", fugu.vector.make("CartPole-v1", 3, backend="serial"), episodes=9)
    env = gym.make("CartPole-v1")
    for number in range(data.episodes):
        obs, _ = env.reset(seed=int(data.seeds[number]))
        for _ in range(data.numbers[number]):
            obs, _ = env.reset()
        rows = data.episode(number)
        for k in range(data.lengths[number]):
            assert (obs == rows["obs"][k]).all()
            obs, *_ = env.step(int(rows["action"][k]))
        assert (obs == rows["obs"][-1]).all()


def test_long_episodes_beside_short_ones_fit_into_the_ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape, "TOGETHER", 1)
    makes = [functools.partial(Faulty, length=length) for length in (2, 300)]
    with fugu.vector.make(makes, backend="serial") as vec:
        data = written(tmp_path / "d", vec, episodes=6)
    assert sorted(data.lengths) == [2, 2, 2, 300, 300, 300]
    for number in range(6):
        seen = data.spec.obs_layout.views(np.array(data.episode(number)["obs"]))["count"]
        assert seen.tolist() == list(range(data.lengths[number] + 1))


def test_episodes_of_an_environment_that_was_lost_are_left_out(tmp_path: Path) -> None:
    with fugu.vector.make("cartpole", 4) as vec, Writer(tmp_path / "d", vec.spec) as writer:
        chance = RandomPlay(vec.action_layout, 4, 1)
        seeds = env_seeds(1, 4)
        recorder = tape.Tape(writer, seeds, np.array([writer.source({})]))
        vec.reset(seeds.tolist())
        recorder.see(vec.rows.columns)
        lost = 0
        for _ in range(200):
            action = chance.next()
            vec.step(action)
            ended = vec.rows.terminated[2] and not lost
            recorder.took(action, vec.rows.columns, {2: {"restarted": "it was killed"}} if ended else {})
            lost += bool(ended)
            recorder.see(vec.rows.columns)
        recorder.empty()
    data = fugu.data.open(tmp_path / "d")
    assert lost == 1 and data.check() == []
    assert not ((data.seeds == seeds[2]) & (data.numbers >= 0)).any()
    assert (data.seeds == -1).sum() > 2, "what plays there afterwards began with another seed"
    assert 0 not in data.numbers[data.seeds == -1]


class Endless(gym.Env):
    observation_space, action_space = gs.Discrete(2), gs.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, 0.0, False, False, {}


def test_an_environment_that_never_ends_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fugu.data import recording

    monkeypatch.setattr(recording, "LONGEST", 200)
    with pytest.raises(DataError, match="no episode of Endless ended within 200 steps. Give it a time limit"):
        written(tmp_path / "d", fugu.vector.make(Endless, 1, backend="serial"), episodes=1)
