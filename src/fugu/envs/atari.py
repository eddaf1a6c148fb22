"""Atari games as agents are trained on them: grey frames of 84 x 84 pixels, each action held for four, four frames stacked."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import AtariPreprocessing

from fugu.errors import MissingExtra

SIZE = 84
NOOPS = 30
"""frames without an action at the beginning of an episode, at most"""


def make(game: str, *, stack: int = 4, frameskip: int = 4, **kwargs: Any) -> gymnasium.Env:
    """``game`` is a Gymnasium id such as ``ALE/Pong-v5``; actions repeat by chance one time in four, as that id says."""
    try:
        import ale_py
        import cv2
    except ImportError:
        raise MissingExtra(game, "atari") from None
    cv2.setNumThreads(1)  # a frame is small; threads of its own in every worker only get in each other's way
    gymnasium.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # or every worker prints a banner into the dashboard
    env = gymnasium.make(game, frameskip=1, disable_env_checker=True, **{"obs_type": "grayscale", **kwargs})
    return Stacked(env, stack, frameskip)


class Stacked(AtariPreprocessing):
    """What Gymnasium's ``AtariPreprocessing`` and ``FrameStackObservation`` make of a game, to the byte. The game is asked for the two
    screens of a step that are seen, not for all of them and then for those two again."""

    def __init__(self, env: gymnasium.Env, stack: int, frameskip: int) -> None:
        super().__init__(env, noop_max=NOOPS, frame_skip=frameskip, screen_size=SIZE)
        self.observation_space = batch_space(self.observation_space, stack)
        self._frames = np.zeros((stack, SIZE, SIZE), np.uint8)
        self._actions = env.unwrapped._action_set  # type: ignore[attr-defined]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        frame, info = super().reset(seed=seed, options=options)
        self._frames[:] = frame
        return self._frames.copy(), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        ale, button, reward = self.ale, self._actions[action], 0.0
        for left in reversed(range(self.frame_skip)):
            reward += ale.act(button)
            terminated, truncated = ale.game_over(with_truncation=False), ale.game_truncated()
            if terminated or truncated:
                break
            if left < 2:
                ale.getScreenGrayscale(self.obs_buffer[left])
        self._frames[:-1] = self._frames[1:]
        self._frames[-1] = self._get_obs()
        info = {
            "lives": ale.lives(),
            "episode_frame_number": ale.getEpisodeFrameNumber(),
            "frame_number": ale.getFrameNumber(),
        }
        return self._frames.copy(), reward, terminated, truncated, info
