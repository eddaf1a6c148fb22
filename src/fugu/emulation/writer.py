"""Write what one agent's environment returned into its row, checked. The pure-Python twin of ``RowWriter`` in native/row_writer.h.

``RowWriter.step(result)`` takes the tuple of ``env.step`` and answers with a set of bits, ``start(obs)`` takes a first
observation. The native one answers -1 (or False) to whatever it does not recognise, and then this one decides.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fugu.emulation.env import Rows
from fugu.errors import SpaceError
from fugu.native import native
from fugu.spaces.pack import Packer

ENDED, INFO = 1, 2


class RowWriter:
    """Writes row ``agent`` of ``out``. A reward must be finite; or NaN, which says that there is none, if ``unscored`` allows it."""

    def __init__(self, packer: Packer, out: Rows, agent: int = 0, *, unscored: bool = False) -> None:
        self.packer, self.out, self.agent, self.unscored = packer, out, agent, unscored
        self.row = out.obs[agent : agent + 1].reshape(packer.layout.row_shape)

    def step(self, result: Any) -> int:
        obs, reward, terminated, truncated, info = five_values(result)
        if not isinstance(info, dict):
            raise SpaceError(f"expected a dict, got {type(info).__name__}", where="info")
        unscored = self.unscored and isinstance(reward, float | np.floating) and math.isnan(reward)
        gain, ended = math.nan if unscored else number(reward), (flag(terminated, "terminated"), flag(truncated, "truncated"))
        self._pack(obs)
        out, i = self.out, self.agent
        out.reward[i] = gain
        out.terminated[i], out.truncated[i] = ended
        out.first[i] = False
        out.mask[i] = not any(ended)
        return (ENDED if any(ended) else 0) | (INFO if info else 0)

    def start(self, obs: Any) -> bool:
        self._pack(obs)
        out, i = self.out, self.agent
        out.reward[i] = 0
        out.terminated[i] = out.truncated[i] = False
        out.first[i] = out.mask[i] = True
        return True

    def _pack(self, obs: Any) -> None:
        try:
            self.packer.pack(obs, self.row)
        except SpaceError as error:
            if error.where != "value":  # a part of it, by its name
                raise
            raise SpaceError(error.problem, where="observation", fix=error.fix) from None


def row_writer(packer: Packer, out: Rows, agent: int = 0) -> Any:
    """Return the fastest writer there is for this layout."""
    slow = RowWriter(packer, out, agent)
    if packer.fast is None:
        return slow
    columns = (out.reward, out.terminated, out.truncated, out.first, out.mask)
    return native.RowWriter(packer.fast, slow.row, *(column[agent : agent + 1] for column in columns))


def five_values(result: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Return what ``step`` returned, with the old four-value form (obs, reward, done, info) turned into five."""
    if not isinstance(result, tuple) or len(result) not in (4, 5):
        what = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
        raise SpaceError(f"step() must return (obs, reward, terminated, truncated, info), got {what}")
    if len(result) == 5:
        return result
    obs, reward, done, info = result
    if isinstance(info, bool | np.bool_):
        raise SpaceError("step() must return (obs, reward, terminated, truncated, info), got four values: info is missing")
    done = flag(done, "done")
    limit = done and isinstance(info, dict) and bool(info.get("TimeLimit.truncated", False))
    return obs, reward, done and not limit, limit, info


def number(reward: Any) -> float:
    if isinstance(reward, np.ndarray) and reward.ndim > 0:
        got = f"an array {reward.dtype}{list(reward.shape)}"
        raise SpaceError(f"expected a number, got {got}", where="reward", fix="return float(reward)")
    try:
        value = math.nan if isinstance(reward, str | bytes) else float(reward)
    except (TypeError, ValueError, OverflowError):
        raise SpaceError(f"expected a number, got {type(reward).__name__} {reward!r:.60}", where="reward") from None
    if not math.isfinite(np.float32(value)):
        raise SpaceError(f"{reward!r} is not finite in float32; a reward must be a finite number", where="reward")
    return value


def flag(value: Any, name: str) -> bool:
    if isinstance(value, bool | np.bool_ | int | np.integer) and value in (0, 1):
        return bool(value)
    if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype == bool:
        return bool(value)
    raise SpaceError(f"expected a bool, got {type(value).__name__} {value!r:.60}", where=name)
