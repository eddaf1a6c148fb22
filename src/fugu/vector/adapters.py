"""Adapt a vector env to the interfaces of other libraries: ``as_gymnasium`` and ``as_sb3``.

In: whatever ``vector.make`` takes, or a ``VecEnv``. Out: a real ``gymnasium.vector.VectorEnv`` or a real Stable-Baselines3
``VecEnv``; code written for those runs on it unchanged. Both show one agent per environment. This file opens the vector env
and turns rows into the structure both libraries use; the two faces are in ``adapters_gymnasium`` and ``adapters_sb3``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode

from fugu.emulation.gymnasium import Autoreset
from fugu.errors import ConfigError, EnvError, MissingExtra
from fugu.spaces import Layout
from fugu.spaces.layout import Node
from fugu.spaces.pack import unpack_node
from fugu.vector.make import make
from fugu.vector.vecenv import VecEnv

if TYPE_CHECKING:
    from fugu.vector.adapters_gymnasium import GymnasiumVectorFace
    from fugu.vector.adapters_sb3 import SB3Face

MODES: dict[Autoreset, AutoresetMode] = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
}
ARRAYS = gs.Box | gs.Discrete | gs.MultiDiscrete | gs.MultiBinary
"""the spaces whose values are batched as one array"""


def as_gymnasium(
    env: Any,
    num_envs: int | None = None,
    *,
    autoreset_mode: AutoresetMode | str | None = None,
    copy: bool = True,
    episode_stats: bool = False,
    **make_settings: Any,
) -> GymnasiumVectorFace:
    """Return ``env`` (anything ``make`` takes, or a ``VecEnv``) as a ``gymnasium.vector.VectorEnv``.

    ``autoreset_mode`` is next-step unless said otherwise (of a ``VecEnv``: the one it was made with). With ``copy=False``
    observations are views that the second step after them overwrites. ``episode_stats`` adds ``infos["episode"]`` to the step
    that ends an episode; leave it off where ``RecordEpisodeStatistics`` is wrapped around. ``make_settings`` go to ``make``,
    with ``cast=True`` unless said otherwise, because Gymnasium casts as well. A ``seed`` among them, or that of a ``VecEnv``,
    is used by the first reset that names none; without it such a reset is random, as in Gymnasium.
    """
    from fugu.vector.adapters_gymnasium import GymnasiumVectorFace

    asked = _autoreset(autoreset_mode)
    vec = _open("as_gymnasium()", env, num_envs, asked, make_settings)
    vec.episode_stats = episode_stats
    return GymnasiumVectorFace(vec, copy=copy, seeded=vec is env or _names_seed(make_settings))


def as_sb3(env: Any, num_envs: int | None = None, **make_settings: Any) -> SB3Face:
    """Return ``env`` (anything ``make`` takes, or a ``VecEnv`` made with ``autoreset="same_step"``) as a Stable-Baselines3 ``VecEnv``.

    The step that ends an episode carries ``info["episode"]``, so no Monitor is needed. ``make_settings`` go to ``make``, with
    ``cast=True`` unless said otherwise. A ``seed`` among them is used by the first reset before which ``seed()`` was not called.
    """
    try:
        from fugu.vector.adapters_sb3 import SB3Face
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "stable_baselines3":
            raise
        raise MissingExtra("the SB3 adapter", "sb3") from error
    vec = _open("as_sb3()", env, num_envs, "same_step", make_settings)
    vec.episode_stats = True
    return SB3Face(vec, seeded=vec is env or _names_seed(make_settings))


class BatchReader:
    """Rows ``[envs, *row_shape]`` -> the structure of ``gymnasium.vector.utils.batch_space``: arrays, and dicts and tuples of them.

    What has no batched array (Text, OneOf, Sequence) becomes a tuple with one value per environment. Without ``copy`` the
    arrays are views of the rows.
    """

    def __init__(self, layout: Layout, *, copy: bool) -> None:
        self._layout, self._copy = layout, copy

    def __call__(self, rows: np.ndarray) -> Any:
        return self._read(self._layout.root, self._layout.leaf_views(rows), len(rows))

    def _read(self, node: Node, leaves: list[np.ndarray], count: int) -> Any:
        if isinstance(node.space, gs.Dict):
            parts = zip(node.keys, node.children, strict=True)
            return {key: self._read(child, leaves, count) for key, child in parts}
        if isinstance(node.space, gs.Tuple):
            return tuple(self._read(child, leaves, count) for child in node.children)
        if isinstance(node.space, ARRAYS):
            return leaves[node.leaf].copy() if self._copy else leaves[node.leaf]
        return tuple(unpack_node(node, leaves, (i,)) for i in range(count))


@contextmanager
def attribute_errors() -> Iterator[None]:
    """Raise for a missing attribute of an environment the ``AttributeError`` that callers of other libraries catch."""
    try:
        yield
    except EnvError as error:
        if error.caused_by(AttributeError):
            raise AttributeError(str(error)) from error
        raise


def _open(name: str, env: Any, num_envs: int | None, autoreset: Autoreset | None, settings: dict[str, Any]) -> VecEnv:
    """Open the vector env behind an adapter and check it; close it again if it does not fit."""
    if isinstance(env, VecEnv):
        given = [*settings, *["num_envs"] * (num_envs is not None)]
        if given:
            raise ConfigError(f"{name}: {given[0]} is a setting of make(), but a VecEnv that is already made was given")
        _check(name, env, autoreset)
        return env
    if "autoreset" in settings:
        raise ConfigError(f"{name} chooses make()'s autoreset itself; leave it out (as_gymnasium has autoreset_mode)")
    vec = make(env, num_envs, autoreset=autoreset or "next_step", **{"cast": True, **settings})
    try:
        _check(name, vec, autoreset)
    except ConfigError:
        vec.close()
        raise
    return vec


def _check(name: str, vec: VecEnv, autoreset: Autoreset | None) -> None:
    if vec.num_agents != vec.num_envs:
        raise ConfigError(
            f"{name} shows one agent per environment, but {vec.spec.name} has {vec.num_agents} agents in {vec.num_envs} "
            f"env{'s' * (vec.num_envs > 1)}; use the VecEnv of fugu.vector.make() itself"
        )
    if vec.config.num_batches > 1:
        raise ConfigError(
            f"{name} steps all environments at once, but batch_size={vec.config.batch_size} makes "
            f"{vec.config.num_batches} batches; leave batch_size out"
        )
    if autoreset is not None and vec.spec.autoreset != autoreset:
        how = {"next_step": "on the next step", "same_step": "within the same step"}
        raise ConfigError(
            f"{name} needs environments that restart {how[autoreset]}, but {vec.spec.name} restarts "
            f"{how[vec.spec.autoreset]}; a Gymnasium environment does either: make(..., autoreset={autoreset!r})"
        )
    if vec.spec.autoreset == "same_step" and vec.config.infos == "none":
        raise ConfigError(f"{name}: infos='none' would drop the final observations; use infos='episode'")


def _autoreset(mode: AutoresetMode | str | None) -> Autoreset | None:
    for autoreset, known in MODES.items():
        if mode is known or mode in (known.value, autoreset):
            return autoreset
    if mode is None:
        return None
    names = ", ".join(f"AutoresetMode.{known.name}" for known in MODES.values())
    raise ConfigError(f"autoreset_mode={mode!r} must be one of {names}")


def _names_seed(settings: dict[str, Any]) -> bool:
    return "seed" in settings or "config" in settings
