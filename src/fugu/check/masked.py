"""Let a foreign checker draw allowed actions alone.

Comes in: a Gymnasium env that forbids some actions in some states. Goes out: the same env, whose action space samples by the mask of
the last call. Gymnasium's checker knows no masks: it seeds the action space, samples, resets the env with that seed and steps; so
seeding the space looks at the mask of that reset.
"""

from __future__ import annotations

import contextlib
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np

from fugu.check.player import mask_in
from fugu.emulation.actions import Actions
from fugu.emulation.env import flat_mask


def may_forbid(env: gymnasium.Env) -> bool:
    """Return True if ``env`` says what is allowed: in its observation, in an info or by a method."""
    if callable(getattr(env, "action_masks", None)):
        return True
    try:
        return mask_in(*env.reset(), env.action_space) is not None
    except Exception:  # the checker will say what is wrong with it
        return False


class MaskHeeding(gymnasium.Wrapper):
    """``env`` with an action space that samples what the last mask allows."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._mask: np.ndarray | None = None
        self.reset = lambda *args, **kwargs: self._reset(*args, **kwargs)  # type: ignore[method-assign]
        self.reset.__wrapped__ = env.reset  # type: ignore[attr-defined]  # whose signature the checker looks at
        self._actions = Actions(deepcopy(env.action_space), 0)
        self.action_space = deepcopy(env.action_space)
        self.action_space.sample = lambda *args, **kwargs: self._actions.next(self._mask)  # type: ignore[method-assign]
        self.action_space.seed = self._seed  # type: ignore[method-assign]

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        if isinstance(result, tuple) and len(result) > 1:
            self._look(result[0], result[-1])
        return result

    def _reset(self, *args: Any, **kwargs: Any) -> Any:
        result = self.env.reset(*args, **kwargs)
        if isinstance(result, tuple) and len(result) == 2:
            self._look(*result)
        return result

    def _seed(self, seed: Any = None) -> list[int]:
        with contextlib.suppress(Exception):  # an env without seeds: the checker says so
            self._reset(seed=seed)
        self._actions = Actions(self._actions.space, 0 if seed is None else seed)
        return [0 if seed is None else seed]

    def _look(self, obs: Any, info: Any) -> None:
        method = getattr(self.env, "action_masks", None)
        mask = mask_in(obs, info, self.env.action_space)
        self._mask = flat_mask(method(), self.env.action_space) if mask is None and callable(method) else mask
