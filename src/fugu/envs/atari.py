"""Atari games as agents are trained on them: grey frames of 84 x 84 pixels, each action held for four, four frames stacked."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from fugu.envs.shrink import shrinker
from fugu.errors import ConfigError, MissingExtra, did_you_mean

SIZE = 84
NOOPS = 30
"""frames without an action at the beginning of an episode, at most"""


def make(game: str, *, stack: int = 4, frameskip: int = 4, **kwargs: Any) -> gymnasium.Env:
    """Make a game, given by a Gymnasium id such as ``ALE/Pong-v5``; actions repeat by chance one time in four, as that id says."""
    try:
        import ale_py
    except ImportError:
        raise MissingExtra(game, "atari") from None
    gymnasium.register_envs(ale_py)
    if game not in gymnasium.registry:
        games = [name for name in gymnasium.registry if name.startswith("ALE/")]
        raise ConfigError(f"no Atari game {game!r} is registered.{did_you_mean(game, games)}")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # or every worker prints a banner into the dashboard
    env = gymnasium.make(game, frameskip=1, disable_env_checker=True, **{"obs_type": "grayscale", **kwargs})
    return Stacked(env, stack, frameskip)


class Stacked(gymnasium.Wrapper):
    """A game as Gymnasium's ``AtariPreprocessing`` and ``FrameStackObservation`` make it, to the byte. The game is asked for the two
    screens of a step that are seen, not for all of them and then for those two again."""

    def __init__(self, env: gymnasium.Env, stack: int, frameskip: int) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0, 255, (stack, SIZE, SIZE), np.uint8)
        self._frameskip = frameskip
        self._frames = np.zeros((stack, SIZE, SIZE), np.uint8)
        self._ale = env.unwrapped.ale  # type: ignore[attr-defined]
        height, width = self._ale.getScreenDims()
        self._screens = np.zeros((2, height, width), np.uint8)
        """the last one, and the one before it, of the last step that had both"""
        self._shrink = shrinker((height, width), (SIZE, SIZE))
        self._buttons = env.unwrapped._action_set  # type: ignore[attr-defined]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        _, info = self.env.reset(seed=seed, options=options)
        for _ in range(self.env.unwrapped.np_random.integers(1, NOOPS + 1)):
            _, _, terminated, truncated, step_info = self.env.step(0)
            info.update(step_info)
            if terminated or truncated:
                _, info = self.env.reset(seed=seed, options=options)
        self._ale.getScreenGrayscale(self._screens[0])
        self._screens[1] = 0
        self._frames[:] = self._seen()
        return self._frames.copy(), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        ale, button, reward = self._ale, self._buttons[action], 0.0
        for left in reversed(range(self._frameskip)):
            reward += ale.act(button)
            terminated, truncated = ale.game_over(with_truncation=False), ale.game_truncated()
            if terminated or truncated:
                break
            if left < 2:
                ale.getScreenGrayscale(self._screens[left])
        self._frames[:-1] = self._frames[1:]
        self._frames[-1] = self._seen()
        info = {
            "lives": ale.lives(),
            "episode_frame_number": ale.getEpisodeFrameNumber(),
            "frame_number": ale.getFrameNumber(),
        }
        return self._frames.copy(), reward, terminated, truncated, info

    def _seen(self) -> np.ndarray:
        seen = np.empty((SIZE, SIZE), np.uint8)
        self._shrink(self._screens[0], self._screens[1], seen)
        return seen
