"""What ``fugu list`` says of an environment beside its name, without importing or making one."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import gymnasium

from fugu.emulation.native import is_name, native_spec

NATIVE = {
    "acrobot": "swing two links above a line",
    "bandit": "four arms, one pull",
    "breakout": "a ball, a paddle and a wall of bricks",
    "cartpole": "balance a pole on a cart",
    "connect4": "four in a row, for two players",
    "continuous": "move a point to a target in the plane",
    "foraging": "gather food that takes several to lift",
    "hidden_bonus": "four easy tasks, paid mostly by chance",
    "knapsack_cmdp": "risks with costs, of which a limited sum is allowed",
    "maze": "a new maze every episode, of which little is seen",
    "memory": "repeat a row of digits",
    "mountain_car": "drive a weak car out of a valley",
    "multiagent": "two agents that must do different things",
    "password": "find a lock's five digits",
    "pendulum": "swing up a pendulum with a weak motor",
    "pong": "table tennis against a scripted opponent",
    "reverse": "write a text backwards",
    "safe_point": "from goal to goal around hazards",
    "snake": "eight snakes on one board",
    "spaces": "observation and action in two parts each",
    "squared": "walk to a mark on the border of a picture",
    "stochastic": "keep a policy random where it should be",
    "tetris": "falling pieces on a board",
}
OURS = {"coding": "programs written for tasks and judged by tests (docs/coding.md)"}

FAMILIES = {
    "atari": ("multi_agent_ale_py",),
    "butterfly": ("pygame",),
    "classic": ("pygame", "chess", "rlcard", "pyspiel"),
    "sisl": ("Box2D", "pymunk", "scipy"),
}
"""family of PettingZoo -> modules that some of it needs"""
GAMES = {"pistonball": "pymunk"}
"""game of PettingZoo -> a module that it alone of its family needs"""


def line(name: str) -> str:
    """Return a short description with spaces and agents for an environment of ours, else where it comes from."""
    if is_name(name):
        native = native_spec(name, {})
        agents = f", {native.num_agents} agents" if native.num_agents > 1 else ""
        said = f"{NATIVE[name]}; " if name in NATIVE else ""
        return f"{said}sees {_short(native.observation_space)}, acts {_short(native.action_space)}{agents}"
    if name in OURS:
        return OURS[name]
    if re.match(r"(pettingzoo|mpe2)\.", name):
        return "several agents" + ("" if name.endswith(":parallel_env") else ", in turns")
    spec = gymnasium.registry.get(name.rpartition(":")[2])
    if spec is None or spec.entry_point is None:
        return ""
    place: Any = spec.entry_point
    where = place if isinstance(place, str) else f"{place.__module__}:{getattr(place, '__qualname__', '')}"
    return where + (f", up to {spec.max_episode_steps:,} steps" if spec.max_episode_steps else "")


def pettingzoo() -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return what PettingZoo and MPE2 have, by group, and for groups that lack something what to install. Reads files, imports none."""
    groups: dict[str, list[str]] = {}
    missing: dict[str, str] = {}
    for package in ("pettingzoo", "mpe2"):
        found = importlib.util.find_spec(package)
        for root in (found.submodule_search_locations or ()) if found else ():
            for file in sorted(Path(root).glob("*_v*.py" if package == "mpe2" else "*/*_v*.py")):
                family = file.parent.name
                needed = FAMILIES.get(family, ()) if package == "pettingzoo" else ()
                group = package if package == "mpe2" else f"pettingzoo {family}"
                if any(importlib.util.find_spec(module) is None for module in needed):
                    missing[group] = f"pettingzoo[{family}]"
                    continue
                game = file.stem.rpartition("_v")[0]
                if game in GAMES and importlib.util.find_spec(GAMES[game]) is None:
                    missing[f"{package} {game}"] = f"pettingzoo[{family}]"
                    continue
                made = "parallel_env" if "parallel_env" in file.read_text(errors="replace") else "env"
                module = ".".join((package, *file.relative_to(root).with_suffix("").parts))
                groups.setdefault(group, []).append(f"{module}:{made}")
    return groups, missing


def _short(space: Any) -> str:
    """Return a space as its kind and size: Box(4), Discrete(2), Dict(flat Box(5), image Box(5, 5))."""
    if isinstance(space, gymnasium.spaces.Dict):
        return f"Dict({', '.join(f'{name} {_short(inner)}' for name, inner in space.items())})"
    if isinstance(space, gymnasium.spaces.Tuple):
        return f"Tuple({', '.join(map(_short, space))})"
    if isinstance(space, gymnasium.spaces.Discrete):
        return f"Discrete({space.n})"
    return f"{type(space).__name__}({', '.join(map(str, space.shape or ()))})"
