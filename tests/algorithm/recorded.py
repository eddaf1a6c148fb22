"""Small environments whose best way to be learned offline is known, and recorders of what random play does in them."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs

import fugu.vector as fv
from fugu.data import Writer
from fugu.data.format import forms_of

Choose = Callable[[np.ndarray, np.random.Generator, int], Any]
"""function of an observation's row, a random generator and the step: the action"""


class Fork(gym.Env):
    """Three steps; the first action decides the return, 0 or 1, which comes at the end."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = gs.Box(0, 1, (3,), np.float32), gs.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        return np.eye(3, dtype=np.float32)[0], {}

    def step(self, action):
        if self.step_number == 0:
            self.good = int(action)
        self.step_number += 1
        over = self.step_number == 3
        return np.eye(3, dtype=np.float32)[min(self.step_number, 2)], float(self.good) if over else 0.0, over, False, {}


class Stitch(gym.Env):
    """A grid from whose first corner the last one is to be reached, within ``limit`` steps."""

    def __init__(self, size: int = 5, limit: int = 30, anywhere: bool = False) -> None:
        self.size, self.limit, self.anywhere = size, limit, anywhere
        self.observation_space, self.action_space = gs.Box(0, 1, (size * size,), np.float32), gs.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(self.size**2 - 1)) if self.anywhere else 0
        self.count = 0
        return self._seen(), {}

    def step(self, action):
        self.place, self.count = moved(self.place, int(action), self.size), self.count + 1
        goal = self.place == self.size**2 - 1
        return self._seen(), float(goal), goal, not goal and self.count >= self.limit, {}

    def _seen(self):
        return np.eye(self.size**2, dtype=np.float32)[self.place]


def moved(place: int, action: int, size: int) -> int:
    y, x = divmod(place, size)
    down, right = ((-1, 0), (1, 0), (0, -1), (0, 1))[action]
    return min(max(y + down, 0), size - 1) * size + min(max(x + right, 0), size - 1)


def mostly_left(obs: np.ndarray, random: np.random.Generator, step: int) -> int:
    """Choose 0 first in four of five episodes."""
    return int(random.random() < 0.2) if step == 0 else int(random.integers(2))


def anything(space: gs.Space) -> Choose:
    space.seed(0)
    return lambda obs, random, step: space.sample()


def record(
    env: Any, path: Path, choose: Choose, episodes: int, *, seed: int = 0, name: str | None = None, settings: Any = None
) -> Path:
    """Play ``episodes`` episodes of ``env`` and write them into ``path``, as recorded in the environment called ``name``."""
    random = np.random.default_rng(seed)
    with fv.make(env, num_envs=1) as vec:
        assert vec.num_agents == 1
        forms = [name for name in forms_of(vec.spec) if name != "action"]
        with Writer(path, vec.spec, recorded={"env": name or vec.spec.name, "env_kwargs": settings or {}}) as writer:
            vec.reset(seed)
            source = writer.source({})
            for _ in range(episodes):
                rows = _episode(vec, forms, choose, random)
                ends = {end: bool(rows[end].any()) for end in ("terminated", "truncated")}
                writer.add(rows, source=source, **ends)
    return path


def _episode(vec: Any, forms: list[str], choose: Choose, random: np.random.Generator) -> dict[str, np.ndarray]:
    kept: dict[str, list[np.ndarray]] = {name: [] for name in (*forms, "action")}
    while True:
        rows = vec.rows
        before = {name: rows.columns[name][0].copy() for name in ("obs", "mask")}
        over = not before["mask"]
        action = np.zeros((1, *vec.action_layout.row_shape), vec.action_layout.dtype_name)
        if not over:
            chosen = choose(before["obs"], random, len(kept["mask"]))
            action[0] = _packed(vec, chosen)
        vec.step(action)
        now = {**{name: vec.rows.columns[name][0].copy() for name in forms}, **before, "action": action[0]}
        for name, column in kept.items():
            column.append(np.zeros_like(now[name]) if over and name not in before else now[name])
        if over:
            return {name: np.stack(column) for name, column in kept.items()}


def _packed(vec: Any, action: Any) -> np.ndarray:
    from fugu.spaces import Packer

    row = vec.action_layout.zeros(1)
    Packer(vec.action_layout).pack(action, row[0, ...])
    return row[0]


ACTIONS: dict[str, gs.Space] = {"cartpole": gs.Discrete(2), "pendulum": gs.Box(-2, 2, (1,), np.float32)}
"""of the environments of which there are recorded episodes"""


@functools.cache
def recording(env: str) -> str:
    """Return the path of recorded episodes, the same bytes whoever asks."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    return str(record(env, Path(folder) / env, anything(ACTIONS[env]), 4, name=env))
