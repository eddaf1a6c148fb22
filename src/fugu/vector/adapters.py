"""Adapt a vector env to the interfaces of other libraries: ``as_gymnasium``, ``as_sb3``, ``as_torchrl`` and ``as_pettingzoo``.

In: whatever ``vector.make`` takes, or a ``VecEnv``. Out: a real ``gymnasium.vector.VectorEnv``, Stable-Baselines3 ``VecEnv``, TorchRL
``EnvBase`` or PettingZoo ``ParallelEnv``; code written for those runs on it unchanged. The first three show many environments of one
agent, the last one environment of many. This file opens the vector env and turns rows into the structure that Gymnasium and SB3
use; the faces are in ``adapters_gymnasium``, ``adapters_sb3``, ``adapters_torchrl`` and ``adapters_pettingzoo``.
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
    from fugu.vector.adapters_pettingzoo import PettingZooFace
    from fugu.vector.adapters_sb3 import SB3Face
    from fugu.vector.adapters_torchrl import TorchRLFace

MODES: dict[Autoreset, AutoresetMode] = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
}
RESTARTS: dict[AutoresetMode, Autoreset] = {
    **{mode: autoreset for autoreset, mode in MODES.items()},
    AutoresetMode.DISABLED: "next_step",
}
"""how environments are made for each mode; where it is DISABLED they are reset before the step on which they would restart"""
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

    ``autoreset_mode`` is next-step unless said otherwise (of a ``VecEnv``: the one it was made with). With DISABLED the caller restarts
    what ended: ``reset(options={"reset_mask": terminated | truncated})``. With ``copy=False``
    observations are views that the second step after them overwrites. ``episode_stats`` adds ``infos["episode"]`` to the step
    that ends an episode; leave it off where ``RecordEpisodeStatistics`` is wrapped around. ``make_settings`` go to ``make``,
    with ``cast=True`` unless said otherwise, because Gymnasium casts as well. A ``seed`` among them, or that of a ``VecEnv``,
    is used by the first reset that names none; without it such a reset is random, as in Gymnasium.
    """
    from fugu.vector.adapters_gymnasium import GymnasiumVectorFace

    mode = None if autoreset_mode is None else _mode(autoreset_mode)
    vec = _open("as_gymnasium()", env, num_envs, None if mode is None else RESTARTS[mode], make_settings)
    vec.episode_stats = episode_stats
    seeded = vec is env or _names_seed(make_settings)
    return GymnasiumVectorFace(vec, mode=mode or MODES[vec.spec.autoreset], copy=copy, seeded=seeded)


def as_sb3(env: Any, num_envs: int | None = None, **make_settings: Any) -> SB3Face:
    """Return ``env`` (anything ``make`` takes, or a ``VecEnv`` made with ``autoreset="same_step"``) as a Stable-Baselines3 ``VecEnv``.

    The step that ends an episode carries ``info["episode"]``, so no Monitor is needed. ``make_settings`` go to ``make``, with
    ``cast=True`` unless said otherwise. A ``seed`` among them is used by the first reset before which ``seed()`` was not called.
    """
    with _extra("the SB3 adapter", "sb3", "stable_baselines3"):
        from fugu.vector.adapters_sb3 import SB3Face
    vec = _open("as_sb3()", env, num_envs, "same_step", make_settings)
    vec.episode_stats = True
    return SB3Face(vec, seeded=vec is env or _names_seed(make_settings))


def as_pettingzoo(env: Any, **make_settings: Any) -> PettingZooFace:
    """Return one ``env`` of any number of agents (anything ``make`` takes, or a ``VecEnv`` with one) as PettingZoo's ``ParallelEnv``.

    Agents have their own names where the environment gives them any, else ``agent_0``, ``agent_1``, ... ``make_settings`` go to
    ``make``, with ``cast=True`` unless said otherwise. A ``seed`` among them is used by the first reset that names none.
    """
    with _extra("the PettingZoo adapter", "pettingzoo", "pettingzoo"):
        from fugu.vector.adapters_pettingzoo import PettingZooFace
    vec = _open("as_pettingzoo()", env, None, None, make_settings, team=True)
    vec.episode_stats = False
    return PettingZooFace(vec, seeded=vec is env or _names_seed(make_settings))


