"""What the presets must reach: the mean return of 100 episodes played by the final policy, in every one of five seeds.

For connect4, which pays both players 0 on average, it is the share of games won against a player who plays at random.

``optimum`` is what is possible, ``chance`` what a uniformly random policy gets (both from the environments' own documentation or
measured); ``goal`` is the bound that is tested.
"""

from __future__ import annotations

from typing import NamedTuple


class Goal(NamedTuple):
    chance: float
    goal: float
    optimum: float | None
    episodes: int = 100
    changes: dict[str, object] = {}  # noqa: RUF012 - never changed
    """of the preset"""


GOALS: dict[str, Goal] = {
    "bandit": Goal(0.475, 0.85, 0.9, 1000),
    "squared": Goal(-0.16, 0.95, 1.0, 1000),
    "password": Goal(0.03, 0.95, 1.0, 1000),
    "memory": Goal(0.5, 0.95, 1.0, 1000),
    "stochastic": Goal(0.667, 0.88, 0.919, 1000),
    "continuous": Goal(-0.11, 0.95, 1.0, 1000),
    "spaces": Goal(0.5, 0.95, 1.0, 1000),
    "multiagent": Goal(0.5, 0.98, 1.0, 1000),
    "knapsack_cmdp": Goal(12.5, 24, 25, 1000),
    "cartpole": Goal(22, 475, 500),
    "acrobot": Goal(-497, -100, None),
    "mountain_car": Goal(-200, -130, None),
    "pendulum": Goal(-1217, -250, None),
    "breakout": Goal(0.9, 30, 108),
    "pong": Goal(-10, 10, 11),
    "snake": Goal(-0.35, 15, None),
    "maze": Goal(0.35, 0.8, 1.0, 1000),
    "tetris": Goal(0.1, 2.0, None),
    "foraging": Goal(0.32, 0.8, 1.0, 2000, {"algorithm": "mappo"}),
    "connect4": Goal(0.5, 0.8, 1.0),
    "CartPole-v1": Goal(22, 475, 500),
    "Acrobot-v1": Goal(-497, -100, None),
    "MountainCar-v0": Goal(-200, -130, None),
    "Pendulum-v1": Goal(-1217, -250, None),
    "LunarLander-v3": Goal(-180, 200, None),
    "MiniGrid-Empty-Random-5x5-v0": Goal(0.3, 0.9, 1.0, changes={"steps": 100_000}),
}
