"""A foreign Gymnasium vector environment as one ``fugu.Env`` with an agent per sub-environment.

Comes in: batched results of ``VectorEnv.step``, in any of Gymnasium's three auto-reset modes. Goes out: rows by the convention
of ``env.py``, a column at a time. How each mode (``metadata["autoreset_mode"]``) becomes rows:

- NEXT_STEP is fugu's own rule and passes through.
- SAME_STEP has already reset a sub-env when it reports an ending. After a termination nothing looks at the final observation,
  so the row holds the reset observation right away: ``terminated``, ``first`` and ``mask`` are all True. After a truncation the
  value of the final observation counts, so the row holds ``info["final_obs"]`` with ``mask=False`` as usual. The sub-env then
  takes a step on that row's action, because a vector env steps all or none; where it arrives is the new episode's first
  row. That one hidden step per truncated episode is not trained on: its reward and its place in the length are left out, and
  if it ends the episode, that episode is left out and the next one starts on the same row.
- DISABLED resets nothing by itself; ended sub-envs are reset at once with ``options={"reset_mask": ...}``, then as SAME_STEP.

With ``autoreset="same_step"`` every ending is reported with the reset observation, and the final one moves into the infos.
Where the vector env resets at once, ``final_info`` in the infos is what the last step said, as Gymnasium has it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from fugu.emulation.batch import ActionBatch, ObsBatch
from fugu.emulation.env import Autoreset, Infos, Rows, flat_mask, offers_mask
from fugu.emulation.infos import Said
from fugu.errors import ConfigError, SpaceError
from fugu.spaces import Layout, Packer, convert


class GymnasiumVectorEnv:
    """``env`` as a ``fugu.Env``; ``num_agents`` is its ``num_envs``."""

    def __init__(
        self, env: VectorEnv, *, autoreset: Autoreset = "next_step", check_finite: bool = True, cast: bool = False
    ) -> None:
        self.env = env
        self.num_agents = int(env.num_envs)
        self.observation_space = convert(env.single_observation_space)
        self.action_space = convert(env.single_action_space)
        self.metadata = {key: value for key, value in (env.metadata or {}).items() if key != "autoreset_mode"}
        self.render_mode = getattr(env, "render_mode", None)
        spec = getattr(env, "spec", None)
        self.name = spec.id if spec is not None else type(env.unwrapped).__name__
        if said := Said(env, self.name):
            what = f"costs={said.costs}" if said.costs else f"columns={said.columns}"
            raise ConfigError(
                f"{self.name} has {what}, which are not read from a vector env",
                fix="give the single environment, and fugu makes many of it",
            )
        self._mode = _autoreset_mode(env)
        self.restarts_at_once = self._mode is not AutoresetMode.NEXT_STEP
        """whether the row after a termination is already the first of the next episode"""
        self.autoreset = autoreset
        self._same_step = autoreset == "same_step"
        if self._same_step and self._mode is AutoresetMode.NEXT_STEP:
            raise ConfigError(
                f'autoreset="same_step", but {self.name} resets on the next step',
                fix="build it with autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP",
            )
        self._layout = Layout(self.observation_space)
        self._packer = Packer(self._layout, finite=check_finite, cast=cast)
        self._obs = ObsBatch(self._packer, env.observation_space, self.num_agents)
        self._action = ActionBatch(self.action_space)
        self._mask_leaf: int | None = None
        """which leaf of the observation is an action mask"""
        if offers_mask(self.observation_space, self.action_space):
            self._mask_leaf = [leaf.path for leaf in self._layout.leaves].index(("action_mask",))
        self._mask_in_info = False
        self._ended = np.zeros(self.num_agents, bool)
        """NEXT_STEP: sub-envs that the next step resets"""
        self._hidden = np.zeros(self.num_agents, bool)
        """otherwise: sub-envs that have been reset behind a row that shows their final observation"""

    def reset(self, seed: int | None, out: Rows, options: dict[str, Any] | None = None) -> Infos | None:
        if seed is not None:
            seed %= 2**31 - self.num_agents  # sub-envs get seed, seed + 1, ..., and some keep seeds in 32 bits
        obs, info = self.env.reset(seed=seed, options=options)
        self._write_obs(obs, out)
        out.start()
        self._ended = np.zeros(self.num_agents, bool)
        self._hidden = np.zeros(self.num_agents, bool)
        return self._finish(split_infos(info, self._ended), out)

    def step(self, action: np.ndarray, out: Rows) -> Infos | None:
        obs, reward, terminated, truncated, info = self.env.step(self._action.read(action))
        self._write_obs(obs, out)
        _write_outcome(reward, terminated, truncated, out)
        ended = out.terminated | out.truncated
        infos = split_infos(info, ended) if info else {}
        if self._mode is AutoresetMode.NEXT_STEP:
            out.first[...] = self._ended
            out.mask[...] = ~ended
            out.reward[self._ended] = 0
            self._ended = ended
        elif ended.any() or self._hidden.any():
            self._restart(ended, info, infos, out)
        else:
            out.first[...] = False
            out.mask[...] = True
        return self._finish(infos, out)

    def close(self) -> None:
        self.env.close()

    def _restart(self, ended: np.ndarray, info: dict[str, Any], infos: Infos, out: Rows) -> None:
        """Write the rows of a step in which some sub-envs were reset at once, or are now to be, or took a hidden step."""
        hidden = self._hidden
        shows_final = np.zeros_like(ended) if self._same_step else ended & ~out.terminated & ~hidden
        if self._mode is AutoresetMode.DISABLED:
            if ended.any():
                self._reset_ended(ended, shows_final, infos, out)
        elif shows_final.any():
            finals = self._final_items(info)
            for i in np.flatnonzero(shows_final).tolist():
                self._obs.write_item(i, finals[i], out.obs)
        if not self._same_step:
            for i in np.flatnonzero(ended).tolist():
                infos.get(i, {}).pop("final_obs", None)
        out.reward[hidden] = 0
        out.terminated[hidden] = False
        out.truncated[hidden] = False
        out.first[...] = hidden | (ended & ~shows_final)
        out.mask[...] = ~shows_final
        self._hidden = shows_final

    def _reset_ended(self, ended: np.ndarray, shows_final: np.ndarray, infos: Infos, out: Rows) -> None:
        finals = {i: self._packer.unpack(out.obs[i]) for i in np.flatnonzero(ended).tolist()}
        obs, info = self.env.reset(options={"reset_mask": ended.copy()})
        items, reset_infos = self._obs.items(obs), split_infos(info, ended)
        for i, final_obs in finals.items():
            if not shows_final[i]:
                self._obs.write_item(i, items[i], out.obs)
            infos[i] = {**reset_infos.get(i, {}), "final_obs": final_obs, "final_info": infos.get(i, {})}

    def _final_items(self, info: dict[str, Any]) -> Any:
        """Return ``info["final_obs"]`` by sub-env: it is Gymnasium's array of objects, or batched like any observation."""
        final = info.get("final_obs")
        if final is None:
            raise SpaceError(
                f"{self.name} truncates in auto-reset mode SAME_STEP without info['final_obs'], and the value of a truncated "
                "episode is that of its final observation",
                fix="build it with gymnasium.vector.AutoresetMode.NEXT_STEP",
            )
        return final if isinstance(final, np.ndarray) and final.dtype == object else self._obs.items(final)

    def _write_obs(self, obs: Any, out: Rows) -> None:
        if out.writer is None:
            out.writer = self._layout.leaf_views(out.obs)
        self._obs.write(obs, out.obs, out.writer)

    def _finish(self, infos: Infos, out: Rows) -> Infos | None:
        """Write the action masks, where the env offers any. Rows that do not act have all choices open."""
        if out.action_mask is None:
            return infos or None
        if self._mask_leaf is not None:
            out.action_mask[...] = out.writer[self._mask_leaf].reshape(out.action_mask.shape) != 0
            out.action_mask[~out.mask] = True
            return infos or None
        offered = {i: flat_mask(info["action_mask"], self.action_space) for i, info in infos.items() if "action_mask" in info}
        if offered or self._mask_in_info:
            self._mask_in_info = True
            out.action_mask[...] = True
        for i, mask in offered.items():
            choices = out.action_mask.shape[1]
            if mask.size != choices:
                raise SpaceError(f"expected {choices} choices, got {mask.size}", where="action_mask").of(sub_env=i)
            if out.mask[i]:
                out.action_mask[i] = mask.ravel()
        return infos or None


