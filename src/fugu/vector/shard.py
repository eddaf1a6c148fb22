"""Some environments over one contiguous range of agents, stepped one after the other.

Serial runs one shard, every worker process runs one, and the caller of a synchronous process backend runs one itself. Where
environments compute their steps elsewhere (``Deferred`` in ``emulation/env.py``), a step of the shard is ``begin``, ``ready``,
``finish``: all of them are set going before the first is waited for.
"""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from gymnasium import spaces as gs

from fugu.emulation.columns import large_ones
from fugu.emulation.env import Deferred, Env, Infos, Rows, is_deferred
from fugu.emulation.factory import Factory
from fugu.emulation.infos import ALWAYS, numbers
from fugu.errors import ConfigError, EnvError, NotInstalled, SandboxError, shared_class
from fugu.vector.buffers import SLOTS, Buffers
from fugu.vector.config import InfoMode, OnError
from fugu.vector.runner import Options, check_distinct
from fugu.vector.seeds import KEEP

POLL_S = 0.1
"""how long to wait for steps that are computed elsewhere before looking again"""


class Expired(BaseException):
    """Raised from a signal handler inside the code of an env that hangs; not an Exception, which envs may swallow."""


class Shard:
    """``factories`` are those of the envs ``first_env ...``; build, then ``bind`` to memory, then ``reset`` and ``step``."""

    def __init__(
        self,
        factories: Sequence[Factory],
        first_env: int,
        *,
        worker: int | None = None,
        infos: InfoMode = "all",
        episode_infos: Sequence[str] = (),
        on_error: OnError = "raise",
        build: bool = True,
    ) -> None:
        self.factories = list(factories)
        self.first_env = first_env
        self.worker = worker
        self._owner = os.getpid()
        self.on_error = on_error
        self.restarts = 0
        self._keep = infos
        self._names = (*ALWAYS, *episode_infos)
        """numbers in the infos of last steps that are kept in any case"""
        self._at = memoryview(bytearray(4)).cast("I")
        self.seeds: list[int | None] = [None] * len(self.factories)
        self.envs: list[Env] = []
        self.deferred = False
        """whether an env here computes its steps elsewhere"""
        self._under_way: list[int] = []
        """envs whose step was begun and is not finished"""
        self._awaited: list[int] = []
        """those of them that were not ready yet when last looked at"""
        self._early: Infos = {}
        """of envs that had done all of their step when it was begun"""
        if build:
            self.build()

    def build(self) -> None:
        """Make the environments; if one cannot be made, close the others and say which it was."""
        try:
            for k, factory in enumerate(self.factories):
                self._at[0] = k
                self.envs.append(factory())
            check_distinct(self.envs, self.first_env)
            self.deferred = any(is_deferred(env) for env in self.envs)
        except BaseException as error:
            try:
                failed = self._error(error, len(self.envs), "make")
            finally:
                self.close()
            if isinstance(error, ConfigError | NotInstalled | SandboxError):
                raise  # says it well already
            raise failed from error

    def bind(self, buffers: Buffers, first_agent: int, *, stage: bool = False, at: memoryview | None = None) -> None:
        """Hand each env its rows. ``stage`` collects the small columns privately and publishes them once per step, so that
        neighbouring workers do not fight over the cache lines at their border. ``at[0]`` is set to the env being run."""
        if at is not None:
            self._at = at
        counts = [env.num_agents for env in self.envs]
        starts = np.cumsum([0, *counts]).tolist()
        self.num_agents = starts[-1]
        self.agents = slice(first_agent, first_agent + self.num_agents)
        self._buffers = buffers
        self._shared = [buffers.part(slot, self.agents) for slot in range(SLOTS)]
        self._mine = [_staged(rows) if stage else rows for rows in self._shared]
        self._stage = stage
        self._publishing = [
            [(rows[name], mine[name]) for name in rows.columns if mine[name] is not rows[name]]
            for rows, mine in zip(self._shared, self._mine, strict=True)
        ]
        """by slot, the columns of all and those kept privately"""
        local = [slice(a, a + n) for a, n in zip(starts, counts, strict=False)]
        self._offsets = [first_agent + a for a in starts[:-1]]
        self._rows: list[list[Rows]] = [[rows[part] for part in local] for rows in self._mine]
        actions = buffers.action[self.agents]
        self._actions = [actions[part] for part in local]

    def reset(self, slot: int, options: Options = None) -> Infos:
        """Reset every env with its seed from the buffers (``KEEP``: not at all; else negative: without one) and its options (a list:
        one of all envs each)."""
        infos: Infos = {}
        self._forget()
        for k, env in enumerate(self.envs):
            own = options[self.first_env + k] if isinstance(options, list) else options
            extra = {} if own is None else {"options": own}
            self._at[0] = k
            seed = int(self._buffers.seeds[self.first_env + k])
            if seed == KEEP:
                for name, column in self._rows[slot][k].columns.items():
                    column[...] = self._rows[1 - slot][k][name]
                continue
            self.seeds[k] = seed if seed >= 0 else None
            out = self._rows[slot][k]
            if out.action_mask is not None:
                out.action_mask[...] = True
                self._rows[1 - slot][k].action_mask[...] = True  # type: ignore[index]
            try:
                info = env.reset(self.seeds[k], out, **extra)
            except BaseException as error:
                info = self._failed(error, k, "reset", slot)
            if info:
                self._collect(infos, info, k, out)
        if self._stage:
            self._publish(slot)
        return infos

    def step(self, slot: int) -> Infos:
        """Step every env on the actions in the buffers and write into ``slot``."""
        if self.deferred:
            self.begin(slot)
            while not self.ready(slot):
                self.wait(slot, POLL_S)
            return self.finish(slot)
        infos: Infos = {}
        at = self._at
        for k, (env, action, out) in enumerate(zip(self.envs, self._actions, self._rows[slot], strict=True)):
            at[0] = k
            try:
                info = env.step(action, out)
            except BaseException as error:
                info = self._failed(error, k, "step", slot)
            if info:
                self._collect(infos, info, k, out)
        if self._stage:
            self._publish(slot)
        return infos

    # --- a step in parts, where envs compute theirs elsewhere ---

    def begin(self, slot: int) -> None:
        """Set a step of every env going. Those that know no other way are stepped."""
        self._forget()
        for k, (env, action, out) in enumerate(zip(self.envs, self._actions, self._rows[slot], strict=True)):
            self._at[0] = k
            try:
                if is_deferred(env):
                    cast(Deferred, env).begin(action, out)
                    self._under_way.append(k)
                    continue
                info = env.step(action, out)
            except BaseException as error:
                info = self._failed(error, k, "step", slot)
            if info:
                self._collect(self._early, info, k, out)
        self._awaited = self._under_way[::-1]

    def ready(self, slot: int) -> bool:
        """Return True if all have ended the step that was begun. Asks one at a time: it costs little to ask often."""
        while self._awaited:
            k = self._at[0] = self._awaited[-1]
            try:
                if not cast(Deferred, self.envs[k]).ready():
                    return False
            except BaseException as error:
                self.give_up(slot, error)
            else:
                self._awaited.pop()
        return True

    @property
    def awaited(self) -> int:
        """Count the envs whose step had not ended when last looked at."""
        return len(self._awaited)

    def wait(self, slot: int, timeout: float) -> None:
        """Wait until the env that was asked last may be ready, or for ``timeout`` seconds."""
        try:
            cast(Deferred, self.envs[self._awaited[-1]]).waiter.wait(timeout)
        except BaseException as error:
            self.give_up(slot, error)

    def give_up(self, slot: int, error: BaseException) -> None:
        """Take ``error`` for what came of the env that is waited for."""
        k = self._awaited.pop()
        self._under_way.remove(k)
        self._collect(self._early, self._failed(error, k, "step", slot), k, self._rows[slot][k])

    def finish(self, slot: int) -> Infos:
        """Let every env write what came of its step into ``slot``."""
        for k in self._under_way:
            self._at[0], out = k, self._rows[slot][k]
            try:
                info = cast(Deferred, self.envs[k]).finish(out)
            except BaseException as error:
                info = self._failed(error, k, "step", slot)
            if info:
                self._collect(self._early, info, k, out)
        infos = self._early
        self._forget()
        if self._stage:
            self._publish(slot)
        return infos

    def _forget(self) -> None:
        self._under_way, self._awaited, self._early = [], [], {}

    # --- the envs themselves ---

    def call(self, kind: str, name: str, args: Sequence[Any], kwargs: dict[str, Any], envs: Sequence[int]) -> list[Any]:
        """Get, set or call an attribute of the wrapped envs (shard-local indices)."""
        results = []
        for k in envs:
            self._at[0] = k
            try:
                results.append(_access(self.envs[k], kind, name, args, kwargs))
            except BaseException as error:
                raise self._error(error, k, "call") from error
        return results

    def close(self) -> None:
        """Close every env. One that fails to is warned about: there is nothing else to be done with it."""
        envs, self.envs = self.envs, []
        for k, env in enumerate(envs):
            self._at[0] = k
            try:
                env.close()
            except BaseException as error:
                self._pass_on(error)
                message = f"env {self.first_env + k}: {type(error).__name__} in close(): {text_of(error)}"
                warnings.warn(message, RuntimeWarning, stacklevel=2)

    @property
    def running(self) -> int:
        """Return the shard-local index of the env that is running, or ran last."""
        return int(self._at[0])

    def _collect(self, infos: Infos, found: Infos, k: int, out: Rows) -> None:
        offset = self._offsets[k]
        for agent, info in found.items():
            ended = out.terminated[agent] or out.truncated[agent]
            if self._keep == "all" or (self._keep == "episode" and ended) or "restarted" in info:
                infos[offset + agent] = info
            elif ended:
                kept: dict[str, Any] = {**numbers(info, self._names)}
                if "episode_log" in info:
                    kept["episode_log"] = info["episode_log"]
                if kept:
                    infos[offset + agent] = kept

    def _publish(self, slot: int) -> None:
        for shared, mine in self._publishing[slot]:
            shared[...] = mine

    def _failed(self, error: BaseException, k: int, phase: str, slot: int) -> Infos:
        """Raise what went wrong with env ``k``, or replace it and mark its episode truncated."""
        wrapped = self._error(error, k, phase)
        if self.on_error == "raise":
            raise wrapped from (None if wrapped is error else error)
        self.restarts += 1
        old = self.envs[k]
        try:
            old.close()
        except BaseException as again:  # it is being replaced because it is broken
            self._pass_on(again)
        try:
            fresh = self.factories[k]()
        except BaseException as again:
            raise self._error(again, k, "make") from again
        seed = None if self.seeds[k] is None else restart_seed(self.seeds[k], self.restarts)  # type: ignore[arg-type]
        self.seeds[k] = seed
        self.envs[k] = _Revived(self, k, fresh, seed)
        for rows in self._rows:
            rows[k].writer = None  # it belonged to the old env
        truncate(self._rows[slot][k], self._rows[1 - slot][k].obs, unscored=is_unscored(getattr(fresh, "metadata", None)))
        return {agent: {"restarted": "env", "error": str(wrapped)} for agent in range(fresh.num_agents)}

    def _pass_on(self, error: BaseException) -> None:
        """Raise ``error`` if it is not an env's doing: Ctrl-C or a time limit in the calling process, or anything in a process that an
        env has forked, which is not this one's to go on in."""
        if os.getpid() != self._owner or (self.worker is None and isinstance(error, KeyboardInterrupt | Expired)):
            raise error

    def _error(self, error: BaseException, k: int, phase: str) -> EnvError:
        """Return what env ``k`` raised as an EnvError, whatever it is."""
        self._pass_on(error)
        if isinstance(error, EnvError):
            return error
        text = "".join(traceback.format_exception(error))
        message = f"{type(error).__name__}: {text_of(error)}"
        env = self.first_env + k
        seeds = () if phase == "make" else (self.seeds[k],)
        return EnvError(
            message,
            worker=self.worker,
            envs=(env,),
            seeds=seeds,
            phase=phase,
            remote_traceback=text,
            cause=shared_class(error),
        )


