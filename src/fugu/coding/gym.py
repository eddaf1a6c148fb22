"""The coding environment as Gymnasium's own: ``gymnasium.make("fugu.envs:fugu/Coding-v0", level=2)``."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from fugu.coding.env import Coding
from fugu.emulation.env import Rows, spec_of
from fugu.errors import SpaceError
from fugu.spaces import Layout

ID = "fugu/Coding-v0"


class CodingGymnasium(gymnasium.Env[Any, Any]):
    """One environment; ``settings`` are the fields of ``CodingConfig``. What it returns is the caller's to keep."""

    metadata = {**Coding.metadata, "render_modes": []}  # noqa: RUF012 - as in Gymnasium

    def __init__(self, **settings: Any) -> None:
        self._env = Coding(**settings)
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space
        self._layout = Layout(self.observation_space)
        self._rows = Rows.zeros(spec_of(self._env))

    @property
    def tokenizer(self) -> Any:
        """Return the tokenizer: from texts to tokens and back."""
        return self._env.tokenizer

    def examples(self, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return prompts and reference solutions, as ``Coding.examples`` gives them."""
        return self._env.examples(count, seed)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._env.reset(seed, self._rows, options)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise SpaceError(f"action {action!r:.60} is outside {self.action_space}")
        infos = self._env.step(np.asarray(action)[None], self._rows) or {}
        rows = self._rows
        return self._observation(), float(rows.reward[0]), bool(rows.terminated[0]), bool(rows.truncated[0]), infos.get(0, {})

    def close(self) -> None:
        self._env.close()

    def _observation(self) -> dict[str, np.ndarray]:
        views = self._layout.views(self._rows.obs)
        return {name: np.array(views[name][0]) for name in ("length", "tokens")}


def register() -> None:
    """Register it with Gymnasium, if it is not there."""
    if ID not in gymnasium.registry:
        gymnasium.register(ID, entry_point="fugu.coding.gym:CodingGymnasium")
