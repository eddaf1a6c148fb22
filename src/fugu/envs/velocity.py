"""Gymnasium's MuJoCo tasks with a limit on speed: a step costs 1 where the body is faster than its threshold.

The thresholds are those of the Safety-Gymnasium velocity tasks (v1): half of what PPO reaches without a limit. Bodies are Gymnasium's
v5, so compare trends with results for those, not digits. Ids are ``fugu/HalfCheetahVelocity-v5`` and so on.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium

from fugu.errors import ConfigError, did_you_mean

THRESHOLDS = {
    "Ant-v5": 2.6222,
    "HalfCheetah-v5": 3.2096,
    "Hopper-v5": 0.7402,
    "Humanoid-v5": 1.4149,
    "Swimmer-v5": 0.2282,
    "Walker2d-v5": 2.3415,
}
"""task -> metres per second"""
IN_THE_PLANE = ("Ant-v5", "Humanoid-v5")
"""tasks whose speed is that in any direction; the others' is that forwards"""


class VelocityCost(gymnasium.Wrapper[Any, Any, Any, Any]):
    """``info["cost"]`` is 1 where the body of ``env`` is faster than ``threshold``, else 0."""

    costs = ("cost",)

    def __init__(self, env: gymnasium.Env[Any, Any], threshold: float, *, plane: bool = False) -> None:
        super().__init__(env)
        self.threshold, self.plane = threshold, plane

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        speed = math.hypot(info["x_velocity"], info["y_velocity"]) if self.plane else info["x_velocity"]
        return obs, reward, terminated, truncated, {**info, "cost": float(speed > self.threshold)}


def make(task: str, threshold: float | None = None, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Make ``task``, one of ``THRESHOLDS``; ``kwargs`` go to it."""
    if task not in THRESHOLDS:
        raise ConfigError(f"no speed is known for {task!r}; there are {', '.join(THRESHOLDS)}.{did_you_mean(task, THRESHOLDS)}")
    env = gymnasium.make(task, disable_env_checker=True, **kwargs)
    return VelocityCost(env, THRESHOLDS[task] if threshold is None else threshold, plane=task in IN_THE_PLANE)


def register() -> None:
    """Enter the tasks into Gymnasium's registry; making one needs the package mujoco."""
    for task in THRESHOLDS:
        name, version = task.split("-")
        if (ours := f"fugu/{name}Velocity-{version}") not in gymnasium.registry:
            gymnasium.register(ours, entry_point="fugu.envs.velocity:make", kwargs={"task": task})