class _Revived:
    """Stands in for a replaced env for one step: the action of the truncated row is ignored, the new env is reset."""

    observation_space: gs.Space
    action_space: gs.Space

    def __init__(self, shard: Shard, k: int, env: Env, seed: int | None) -> None:
        self._shard, self._k, self._env, self._seed = shard, k, env, seed
        self.num_agents = env.num_agents
        self.env = getattr(env, "env", env)

    def step(self, action: np.ndarray, out: Rows) -> Infos | None:
        self._shard.envs[self._k] = self._env
        return self._env.reset(self._seed, out)

    def reset(self, seed: int | None, out: Rows, **options: Any) -> Infos | None:
        self._shard.envs[self._k] = self._env
        return self._env.reset(seed, out, **options)

    def close(self) -> None:
        self._env.close()


def is_unscored(metadata: Mapping[str, Any] | None) -> bool:
    """Return True if rewards of such an env may be NaN, for episodes that nothing is to be learned from."""
    return bool((metadata or {}).get("unscored_rewards"))


def truncate(out: Rows, last_obs: np.ndarray, *, unscored: bool = False) -> None:
    """Mark rows whose env was lost: cut off, nothing gained (or no reward at all, where there is such a thing), the last observation
    known standing for the final one."""
    out.blank()
    out.obs[...] = last_obs
    out.truncated[...] = True
    if unscored:
        out.reward[...] = np.nan


def restart_seed(seed: int, restarts: int) -> int:
    """Return a seed for the env that replaces another: not the same, so that a seed that crashes is not tried again."""
    return int(np.random.SeedSequence([seed, restarts]).generate_state(1, np.uint32)[0] >> 1)


def _staged(shared: Rows) -> Rows:
    """Return rows with private small columns beside the large ones, which are shared."""
    large = large_ones(shared.columns)
    columns = {name: column if name in large else np.zeros_like(column) for name, column in shared.columns.items()}
    return Rows.of(columns, slice(0, len(shared.reward)))


def _access(env: Any, kind: str, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    inner = getattr(env, "env", env)
    if kind == "apply":
        function, *rest = args
        return function(inner, *rest, **kwargs)
    if kind == "set":
        setter = getattr(inner, "set_wrapper_attr", None)
        return setter(name, args[0]) if setter is not None else setattr(inner, name, args[0])
    getter = getattr(inner, "get_wrapper_attr", None)
    value = getter(name) if getter is not None else getattr(inner, name)
    return value(*args, **kwargs) if kind == "call" and (callable(value) or args or kwargs) else value


def text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return "(the error has no readable text)"