def as_torchrl(
    env: Any,
    num_envs: int | None = None,
    *,
    device: Any = "cpu",
    action_mask: bool | None = None,
    **make_settings: Any,
) -> TorchRLFace:
    """Return ``env`` (anything ``make`` takes, or a ``VecEnv``) as a TorchRL ``EnvBase`` of batch size ``[num_envs]``.

    Tensors are put on ``device``. ``action_mask`` adds the key of that name, ``[num_envs, choices]``, for TorchRL's ``ActionMask``;
    left out, it is there where environments are known to forbid actions. ``make_settings`` go to ``make``, with ``cast=True`` unless
    said otherwise. A ``seed`` among them is used by the first reset before which ``set_seed`` was not called.
    """
    with _extra("the TorchRL adapter", "torchrl", "torchrl", "tensordict"):
        from fugu.vector.adapters_torchrl import TorchRLFace
    vec = _open("as_torchrl()", env, num_envs, "next_step", make_settings)
    vec.episode_stats = False
    try:
        return TorchRLFace(vec, device=device, action_mask=action_mask, seeded=vec is env or _names_seed(make_settings))
    except Exception:
        if vec is not env:
            vec.close()
        raise


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
def _extra(what: str, extra: str, *packages: str) -> Iterator[None]:
    """Say what to install where one of ``packages`` is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in packages:
            raise
        raise MissingExtra(what, extra) from error


@contextmanager
def attribute_errors() -> Iterator[None]:
    """Raise for a missing attribute of an environment the ``AttributeError`` that callers of other libraries catch."""
    try:
        yield
    except EnvError as error:
        if error.caused_by(AttributeError):
            raise AttributeError(str(error)) from error
        raise


def envs_here(vec: VecEnv) -> list[Any]:
    """Return the environments of ``vec``; an ``AttributeError`` where they live elsewhere."""
    if vec.config.resolved_backend != "serial":
        raise AttributeError(
            f"no attribute 'envs': with backend={vec.config.resolved_backend!r} the environments are not Python objects of this "
            "process; use get_attr(), set_attr() and env_method() or call()"
        )
    return vec.access("apply", "envs", (lambda env: env,), {}, None)


def _open(
    name: str, env: Any, num_envs: int | None, autoreset: Autoreset | None, settings: dict[str, Any], *, team: bool = False
) -> VecEnv:
    """Open the vector env behind an adapter and check it; close it again if it does not fit. ``team``: one environment of any number
    of agents."""
    if isinstance(env, VecEnv):
        given = [*settings, *["num_envs"] * (num_envs is not None)]
        if given:
            raise ConfigError(f"{name}: {given[0]} is a setting of make(), but a VecEnv that is already made was given")
        _check(name, env, autoreset, team)
        return env
    if "autoreset" in settings:
        raise ConfigError(f"{name} chooses make()'s autoreset itself; leave it out (as_gymnasium has autoreset_mode)")
    vec = make(env, num_envs, autoreset=autoreset or "next_step", **{"cast": True, **settings})
    try:
        _check(name, vec, autoreset, team)
    except ConfigError:
        vec.close()
        raise
    return vec


def _check(name: str, vec: VecEnv, autoreset: Autoreset | None, team: bool) -> None:
    if team and vec.num_envs != 1:
        raise ConfigError(f"{name} shows one environment with its agents, got {vec.num_envs}; make one adapter for each")
    if not team and vec.num_agents != vec.num_envs:
        raise ConfigError(
            f"{name} shows one agent per environment, but {vec.spec.name} has {vec.num_agents} agents in {vec.num_envs} "
            f"env{'s' * (vec.num_envs > 1)}; use as_pettingzoo(), or the VecEnv of fugu.vector.make() itself"
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


def _mode(mode: AutoresetMode | str) -> AutoresetMode:
    for known in AutoresetMode:
        if mode is known or mode in (known.value, known.name.lower()):
            return known
    names = ", ".join(f"AutoresetMode.{known.name}" for known in AutoresetMode)
    raise ConfigError(f"autoreset_mode={mode!r} must be one of {names}")


def _names_seed(settings: dict[str, Any]) -> bool:
    return "seed" in settings or "config" in settings
