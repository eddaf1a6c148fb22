"""A ``VecEnv`` as a ``gymnasium.vector.VectorEnv``: what ``SyncVectorEnv`` does, from rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from gymnasium import logger
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, iterate

from fugu.emulation.env import Infos
from fugu.errors import CallOrderError, ConfigError, EnvError, SpaceError
from fugu.spaces import Packer
from fugu.vector.adapters import ARRAYS, BatchReader, attribute_errors, envs_here
from fugu.vector.vecenv import VecEnv


class Closed(CallOrderError, ClosedEnvironmentError):
    """The vector env was used after ``close``."""


class Pending(CallOrderError, AlreadyPendingCallError):
    """Another call, ``name``, is under way."""

    name: str


class NothingPending(CallOrderError, NoAsyncCallError):
    """There is no call, ``name``, to wait for."""

    name: str


class GymnasiumVectorFace(VectorEnv[Any, Any, np.ndarray]):
    """``vec`` with one agent per environment. ``seeded``: a first reset without seed uses those of ``vec``.

    Where ``mode`` is DISABLED, environments that ended are refused until ``reset`` was told to restart them. ``step_async`` and
    ``step_wait``, ``reset_async`` and ``reset_wait`` are the halves of ``step`` and ``reset``, as in ``AsyncVectorEnv``.
    """

    def __init__(self, vec: VecEnv, *, mode: AutoresetMode, copy: bool, seeded: bool) -> None:
        self.vec = vec
        self.num_envs = vec.num_envs
        self.autoreset_mode = mode
        self.metadata = {**vec.spec.metadata, "autoreset_mode": mode}
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
        self._checks_ended = mode is AutoresetMode.DISABLED
        self._ended = np.zeros(self.num_envs, bool)
        """DISABLED: environments that wait for a reset"""
        self._state = ""
        """the call that is half done, reset or step; or closed"""

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start all environments anew, or those of ``options["reset_mask"]``; env i is seeded with ``seed + i``, or with the i-th
        of a list."""
        if self._state:
            self._refuse("reset")
        seeds = self._seeds(seed)
        mask = None
        if options is not None and "reset_mask" in options:
            mask = options["reset_mask"]
            options = {key: value for key, value in options.items() if key != "reset_mask"} or None
        if mask is None or (np.shape(mask) == (self.num_envs,) and getattr(mask, "dtype", None) == np.bool_ and mask.all()):
            obs, infos = self.vec.reset(seeds, options)
            self._ended[...] = False
        else:
            obs, infos = self.vec.reset_some(mask, seeds, options)
            self._ended[mask] = False
        return self._read(obs), self._batched(infos)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if self._state or self._checks_ended:
            self._check_can_step("step")
        return self._result(*self.vec.step(self._action(actions)))

    def reset_async(self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin a reset of all environments; ``reset_wait`` returns what comes of it."""
        if self._state:
            self._refuse("reset_async")
        if options is not None and "reset_mask" in options:
            raise ConfigError("options['reset_mask'] is for reset(); reset_async() starts all environments anew")
        self.vec.async_reset(self._seeds(seed), options)
        self._ended[...] = False
        self._state = "reset"

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        self._finish("reset", timeout)
        rows = self.vec.recv()
        return self._read(rows.obs), self._batched(rows.infos)

    def step_async(self, actions: Any) -> None:
        """Begin a step of all environments; ``step_wait`` returns what comes of it."""
        if self._state or self._checks_ended:
            self._check_can_step("step_async")
        self.vec.send(self._action(actions))
        self._state = "step"

    def step_wait(self, timeout: float | None = None) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        self._finish("step", timeout)
        rows = self.vec.recv()
        return self._result(rows.obs, rows.reward, rows.terminated, rows.truncated, rows.infos)

    @property
    def envs(self) -> list[Any]:
        """Return the environments themselves, where they live in this process (``backend="serial"``)."""
        return envs_here(self.vec)

    def render(self) -> tuple[Any, ...]:
        if self._state:
            self._refuse("render")
        return tuple(self.vec.render())

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every environment; of an attribute that is no method, its value."""
        if self._state:
            self._refuse("call")
        with attribute_errors():
            return tuple(self.vec.access("call", name, args, kwargs, None))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute: one value for all environments, or a list or tuple with one for each."""
        if self._state:
            self._refuse("set_attr")
        self.vec.set_attr(name, values)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        return self.get_attr("np_random")

    def close_extras(self, **kwargs: Any) -> None:
        if self._state:
            logger.warn(f"closed before {self._state}_wait() was called; what came of the {self._state} is lost")
        self._state = "closed"
        self.vec.close()

    def _result(
        self, obs: np.ndarray, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, infos: Infos
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if self._checks_ended:
            self._ended = terminated | truncated
        if self._may_lose_envs:
            self._add_final_obs(obs, terminated | truncated, infos)
        info = {**self._batched(infos), **self._costs()}
        return self._read(obs), reward.astype(np.float64), terminated.copy(), truncated.copy(), info

    def _check_can_step(self, name: str) -> None:
        if self._state:
            self._refuse(name)
        if self._ended.any():
            raise CallOrderError(
                f"{name}(): environments {np.flatnonzero(self._ended).tolist()} have ended, and autoreset is disabled; reset them "
                "first: reset(options={'reset_mask': terminated | truncated})"
            )

    def _refuse(self, name: str) -> NoReturn:
        if self._state == "closed":
            raise Closed(f"{name}() after close(): make the environments anew")
        error = Pending(f"{name}() while a {self._state} is under way: call {self._state}_wait() first")
        error.name = self._state
        raise error

    def _finish(self, what: str, timeout: float | None) -> None:
        """Check that the call is under way and forget it."""
        if timeout is not None:
            limit = f"{what}_timeout={timeout}"
            raise ConfigError(f"{what}_wait(timeout={timeout}): a limit is set once, when environments are made: {limit}")
        if self._state != what:
            if self._state:
                self._refuse(f"{what}_wait")
            error = NothingPending(f"{what}_wait() without {what}_async() before it")
            error.name = what
            raise error
        self._state = ""

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
        each = list(actions if isinstance(actions, list) else iterate(self.action_space, actions))
        if len(each) != self.num_envs:
            raise SpaceError(f"actions: expected {self.num_envs}, one per environment; got {len(each)}")
        for i, (row, action) in enumerate(zip(rows, each, strict=True)):
            try:
                self._packer.pack(action, row)
            except SpaceError as error:
                if self.vec.rows.mask[i]:
                    raise error.of(sub_env=i) from None
                row[...] = 0  # nobody acts there
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