def split_infos(info: dict[str, Any], ended: np.ndarray) -> Infos:
    """Split Gymnasium's vectorised infos (``key``, and ``_key`` for who has it) by sub-env. Without ``_key`` all have it."""
    found: Infos = {}
    for key, value in info.items():
        if key[:1] == "_" and key[1:] in info:
            continue
        has = info.get(f"_{key}", ended if key in ("final_obs", "final_info") else None)
        agents = range(len(ended)) if has is None else np.flatnonzero(has).tolist()
        if isinstance(value, dict):
            nested = split_infos(value, ended)
            parts: Any = {i: nested.get(i, {}) for i in agents if has is not None or i in nested}
        elif _one_each(value, len(ended)):
            parts = {i: value[i].copy() if isinstance(value[i], np.ndarray) else value[i] for i in agents}
        else:
            parts = dict.fromkeys(agents, value)
        for i, part in parts.items():
            found.setdefault(i, {})[key] = part
    return found


def _one_each(value: Any, count: int) -> bool:
    sized = value.ndim > 0 if isinstance(value, np.ndarray) else isinstance(value, list | tuple)
    return sized and len(value) == count


def _write_outcome(reward: Any, terminated: Any, truncated: Any, out: Rows) -> None:
    for name, value, kinds, column in (
        ("reward", reward, "fiub", out.reward),
        ("terminated", terminated, "b", out.terminated),
        ("truncated", truncated, "b", out.truncated),
    ):
        array = np.asarray(value)
        if array.shape != column.shape or array.dtype.kind not in kinds:
            expected = f"{'numbers' if name == 'reward' else 'bools'} of shape {list(column.shape)}"
            raise SpaceError(f"expected {expected}, one per sub-env; got {array.dtype}{list(array.shape)}", where=name)
        column[...] = array
    finite = np.isfinite(out.reward)
    if not finite.all():
        i = int(np.flatnonzero(~finite)[0])
        raise SpaceError(f"{np.asarray(reward)[i]!r} is not finite in float32", where="reward").of(sub_env=i)


def _autoreset_mode(env: VectorEnv) -> AutoresetMode:
    mode = (env.metadata or {}).get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        known = ", ".join(f"AutoresetMode.{m.name}" for m in AutoresetMode)
        raise ConfigError(
            f"{type(env.unwrapped).__name__}.metadata['autoreset_mode'] must say how sub-envs are reset, one of {known}; "
            f"got {mode!r}",
            fix="Set env.metadata = env.metadata | {'autoreset_mode': ...} to what the env does",
        ) from None
