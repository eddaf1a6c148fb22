"""What is possible in ``MiniGrid-FourRooms-v0``, where a goal is looked for that is seldom in view: two players by rule.

    python benchmarks/four_rooms.py --out benchmarks/results/four_rooms.json

``shortest`` knows all of the world and walks straight to the goal: more is not possible. ``explorer`` sees what an agent sees, but
forgets nothing, knows the plan of the rooms but for the gaps between them, where it stands, and how its view works: until it sees the
goal, it goes where it sees most that is new per action. Needs the extra ``minigrid``.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium
import minigrid  # noqa: F401, registers the environment
import numpy as np

from harness import main

ENV = "MiniGrid-FourRooms-v0"
VIEW = 7
AHEAD = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""by direction"""
LEFT, RIGHT, FORWARD = range(3)
FAR = 40
"""actions; the explorer does not plan for more"""

Pose = tuple[int, int, int]
"""column, row, direction"""


def players(repeats: int) -> dict[str, Any]:
    """Returns of both in the same ``repeats`` episodes."""
    env: Any = gymnasium.make(ENV).unwrapped
    returns = np.array([play(env, seed) for seed in range(repeats)])
    errors = returns.std(0) / np.sqrt(repeats)
    return {
        name: {"mean_return": float(mean), "standard_error": float(error), "episodes": repeats, "lowest": float(lowest)}
        for name, mean, error, lowest in zip(("shortest", "explorer"), returns.mean(0), errors, returns.min(0), strict=True)
    }


def play(env: Any, seed: int) -> tuple[float, float]:
    env.reset(seed=seed)
    wall = np.zeros((env.width, env.height), bool)
    goal = np.zeros_like(wall)
    for x, y in np.ndindex(wall.shape):
        kind = getattr(env.grid.get(x, y), "type", None)
        wall[x, y], goal[x, y] = kind == "wall", kind == "goal"
    start = int(env.agent_pos[0]), int(env.agent_pos[1]), int(env.agent_dir)
    check_view(env, wall, start)
    steps = min(cost for (x, y, _), (cost, _) in reachable(~wall, start).items() if goal[x, y])
    return paid(env, steps), paid(env, explored(env, wall, goal, start))


def paid(env: Any, steps: int) -> float:
    return 1 - 0.9 * steps / env.max_steps if steps <= env.max_steps else 0.0


def explored(env: Any, wall: np.ndarray, goal: np.ndarray, pose: Pose) -> int:
    """Actions until the goal is reached."""
    seen = np.zeros_like(wall)
    assumed = np.zeros_like(wall)  # walls of four rooms, without the gaps
    for part in (0, wall.shape[0] // 2, -1):
        assumed[part] = assumed[:, part] = True
    inner = np.zeros_like(wall)
    inner[1:-1, 1:-1] = True
    for step in range(env.max_steps + 1):
        if goal[pose[:2]]:
            return step
        for cell in visible(wall, pose):
            seen[cell] = True
        ways = reachable(seen & ~wall, pose)
        aim = min((p for p in ways if goal[p[:2]]), key=lambda p: ways[p][0], default=None)
        if aim is None:
            believed = np.where(seen, wall, assumed)
            new = ~seen & inner
            near = [p for p, (cost, _) in ways.items() if 0 < cost <= FAR]
            aim = max(near, key=lambda p: sum(new[cell] for cell in visible(believed, p)) / ways[p][0])
        pose = moved(pose, ways[aim][1])
    return env.max_steps + 1


def reachable(free: np.ndarray, start: Pose) -> dict[Pose, tuple[int, int]]:
    """Poses -> the actions that it takes to get there, and the first of them."""
    ways = {start: (0, FORWARD)}
    queue = deque([start])
    while queue:
        pose = queue.popleft()
        cost, first = ways[pose]
        for action in (LEFT, RIGHT, FORWARD):
            there = moved(pose, action)
            if there not in ways and free[there[:2]]:
                ways[there] = cost + 1, first if cost else action
                queue.append(there)
    return ways


def moved(pose: Pose, action: int) -> Pose:
    x, y, direction = pose
    if action == FORWARD:
        return x + AHEAD[direction][0], y + AHEAD[direction][1], direction
    return x, y, (direction + (1 if action == RIGHT else -1)) % 4


def visible(wall: np.ndarray, pose: Pose) -> list[tuple[int, int]]:
    """The cells that are seen from ``pose``: light spreads row by row, away from the agent, sideways and ahead, not through walls."""
    x, y, direction = pose
    ahead, right = AHEAD[direction], AHEAD[(direction + 1) % 4]

    def cell(i: int, j: int) -> tuple[int, int]:
        away, aside = VIEW - 1 - j, i - VIEW // 2
        return x + ahead[0] * away + right[0] * aside, y + ahead[1] * away + right[1] * aside

    lit = np.zeros((VIEW, VIEW), bool)
    lit[VIEW // 2, VIEW - 1] = True
    for j in reversed(range(VIEW)):
        for order, side in ((range(VIEW - 1), 1), (range(VIEW - 1, 0, -1), -1)):
            for i in order:
                a, b = cell(i, j)
                if lit[i, j] and 0 <= a < wall.shape[0] and 0 <= b < wall.shape[1] and not wall[a, b]:
                    lit[i + side, j] = True
                    if j > 0:
                        lit[i + side, j - 1] = lit[i, j - 1] = True
    cells = (cell(i, j) for i, j in np.argwhere(lit))
    return [(a, b) for a, b in cells if 0 <= a < wall.shape[0] and 0 <= b < wall.shape[1]]


def check_view(env: Any, wall: np.ndarray, pose: Pose) -> None:
    """That ``visible`` is what MiniGrid shows."""
    _, lit = env.gen_obs_grid()
    shown = {(x, y) for x, y in np.ndindex(wall.shape) if env.in_view(x, y) and lit[env.relative_coords(x, y)]}
    assert shown == set(visible(wall, pose)), pose


CASES = {"players": players}

if __name__ == "__main__":
    main("four_rooms", __doc__, CASES, repeats=200)
