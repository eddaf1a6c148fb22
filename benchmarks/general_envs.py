"""Environments in Python for ``benchmarks/general.py``: pictures, and choices that are not always allowed."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces as gs


class Dodge(gymnasium.Env[np.ndarray, np.int64]):
    """Stones fall, and one that hits ends the episode. A reward of 1 for every step survived, 200 at most.

    The picture has 40 x 40 pixels: the player is a block of 4 x 4 at the bottom, a stone is one of 4 x 4 that falls by 4 a step.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    side, cell, longest = 10, 4, 200

    def __init__(self) -> None:
        size = self.side * self.cell
        self.observation_space = gs.Box(0, 255, (size, size, 1), np.uint8)
        self.action_space = gs.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.stones = np.zeros((self.side, self.side), bool)
        self.player, self.time = self.side // 2, 0
        return self._picture(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.player = int(np.clip(self.player + int(action) - 1, 0, self.side - 1))
        self.stones = np.roll(self.stones, 1, axis=0)
        self.stones[0] = self.np_random.random(self.side) < 0.12
        self.time += 1
        hit = bool(self.stones[-1, self.player])
        return self._picture(), 0.0 if hit else 1.0, hit, not hit and self.time >= self.longest, {}

    def _picture(self) -> np.ndarray:
        cells = self.stones * np.uint8(128)
        cells[-1, self.player] = 255
        return np.kron(cells, np.ones((self.cell, self.cell), np.uint8))[:, :, None]


class Knapsack(gymnasium.Env[np.ndarray, np.int64]):
    """Twelve things with a weight and a worth; what is too heavy for the rest of the sack is masked. The reward of a thing is its
    worth, and the episode ends when nothing fits. Both numbers are drawn anew each episode, from 0.05 to 1; the sack holds 2."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    things, holds = 12, 2.0

    def __init__(self) -> None:
        self.observation_space = gs.Box(0.0, self.holds, (3 * self.things + 1,), np.float32)
        self.action_space = gs.Discrete(self.things)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.weight, self.worth = self.np_random.uniform(0.05, 1.0, (2, self.things))
        self.there, self.room = np.ones(self.things, bool), self.holds
        return self._seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not self.action_masks()[action]:  # for players who know no masks
            return self._seen(), 0.0, True, False, {}
        self.there[action] = False
        self.room -= float(self.weight[action])
        return self._seen(), float(self.worth[action]), not self.action_masks().any(), False, {}

    def action_masks(self) -> np.ndarray:
        """Return which things may be taken: those that are there and fit."""
        return self.there & (self.weight <= self.room)

    def _seen(self) -> np.ndarray:
        return np.concatenate([self.weight, self.worth, self.there, [max(self.room, 0.0)]]).astype(np.float32)
