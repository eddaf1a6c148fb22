"""A ``VecEnv`` as a Stable-Baselines3 ``VecEnv``: what ``DummyVecEnv`` does, from rows. Import it through ``as_sb3``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import numpy as np
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.vec_env import VecEnv as SB3VecEnv

from fugu.emulation.env import Infos
from fugu.errors import ConfigError
from fugu.spaces import Packer
from fugu.vector.adapters import BatchReader, attribute_errors, envs_here
from fugu.vector.vecenv import VecEnv


class SB3Face(SB3VecEnv):
    """``vec`` with one agent per environment that restarts within the step that ended it. ``seeded``: a first reset without
    ``seed()`` uses the seeds of ``vec``."""

    def __init__(self, vec: VecEnv, *, seeded: bool) -> None:
        self.vec = vec
        self._seeded = seeded
        self._read = BatchReader(vec.obs_layout, copy=True)
        self._packer = Packer(vec.obs_layout, finite=False)
        super().__init__(vec.num_envs, vec.observation_space, vec.action_space)
        self.metadata = dict(vec.spec.metadata)

    def reset(self) -> Any:
        """Start all environments anew with the seeds and options set since the last reset."""
        seeds = None if self._seeded and self._seeds == [None] * self.num_envs else self._seeds
        obs, infos = self.vec.reset(seeds, self._reset_options_of_each())
        self.reset_infos = [infos.get(i, {}) for i in range(self.num_envs)]
        self._seeded = False
        self._reset_seeds()
        self._reset_options()
        return self._read(obs)

    def step_async(self, actions: Any) -> None:
        self.vec.send(actions)

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        rows = self.vec.recv()
        done = rows.terminated | rows.truncated
        limit = rows.truncated & ~rows.terminated
        infos = self._infos(rows.infos, rows.obs, done)
        for info, cut in zip(infos, limit.tolist(), strict=True):
            info["TimeLimit.truncated"] = cut
        return self._read(rows.obs), rows.reward.astype(np.float32), done, infos

    def close(self) -> None:
        self.vec.close()

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        with attribute_errors():
            return self.vec.get_attr(attr_name, self._chosen(indices))

    def set_attr(self, attr_name: str, value: Any, indices: int | Iterable[int] | None = None) -> None:
        """Set one value, whatever it is, in the environments chosen."""
        chosen = self._chosen(indices)
        self.vec.set_attr(attr_name, [value] * len(chosen), chosen)

    def env_method(
        self, method_name: str, *method_args: Any, indices: int | Iterable[int] | None = None, **method_kwargs: Any
    ) -> list[Any]:
        with attribute_errors():
            return self.vec.access("call", method_name, method_args, method_kwargs, self._chosen(indices))

    def env_is_wrapped(self, wrapper_class: type, indices: int | Iterable[int] | None = None) -> list[bool]:
        return self.vec.access("apply", "is_wrapped", (is_wrapped, wrapper_class), {}, self._chosen(indices))

    @property
    def envs(self) -> list[Any]:
        """Return the environments themselves, where they live in this process (``backend="serial"``)."""
        return envs_here(self.vec)

    def get_images(self) -> list[np.ndarray | None]:
        if self.render_mode != "rgb_array":
            warnings.warn(f"images need render_mode='rgb_array', got {self.render_mode!r}: pass it in env_kwargs")
            return [None] * self.num_envs
        return self.vec.render()

    def _infos(self, found: Infos, obs: np.ndarray, done: np.ndarray) -> list[dict[str, Any]]:
        """Return one dict per environment; of those that ended, the info of the ending. The reset's info goes to ``reset_infos``."""
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i, info in found.items():
            if done[i] and "final_obs" in info:
                after = dict(info)
                infos[i] = {"episode": after.pop("episode"), **deepcopy(after.pop("final_info"))}
                infos[i]["terminal_observation"] = after.pop("final_obs")
                self.reset_infos[i] = after
            else:
                infos[i] = deepcopy(info)
                if done[i]:  # a replaced environment: its row holds the last observation known
                    infos[i]["terminal_observation"] = self._packer.unpack(obs[i])
        return infos

    def _reset_options_of_each(self) -> list[dict[str, Any] | None] | None:
        if not any(self._options):
            return None
        if len(self._options) != self.num_envs:
            raise ConfigError(f"set_options: {len(self._options)} options for {self.num_envs} environments")
        return [options or None for options in self._options]

    def _chosen(self, indices: int | Iterable[int] | None) -> list[int]:
        return [int(i) for i in self._get_indices(indices)]
