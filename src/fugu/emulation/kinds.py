"""Agents of different kinds in one team: a space that has room for all of them, their values in it, and what the kinds are called.

Shorter vectors are filled up with zeros; the choices of a smaller Discrete come first, and the others are masked (``team.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces as gs

from fugu.errors import SpaceError

MOST = 16
"""agents, or kinds of agents, that are told apart in metrics, at most"""


def labels(names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return what returns and lengths are told apart by, with the places of its agents among ``names``: each agent, if there are at
    most ``MOST``, and each kind of several agents, if there are at least two kinds and at most ``MOST``.

    A kind is the name without the number at its end, as PettingZoo has it: ``adversary_0`` and ``adversary_1`` are of one.
    """
    if len(names) < 2 or len(set(names)) < len(names):
        return {}
    kinds: dict[str, tuple[int, ...]] = {}
    for place, name in enumerate(names):
        kind = name.rstrip("0123456789").rstrip("_- ") or name
        kinds[kind] = (*kinds.get(kind, ()), place)
    agents: dict[str, tuple[int, ...]] = {}
    if len(names) <= MOST:
        agents = {name: (place,) for place, name in enumerate(names)}
    if not 1 < len(kinds) <= MOST:
        return agents
    several = {kind: own for kind, own in kinds.items() if len(own) > 1 or not agents}
    return {**several, **agents}  # an agent that is called as a kind keeps its name


def common_observation(spaces: Sequence[gs.Space]) -> gs.Space | None:
    """Return the smallest space with room for values of all ``spaces``; None if they cannot share one."""
    first = spaces[0]
    if all(space == first for space in spaces):
        return first
    if all(isinstance(space, gs.Dict) for space in spaces):
        return _common_dict(spaces)
    if all(isinstance(space, gs.Box) and len(space.shape) == 1 and space.dtype == first.dtype for space in spaces):
        longest = max(space.shape[0] for space in spaces)  # type: ignore[index]
        low = np.min([_filled(space.low, longest) for space in spaces], 0)  # type: ignore[attr-defined]
        high = np.max([_filled(space.high, longest) for space in spaces], 0)  # type: ignore[attr-defined]
        return gs.Box(low, high, dtype=first.dtype.type)  # type: ignore[union-attr]
    if all(isinstance(space, gs.MultiBinary) and len(space.shape) == 1 for space in spaces):
        return gs.MultiBinary(max(space.shape[0] for space in spaces))  # type: ignore[index]
    return common_action(spaces)


def common_action(spaces: Sequence[gs.Space]) -> gs.Space | None:
    """Return such a space for actions: different ones can share one only if they are choices, whose surplus can be masked."""
    first = spaces[0]
    if all(space == first for space in spaces):
        return first
    if all(isinstance(space, gs.Discrete) and space.start == 0 and space.dtype == first.dtype for space in spaces):
        return max(spaces, key=lambda space: int(space.n))  # type: ignore[attr-defined]
    return None


def widened(value: Any, space: gs.Space, common: gs.Space) -> Any:
    """Turn ``value`` of ``space`` into one of ``common``."""
    if isinstance(common, gs.Dict) and isinstance(space, gs.Dict):
        if not isinstance(value, dict):
            return value  # the packer says what is wrong with it
        known = {key: widened(value[key], part, common[key]) for key, part in space.spaces.items() if key in value}
        return {**value, **known}
    if space.shape == common.shape:
        return value
    if np.shape(value) != space.shape:
        raise SpaceError(f"expected {space.shape}, as the agent's space says, got {np.shape(value)}")
    array = np.asarray(value)
    return _filled(array, common.shape[0])  # type: ignore[index]


def _common_dict(spaces: Sequence[gs.Space]) -> gs.Space | None:
    keys = [list(space.spaces) for space in spaces]  # type: ignore[attr-defined]
    if any(names != keys[0] for names in keys):
        return None
    parts = {key: common_observation([space[key] for space in spaces]) for key in keys[0]}  # type: ignore[index]
    return None if any(part is None for part in parts.values()) else gs.Dict(parts)  # type: ignore[arg-type]


def _filled(values: np.ndarray, length: int) -> np.ndarray:
    return np.concatenate([values, np.zeros(length - len(values), values.dtype)])
