"""Environments whose next observation depends on all actions so far: one wrong action and everything after it differs."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces as gs

VECTOR = gs.Box(-5, 5, (3,), np.float32)
SPACES: dict[str, tuple[gs.Space, gs.Space]] = {
    "vector": (VECTOR, gs.Discrete(4, start=2)),
    "dict": (
        gs.Dict(
            speed=gs.Box(-5, 5, (2,), np.float32),
            pick=gs.Discrete(3),
            pair=gs.Tuple([gs.MultiBinary(2), gs.Box(-1, 1, (), np.float64)]),
        ),
        gs.Discrete(4),
    ),
    "flat_dict": (gs.Dict(speed=VECTOR, pick=gs.Discrete(3)), gs.Discrete(4)),
    "continuous": (VECTOR, gs.Box(np.array([-2, 0], np.float32), np.array([2, 3], np.float32))),
    "unit": (VECTOR, gs.Box(-1, 1, (2,), np.float32)),
    "multi_discrete": (VECTOR, gs.MultiDiscrete([3, 2, 4], start=[0, 1, -2])),
    "structured": (VECTOR, gs.Dict(turn=gs.Discrete(3), gas=gs.Box(0, 1, (2,), np.float32), keys=gs.MultiBinary(3))),
    "masked": (VECTOR, gs.Discrete(5)),
    "masked_in_obs": (gs.Dict(action_mask=gs.MultiBinary(5), speed=VECTOR), gs.Discrete(5)),
    "image": (gs.Box(0, 255, (8, 8, 3), np.uint8), gs.Discrete(4)),
}


class Echo(gymnasium.Env):
    """``kind`` says which spaces it has."""

    def __init__(self, kind: str = "vector") -> None:
        self.kind = kind
        self.observation_space, self.action_space = SPACES[kind]
        if kind == "masked":
            self.action_masks = lambda: self.allowed

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count, self.length = 0, int(self.np_random.integers(4, 12))
        return self._look(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        salt = (
            int.from_bytes(np.concatenate([np.ravel(part).astype(np.float64) for part in parts(action)]).tobytes(), "little")
            % 2**31
        )
        over = self.count == self.length
        return self._look(salt), float(salt % 7), over and salt % 2 == 0, over and salt % 2 == 1, {}

    def _look(self, salt: int) -> Any:
        self.observation_space.seed(int(self.np_random.integers(2**31)) ^ salt)
        obs = self.observation_space.sample()
        self.allowed = np.asarray(self.np_random.integers(2, size=5), np.int8)
        self.allowed[salt % 5] = 1
        return {**obs, "action_mask": self.allowed} if self.kind == "masked_in_obs" else obs


def parts(action: Any) -> list[Any]:
    return [part for key in sorted(action) for part in parts(action[key])] if isinstance(action, dict) else [action]


class Team:
    """Three agents, of which two have shorter observations and fewer choices; they leave one by one."""

    metadata: ClassVar[dict[str, Any]] = {"name": "team"}
    possible_agents: ClassVar[list[str]] = ["big", "small", "late"]
    sizes: ClassVar[dict[str, tuple[int, int]]] = {"big": (4, 5), "small": (2, 3), "late": (3, 5)}

    def observation_space(self, agent: str) -> gs.Space:
        return gs.Box(-5, 5, (self.sizes[agent][0],), np.float32)

    def action_space(self, agent: str) -> gs.Space:
        return gs.Discrete(self.sizes[agent][1])

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.count = ["big", "small"], 0
        return self._look(), {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        assert sorted(actions) == sorted(self.agents)
        self.count += 1
        self.rng = np.random.default_rng([int(self.rng.integers(2**31)), *(int(actions[a]) for a in sorted(actions))])
        if self.count == 2:
            self.agents.append("late")
        over = {agent: self.count >= {"big": 9, "small": 5, "late": 7}[agent] for agent in self.agents}
        obs, rewards = self._look(), dict.fromkeys(self.agents, 1.0)
        cut = dict.fromkeys(self.agents, False)
        self.agents = [agent for agent in self.agents if not over[agent]]
        return obs, rewards, over, cut, {}

    def _look(self) -> dict[str, Any]:
        return {agent: self.rng.uniform(-5, 5, self.sizes[agent][0]).astype(np.float32) for agent in self.agents}

    def close(self) -> None:
        pass
