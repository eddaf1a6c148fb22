"""A Gymnasium environment (or one with the same methods, also in the old four-value form) as a ``fugu.Env`` of one agent.

Comes in: ``env.step(action)`` results. Goes out: rows by the convention of ``env.py``. Everything the env returns is checked
against its spaces on every step; the check is native and costs a fraction of a microsecond for small observations.
"""

from __future__ import annotations

import inspect
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces as gs

from fugu.emulation.env import Autoreset, Infos, Rows, offers_mask
from fugu.emulation.infos import Said
from fugu.emulation.writer import ENDED, RowWriter, row_writer
from fugu.spaces import Layout, Packer, convert


class GymnasiumEnv:
    """``env`` as a ``fugu.Env``. ``autoreset="same_step"`` resets at once and puts the last observation into the infos, for
    libraries that expect it; fugu itself always uses ``next_step``."""

    num_agents = 1

    def __init__(
        self,
        env: Any,
        *,
        autoreset: Autoreset = "next_step",
        check_finite: bool = True,
        cast: bool = False,
    ) -> None:
        self.env = env
        self.observation_space = convert(env.observation_space)
        self.action_space = convert(env.action_space)
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self._unscored = bool(self.metadata.get("unscored_rewards"))
        """whether a reward of NaN means that an episode could not be scored, and is no mistake"""
        self.render_mode = getattr(env, "render_mode", None)
        base = getattr(env, "unwrapped", env)
        spec = getattr(base, "spec", None)  # a wrapper's spec is a deep copy, made anew on every look
        self.name = spec.id if spec is not None else type(base).__name__
        self._packer = Packer(Layout(self.observation_space), finite=check_finite, cast=cast)
        self.autoreset = autoreset
        self._same_step = autoreset == "same_step"
        self._seeds_in_reset = _takes(env.reset, "seed")
        self._options_in_reset = _takes(env.reset, "options")
        self._required_in_reset = required(env.reset)
        self._mask_of = _action_mask_source(env, self.observation_space)
        self._mask_in_info = False
        self._said = Said(env, self.name)
        self.costs, self.columns = self._said.costs, self._said.columns
        self._says = bool(self._said)
        self._plain = self._mask_of is None and not self._says
        """a step without info needs nothing beyond what the writer wrote"""
        self._discrete = isinstance(self.action_space, gs.Discrete)
        self._decode = _decoder(self.action_space)
        self._step = env.step
        self._ended = True

    def reset(self, seed: int | None, out: Rows, options: dict[str, Any] | None = None) -> Infos | None:
        obs, info = self._reset_env(seed, options)
        if not (out.writer or self._bind(out)).start(obs):
            RowWriter(self._packer, out).start(obs)
        self._ended = False
        if self._says:
            self._said.clear(out, 0)
        return self._finish(obs, info, out)

    def step(self, action: np.ndarray, out: Rows) -> Infos | None:
        if self._ended:
            return self.reset(None, out)
        result = self._step(action[0] if self._discrete else self._decode(action))
        code = (out.writer or self._bind(out)).step(result)
        if code == 0 and self._plain:
            return None
        if code < 0:  # the native writer does not know it: the Python one does, or says what is wrong
            code = RowWriter(self._packer, out, unscored=self._unscored).step(result)
        info = result[-1]
        if self._says:
            self._said.write(info, out, 0)
        if code & ENDED:
            if self._same_step:
                return self._restart(result[0], info, out)
            self._ended = True
        return self._finish(result[0], info, out)

    def close(self) -> None:
        self.env.close()

    def _bind(self, out: Rows) -> Any:
        out.writer = row_writer(self._packer, out)
        return out.writer

    def _reset_env(self, seed: int | None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        kwargs = dict(self._required_in_reset)
        if seed is not None and self._seeds_in_reset:
            kwargs["seed"] = seed
        elif seed is not None and hasattr(self.env, "seed"):
            self.env.seed(seed)
        if options is not None and self._options_in_reset:
            kwargs["options"] = options
        result = self.env.reset(**kwargs)
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
            return result
        return result, {}  # the old form returns the observation alone

    def _restart(self, final_obs: Any, info: dict[str, Any], out: Rows) -> Infos:
        """Reset within the same step: the reset observation replaces the final one, which moves into the infos."""
        ending = (out.terminated[0], out.truncated[0], out.reward[0])
        final_obs = deepcopy(final_obs)  # an env that writes into one array would change it in reset()
        obs, reset_info = self._reset_env(None)
        if not out.writer.start(obs):
            RowWriter(self._packer, out).start(obs)
        out.terminated[0], out.truncated[0], out.reward[0] = ending
        self._finish(obs, reset_info, out)
        return {0: {**reset_info, "final_obs": final_obs, "final_info": info}}

    def _finish(self, obs: Any, info: dict[str, Any], out: Rows) -> Infos | None:
        """Write the action mask if the env offers one; infos are kept only when there is something in them."""
        if out.action_mask is not None:
            if self._mask_of is not None:
                out.set_action_mask(0, self._mask_of(obs), self.action_space)
            elif info and "action_mask" in info:
                self._mask_in_info, self._plain = True, False
                out.set_action_mask(0, info["action_mask"], self.action_space)
            elif self._mask_in_info:
                out.set_action_mask(0, None)
        return {0: info} if info else None


def _takes(method: Any, name: str) -> bool:
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):
        return True
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def required(reset: Any) -> dict[str, Any]:
    """Return ``seed`` and ``options`` as None where ``reset`` has no default for them: Gymnasium's own calls name both."""
    try:
        parameters = inspect.signature(reset).parameters
    except (TypeError, ValueError):
        return {}
    return {
        name: None for name in ("seed", "options") if name in parameters and parameters[name].default is inspect.Parameter.empty
    }


def _action_mask_source(env: Any, space: gs.Space) -> Any:
    """Return a function that reads the env's action mask after a step, from the observation or a method; None without either."""
    if offers_mask(space, convert(env.action_space)):
        return lambda obs: obs["action_mask"]
    masks = getattr(getattr(env, "unwrapped", env), "action_masks", None)
    return (lambda obs: masks()) if callable(masks) else None


def _decoder(space: gs.Space) -> Any:
    """Return a function: ``action`` rows ``[1, *row_shape]`` -> the value the env expects. Arrays are copies: envs keep them."""
    if isinstance(space, gs.Box | gs.MultiDiscrete | gs.MultiBinary):
        return lambda action: action[0].copy()
    packer = Packer(Layout(space), finite=False)
    return lambda action: packer.unpack(action[0])
