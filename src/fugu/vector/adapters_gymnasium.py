"""A ``VecEnv`` as a ``gymnasium.vector.VectorEnv``: what ``SyncVectorEnv`` does, from rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space, iterate

from fugu.emulation.env import Infos
from fugu.errors import ConfigError, EnvError
from fugu.spaces import Packer
from fugu.vector.adapters import ARRAYS, MODES, BatchReader, attribute_errors
from fugu.vector.vecenv import VecEnv


class GymnasiumVectorFace(VectorEnv[Any, Any, np.ndarray]):
    """``vec`` with one agent per environment. ``seeded``: a first reset without seed uses those of ``vec``."""

    def __init__(self, vec: VecEnv, *, copy: bool, seeded: bool) -> None:
        self.vec = vec
        self.num_envs = vec.num_envs
        self.metadata = {**vec.spec.metadata, "autoreset_mode": MODES[vec.spec.autoreset]}
        self.render_mode = vec.spec.render_mode
        self.single_observation_space = vec.observation_space
        self.single_action_space = vec.action_space
        self.observation_space = batch_space(vec.observation_space, vec.num_envs)
        self.action_space = batch_space(vec.action_space, vec.num_envs)
        self.spec = _registered_spec(vec)
        self._seeded = seeded
        self._read = BatchReader(vec.obs_layout, copy=copy)
        self._packer = Packer(vec.action_layout, finite=False, cast=True)
        self._arrays_only = _arrays_only(vec.action_layout.root)
        self._may_lose_envs = vec.config.on_error == "restart" and vec.spec.autoreset == "same_step"

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start all environments anew; env i is seeded with ``seed + i``, or with the i-th of a list."""
        if options is not None and "reset_mask" in options:
            raise ConfigError("options['reset_mask'] is not supported: environments restart by themselves when they end")
        obs, infos = self.vec.reset(self._seeds(seed), options)
        return self._read(obs), self._batched(infos)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        obs, reward, terminated, truncated, infos = self.vec.step(self._action(actions))
        if self._may_lose_envs:
            self._add_final_obs(obs, terminated | truncated, infos)
        info = {**self._batched(infos), **self._costs()}
        return self._read(obs), reward.astype(np.float64), terminated.copy(), truncated.copy(), info

    def render(self) -> tuple[Any, ...]:
        return tuple(self.vec.render())

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every environment; of an attribute that is no method, its value."""
        with attribute_errors():
            return tuple(self.vec.access("call", name, args, kwargs, None))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute: one value for all environments, or a list or tuple with one for each."""
        self.vec.set_attr(name, values)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        return self.get_attr("np_random")

    def close_extras(self, **kwargs: Any) -> None:
        self.vec.close()

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None] | None:
        seeded, self._seeded = self._seeded, False
        if seed is None:
            return None if seeded else [None] * self.num_envs
        seeds: list[int | None]
        if isinstance(seed, int | np.integer):
            seeds = [int(seed) + i for i in range(self.num_envs)]
        else:
            seeds = list(seed)
        if any(s is not None and s < 0 for s in seeds):
            raise ConfigError(f"seed={seed!r} must not be negative")
        return seeds

    def _action(self, actions: Any) -> Any:
        if self._arrays_only:
            return actions
        rows = self.vec.action_layout.zeros(self.num_envs)
        for row, action in zip(rows, iterate(self.action_space, actions), strict=True):
            self._packer.pack(action, row)
        return rows

    def _costs(self) -> dict[str, Any]:
        """Return the costs of the step by name, each with Gymnasium's mask of who has it: everyone."""
        cost, everyone = self.vec.rows.cost, np.ones(self.num_envs, bool)
        if cost is None:
            return {}
        named = {name: cost[:, k].astype(np.float64) for k, name in enumerate(self.vec.spec.costs)}
        return {**named, **{f"_{name}": everyone.copy() for name in named}}

    def _batched(self, infos: Infos) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for i in sorted(infos):
            out = self._add_info(out, infos[i], i)
        return out

    def _add_final_obs(self, obs: np.ndarray, ended: np.ndarray, infos: Infos) -> None:
        """Add final observations to the infos. A replaced environment has none; the last one known, in its row, stands for it."""
        packer = Packer(self.vec.obs_layout, finite=False)
        for i in np.flatnonzero(ended).tolist():
            info = infos.setdefault(i, {})
            if "final_obs" not in info:
                info.update(final_obs=packer.unpack(obs[i]), final_info={})


def _arrays_only(node: Any) -> bool:
    return isinstance(node.space, ARRAYS) or (node.leaf < 0 and all(map(_arrays_only, node.children)))


def _registered_spec(vec: VecEnv) -> Any:
    """Return the registry's spec of the environments, or None."""
    try:
        return vec.get_attr("spec", envs=[0])[0]
    except (EnvError, ConfigError):  # no such attribute, or native worlds, which have none
        return None
