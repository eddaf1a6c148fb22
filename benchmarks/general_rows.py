"""Agents of a PettingZoo environment as environments of Stable-Baselines3: one policy for all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv


class AgentRows(VecEnv):
    """A parallel environment whose agents are alike, and whose episodes begin and end for all of them at once."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.names = list(env.possible_agents)
        super().__init__(len(self.names), env.observation_space(self.names[0]), env.action_space(self.names[0]))

    def reset(self) -> np.ndarray:
        observations, _ = self.env.reset(seed=self._seeds[0])
        self._reset_seeds()
        return self._rows(observations)

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = dict(zip(self.names, actions, strict=True))

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        observations, rewards, terminated, truncated, _ = self.env.step(self.actions)
        rows, infos = self._rows(observations), [{} for _ in self.names]
        ended = np.array([terminated[name] or truncated[name] for name in self.names])
        if ended.any():
            infos = [
                {"terminal_observation": row, "TimeLimit.truncated": truncated[name] and not terminated[name]}
                for name, row in zip(self.names, rows, strict=True)
            ]
            rows = self._rows(self.env.reset()[0])
        return rows, np.array([rewards[name] for name in self.names], np.float32), ended, infos

    def _rows(self, observations: dict[str, Any]) -> np.ndarray:
        return np.stack([observations[name] for name in self.names])

    def close(self) -> None:
        self.env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.env, attr_name, None)] * len(self._get_indices(indices))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        setattr(self.env, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        return [getattr(self.env, method_name)(*args, **kwargs)] * len(self._get_indices(indices))

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * len(self._get_indices(indices))
