"""MuJoCo tasks with a limit on speed: who is too fast pays."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

import fugu
from fugu.envs.velocity import IN_THE_PLANE, THRESHOLDS, VelocityCost, make
from fugu.errors import ConfigError
from fugu.presets import preset


class Rolling(gymnasium.Env[Any, Any]):
    """Moves as fast as it is told, forwards and sideways."""

    observation_space, action_space = gymnasium.spaces.Box(-9, 9, (1,)), gymnasium.spaces.Box(-9, 9, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        info = {"x_velocity": float(action[0]), "y_velocity": float(action[1])}
        return np.zeros(1, np.float32), 0.0, False, False, info


@pytest.mark.parametrize(
    "speed, ahead, plane", [((3, 0), 0, 0), ((3.5, 0), 1, 1), ((-9, 0), 0, 1), ((0, 4), 0, 1), ((2.5, 2.5), 0, 1)]
)
def test_a_step_costs_one_above_the_threshold(speed, ahead, plane):
    for env, cost in ((VelocityCost(Rolling(), 3.2), ahead), (VelocityCost(Rolling(), 3.2, plane=True), plane)):
        env.reset()
        assert env.step(np.array(speed))[-1]["cost"] == cost


def test_unknown_tasks_are_named():
    with pytest.raises(ConfigError, match="HalfCheetah-v5"):
        make("HalfCheeta-v5")
    assert set(IN_THE_PLANE) < set(THRESHOLDS)


@pytest.mark.parametrize("task", sorted(THRESHOLDS))
def test_every_task_has_a_preset_with_and_without_a_limit(task):
    name = f"fugu/{task.replace('-', 'Velocity-')}"
    assert preset(name, algorithm="safe_ppo").safe.limit == (25.0,) and preset(name).env == name
    assert preset(name).ppo == preset(task).ppo == preset(name, algorithm="safe_ppo").ppo


def test_a_task_is_made_by_its_id():
    pytest.importorskip("mujoco")
    with fugu.vector.make("fugu/SwimmerVelocity-v5", 2, backend="serial") as vec:
        vec.reset(0)
        costs = []
        for _ in range(60):
            vec.step(np.ones((2, 2), np.float32))
            costs.append(vec.rows.cost[:, 0].copy())
        assert vec.spec.costs == ("cost",) and set(np.unique(costs)) == {0.0, 1.0}
