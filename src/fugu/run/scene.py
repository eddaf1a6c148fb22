"""One environment watched step by step: the actions, what they brought, and what the environment looks like.

A ``Scene`` steps a vector env of one environment and keeps the count of the episode. With several agents the return is the sum over
all of them, and the episode is over when every agent that took part has ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fugu.data.tape import Tape
from fugu.emulation.build import is_built
from fugu.emulation.native import is_name
from fugu.errors import ConfigError, EnvError, FuguError
from fugu.vector.vecenv import VecEnv


@dataclass(frozen=True)
class Moment:
    """The state after a reset (``step`` 0, no action) or a step."""

    episode: int
    """number of the episode, from 1"""
    step: int
    """steps of the episode so far"""
    action: np.ndarray | None
    """rows of the agents; None at the start of an episode"""
    reward: float
    total: float
    """return so far"""
    over: bool
    """True if the episode has ended with this step"""


class Scene:
    """``tape``: what records the episodes, if anything does."""

    def __init__(self, vec: VecEnv, seed: int, tape: Tape | None = None) -> None:
        self.vec, self._tape = vec, tape
        vec.reset(seed)
        if tape is not None:
            tape.see(vec.rows.columns)
        self.moment: Moment
        self._start(1)

    def step(self, action: np.ndarray) -> None:
        """Act on the current rows; after an ending this starts the next episode, whatever the action."""
        if self.moment.over:
            self._step(action)  # the row after an ending: the environment starts anew
            self._start(self.moment.episode + 1)
            return
        acted = np.array(action)  # the caller may write the next action into the same array
        reward, terminated, truncated = self._step(action)
        rows = self.vec.rows
        self._there |= rows.mask | rows.first
        self._ended |= terminated | truncated
        gained, before = float(reward.sum()), self.moment
        over = bool(self._ended[self._there].all())
        self.moment = Moment(before.episode, before.step + 1, acted, gained, before.total + gained, over)

    def _step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        _, reward, terminated, truncated, infos = self.vec.step(action)
        if self._tape is not None:
            rows = self.vec.rows
            self._tape.took(action, rows.columns, infos)
            self._tape.see(rows.columns)
            if terminated.any() or truncated.any():
                self._tape.empty()
        return reward, terminated, truncated

    def _start(self, episode: int) -> None:
        rows = self.vec.rows
        self._there = rows.mask | rows.first
        self._ended = np.zeros(self.vec.num_agents, bool)
        self.moment = Moment(episode, 0, None, 0.0, 0.0, False)

    def text(self) -> str | None:
        """Return the text with which an environment shows itself; None if it does not show itself as text."""
        if "ansi" not in self.vec.spec.metadata.get("render_modes", ()):
            return None
        try:
            frame = self.vec.render([0])[0]
        except EnvError:  # made for pictures
            return None
        return frame if isinstance(frame, str) else None

    def picture(self) -> np.ndarray:
        """Return a picture, ``[height, width, 3]`` uint8. FuguError in one line if the environment cannot be drawn."""
        name = self.vec.spec.name
        try:
            frame = self.vec.render([0])[0]
        except EnvError as error:
            if error.caused_by(NotImplementedError, AttributeError):
                raise FuguError(
                    f"{name} cannot be drawn: it has no render(); give it one that returns uint8 [height, width, 3]"
                ) from error
            raise FuguError(f"{name} cannot be drawn: {error.headline}") from error
        if frame is None:
            raise FuguError(
                f"{name} cannot be drawn: its render() returned None; let its constructor take render_mode, "
                "and return a picture if that is 'rgb_array'"
            )
        if isinstance(frame, str):
            raise FuguError(f"{name} shows text, not pictures; fugu play does")
        picture = np.asarray(frame)
        if picture.ndim == 2:
            picture = np.repeat(picture[..., None], 3, axis=2)
        if picture.ndim != 3 or picture.shape[2] not in (3, 4) or picture.dtype != np.uint8 or 0 in picture.shape:
            raise FuguError(
                f"{name} cannot be drawn: render() must return uint8 [height, width, 3], "
                f"got {type(frame).__name__} {picture.dtype} {list(picture.shape)}"
            )
        return picture[..., :3]


def frame_rate(vec: VecEnv) -> float:
    """Return the steps per second at which the environment looks right: its own figure, or 30."""
    return float(vec.spec.metadata.get("render_fps") or 30)


def drawn(env: str, env_kwargs: Mapping[str, Any], make: Callable[[dict[str, Any]], VecEnv]) -> VecEnv:
    """Return ``make(env_kwargs)`` made so that the environment can be drawn, if it can be.

    Native environments always can. Python ones learn from their constructor's ``render_mode`` that they will be; one that does not
    take it may still have a ``render()``.
    """
    plain = dict(env_kwargs)
    if is_name(env) or is_built(env):
        return make(plain)
    if not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo would look for a window otherwise
    try:
        return make({**plain, "render_mode": "rgb_array"})
    except (EnvError, ConfigError) as refused:
        try:
            return make(plain)
        except (EnvError, ConfigError):
            raise refused from None
