"""Keys and the actions they mean, for driving an environment by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces as gs

from fugu.spaces import Layout

LEFT_RIGHT = {"left": 0, "right": 1}
COMPASS = {"up": 0, "right": 1, "down": 2, "left": 3}
ARROWS: Mapping[str, Mapping[str, int]] = {
    "cartpole": LEFT_RIGHT,
    "CartPole-v1": LEFT_RIGHT,
    "CartPole-v0": LEFT_RIGHT,
    "acrobot": {"left": 0, "down": 1, "right": 2},
    "Acrobot-v1": {"left": 0, "down": 1, "right": 2},
    "mountain_car": {"left": 0, "down": 1, "right": 2},
    "MountainCar-v0": {"left": 0, "down": 1, "right": 2},
    "breakout": {"left": 1, "right": 2},
    "pong": {"up": 1, "down": 2},
    "snake": COMPASS,
    "maze": COMPASS,
    "foraging": {"up": 1, "right": 2, "down": 3, "left": 4},
    "squared": {"up": 0, "right": 2, "down": 4, "left": 6},
    "tetris": {"left": 1, "right": 2, "up": 3, "down": 4},
    "FrozenLake-v1": {"left": 0, "down": 1, "right": 2, "up": 3},
    "CliffWalking-v1": COMPASS,
}
"""environment -> actions of its arrow keys; number keys work everywhere"""
IDLE: Mapping[str, int] = {
    "acrobot": 1,
    "Acrobot-v1": 1,
    "mountain_car": 1,
    "MountainCar-v0": 1,
    "breakout": 0,
    "pong": 0,
    "tetris": 0,
}
"""environment -> the action that does nothing; elsewhere the last action goes on"""
LIVE = {*IDLE, "cartpole", "CartPole-v0", "CartPole-v1", "pendulum", "Pendulum-v1", "snake"}
"""environments that go on whether a key is pressed or not"""


@dataclass(frozen=True)
class Keys:
    actions: Mapping[str, np.ndarray]
    """key -> row of the action layout"""
    idle: np.ndarray | None
    """action while no key is pressed; None: the last one"""
    help: str


def keys_for(name: str, space: gs.Space) -> Keys | None:
    """Return the keys of an action space; None if it is too large for single keys."""
    layout = Layout(space)
    names: dict[str, Any]
    idle: float | None
    if isinstance(space, gs.Discrete) and space.n <= 10:
        start = int(space.start)
        names = {str(i): start + i for i in range(int(space.n))}
        arrows = ARROWS.get(name) or (LEFT_RIGHT if space.n == 2 else {})
        names |= {key: start + action for key, action in arrows.items() if action < space.n}
        idle = IDLE.get(name)
        text = f"0-{int(space.n) - 1}" + (" or arrows" if arrows else "")
    elif isinstance(space, gs.Box) and layout.row_shape == (1,) and np.isfinite([*space.low, *space.high]).all():
        low, high = float(space.low[0]), float(space.high[0])
        names = {"left": low, "right": high, "down": (low + high) / 2}
        idle, text = (low + high) / 2, f"left {low:g}, right {high:g}"
    else:
        return None

    def row(value: Any) -> np.ndarray:
        return np.full(layout.row_shape, value, layout.dtype)

    return Keys({key: row(value) for key, value in names.items()}, None if idle is None else row(idle), text)
