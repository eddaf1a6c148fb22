"""Atari games as agents are trained on them: grey frames of 84 x 84 pixels, each action held for four, four frames stacked."""

from __future__ import annotations

from typing import Any

import gymnasium

from fugu.errors import MissingExtra


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
    # the wrapper below reads the grey screen itself; what the game returns each frame is thrown away, so let it be the cheaper one
    env = gymnasium.make(game, frameskip=1, **{"obs_type": "grayscale", **kwargs})
    env = gymnasium.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=frameskip, screen_size=84)
    return gymnasium.wrappers.FrameStackObservation(env, stack)
