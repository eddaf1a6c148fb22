"""Step many environments together: ``reset``/``step``, or ``async_reset``/``recv``/``send``.

``recv`` returns the ``Rows`` of one batch (views, valid until the second ``recv`` of that batch after it); ``send`` takes the
actions for the rows last received. With one batch ``reset`` and ``step`` do both in one call. The backend behind it only runs
shards; the order of batches, episode statistics and the state of the conversation are kept here.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np

from fugu.emulation.env import Infos, Rows
from fugu.emulation.saved import no_valid
from fugu.emulation.stats import Drained, EpisodeLog, EpisodeStats, check_logged
from fugu.errors import CallOrderError, ConfigError, EnvTimeout, WorkerDied
from fugu.vector.config import VectorConfig
from fugu.vector.runner import RESET, STEP, Options, Runner, chosen_envs
from fugu.vector.seeds import chosen_seeds
from fugu.vector.snapshot import checked, put, taken

CLOSED = "this vector env is closed"


class VecEnv:
    """``num_envs`` environments with ``num_agents`` agents in all, stepped by ``runner``."""

    def __init__(self, runner: Runner, config: VectorConfig) -> None:
        self.config = config
        self.spec = runner.spec
        self.num_envs = config.num_envs
        self.num_agents: int = runner.env_agents[-1].stop
        self.env_agents = runner.env_agents
        self.observation_space, self.action_space = self.spec.observation_space, self.spec.action_space
        """of one agent"""
        self.obs_layout, self.action_layout = runner.buffers.obs_layout, runner.buffers.action_layout
        self._runner, self._buffers = runner, runner.buffers
        self._groups = self.groups = tuple(runner.group_agents)
        """the agents of each batch that ``recv`` returns"""
        self.stepping_at_once = max(1, len(self.groups) // 2) if runner.shares_workers else len(self.groups)
        """batches to have under way while others are acted on: half, where the same threads, or the caller, step them all;
        all, where each has workers of its own, which would stand idle"""
        self._rows = runner.buffers.rows
        mask = self._rows[0][0].action_mask
        self.num_choices: int = 0 if mask is None else mask.shape[1]
        """columns of the action mask"""
        drained = runner.drain()
        self.episode_stats = drained is None or config.infos in ("all", "episode")
        """whether the infos of a step that ends an episode get ``episode``"""
        self._stats = EpisodeStats(self.num_agents, self.spec.costs, config.episode_infos, self.spec.agent_names)
        check_logged(config.episode_infos, drained, self.spec)
        count = len(self._groups)
        self._slot = [0] * count
        self._running: list[int] = []
        self._received: int | None = None
        self._parked: list[int] = []
        self._served = [0] * count
        self._fresh: list[bool | np.ndarray] = [True] * count
        """whether the rows to come begin episodes, of all agents of the batch or of some"""
        self._broken: BaseException | None = None
        self._closed = False
        self._in_turn = config.order == "pipelined"
        self._only = self._rows[0]
        """both slots of the only batch, where there is one"""
        self._at_once = runner.step_now if count == 1 else None
        """steps the only batch in one call"""

    # --- all environments at once ---

    def reset(self, seed: int | Sequence[int | None] | None = None, options: Options = None) -> tuple[np.ndarray, Infos]:
        """Start all environments anew. Returns ``(obs, infos)``; ``obs`` is ``[num_agents, *row_shape]``."""
        self._one_batch("reset")
        self.async_reset(seed, options)
        rows = self.recv()
        return rows.obs, rows.infos

    def reset_some(
        self, envs: np.ndarray, seed: int | Sequence[int | None] | None = None, options: Options = None
    ) -> tuple[np.ndarray, Infos]:
        """Start the environments anew where ``envs``, ``[num_envs]`` bool, is True. All others keep their rows."""
        self._one_batch("reset_some")
        self._check_open()
        if self._received is None:
            raise CallOrderError("reset_some() before reset(): there are no rows to keep")
        chosen_seeds(seed, self._buffers.seeds, only=envs)
        self._fresh[0] = np.repeat(envs, [agents.stop - agents.start for agents in self.env_agents])
        self._slot[0] ^= 1
        self._received = None
        self._start(0, RESET, options)
        rows = self.recv()
        return rows.obs, rows.infos

    def step(self, action: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Infos]:
        """Step all environments. Returns Gymnasium's ``(obs, reward, terminated, truncated, infos)`` with a leading axis of agents."""
        if self._at_once is not None and self._received is not None:
            slot = self._slot[0] ^ 1
            try:
                if self._at_once(action, slot):
                    self._slot[0] = slot
                    rows = self._only[slot]
                    rows.infos = {}
                    if self.episode_stats:
                        self._stats.update(rows, acted=self._only[slot ^ 1].mask)
                    return rows.obs, rows.reward, rows.terminated, rows.truncated, rows.infos
            except (TypeError, ValueError):  # what it refuses
                if action is not None:
                    raise
            except BaseException as error:  # of a signal's handler: the step may have been made, and nobody has seen it
                self._broken, self._received = error, None
                raise
        self._one_batch("step")
        if self._received is None and not self._running:
            self._check_open()
            self._check_whole()
            raise CallOrderError("step() before reset(): call reset() first")
        self.send(action)
        rows = self.recv()
        return rows.obs, rows.reward, rows.terminated, rows.truncated, rows.infos

    # --- batch by batch ---

    def async_reset(self, seed: int | Sequence[int | None] | None = None, options: Options = None) -> None:
        """Set all environments to resetting; ``recv`` then returns the batches. Without ``seed``: the config's, the first time."""
        self._check_open()
        self._drain()
        if seed is None and not any(self._served):
            seed = self.config.seed
        chosen_seeds(seed, self._buffers.seeds)
        self._received = None
        self._parked.clear()
        for group in range(len(self._groups)):
            self._slot[group] ^= 1
            self._served[group] = 0
            self._fresh[group] = True
            self._start(group, RESET, options)

    def recv(self) -> Rows:
        """Wait for a batch: the next in turn, or the first that is finished (``order``)."""
        if self._closed:
            raise CallOrderError(CLOSED)
        self._check_whole()
        if self._received is not None:
            raise CallOrderError("recv() again before send(): first send the actions for the batch received")
        if not self._running:
            raise CallOrderError("recv() before reset: call reset() or async_reset() first")
        try:
            group, infos = self._runner.finish(self._running[:1] if self._in_turn else self._waiting_for())
        except BaseException as error:
            self._broken = error
            if self._closed:
                raise CallOrderError("this vector env was closed while it waited") from error
            raise
        self._running.remove(group)
        self._received = group
        return self._deliver(group, infos)

    def send(self, action: Any) -> None:
        """Give the actions for the batch last received, and set it going."""
        if self._closed:
            raise CallOrderError(CLOSED)
        if self._received is None:
            raise CallOrderError("send() before recv(): there is no batch that waits for actions")
        group = self._received
        self._runner.take_actions(group, action, self._slot[group])
        self._slot[group] ^= 1
        self._received = None
        self._start(group, STEP)

    def park(self) -> None:
        """Put the batch last received aside and let others be received; its rows stay as they are until ``unpark``."""
        self._check_open()
        if self._received is None:
            raise CallOrderError("park() before recv(): there is no batch that waits for actions")
        self._parked.append(self._received)
        self._received = None

    def unpark(self, agents: slice | None = None) -> Rows | None:
        """Take up the batch of these agents, or the one parked first, as if just received; None if there is none."""
        self._check_open()
        if self._received is not None:
            raise CallOrderError("unpark() before send(): first send the actions for the batch received")
        found = [group for group in self._parked if agents is None or self._groups[group].start == agents.start]
        if not found:
            return None
        self._parked.remove(found[0])
        self._received = found[0]
        return self._rows[self._received][self._slot[self._received]]

    def drain_log(self) -> EpisodeLog:
        """Return means over the episodes of all agents that ended since the last call."""
        drained, stats = self._runner.drain(), self._stats
        if drained is not None:
            return means_of(drained, self.spec.costs)
        return means_of(stats.drain(), self.spec.costs)._replace(infos=stats.infos.drain(), agents=stats.drain_by_agent())

    # --- saving and restoring ---

    @property
    def can_snapshot(self) -> bool:
        """Return True if the environments can be saved in the middle of their episodes."""
        return self._runner.can_snapshot

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return copies of the environments' states and of the rows that wait for actions. All batches must be parked."""
        self._check_open()
        self._check_can_snapshot()
        if self._running or len(self._parked) != len(self._groups):
            raise CallOrderError("snapshot() takes what waits for actions: recv() and park() every batch first")
        return taken(self._runner, self._slot, self._parked, self._stats if self.episode_stats else None)

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        """Go on where ``snapshot`` was taken, with every batch parked. The number of environments must be the same. A snapshot may
        come from anywhere: one that these environments cannot be in raises a ConfigError, and they stay as they are."""
        self._check_open()
        self._check_can_snapshot()
        snapshot = checked(saved, self._runner, self._stats, of=f"{self.num_envs} environments of {self.spec.name}")
        self._drain()
        put(snapshot, self._runner, self._slot, self._stats)
        self._received = None
        self._parked = snapshot.parked
        self._served = [1] * len(self._groups)
        self._fresh = [False] * len(self._groups)

    # --- the environments themselves ---

    def get_attr(self, name: str, envs: Sequence[int] | None = None) -> list[Any]:
        """Return an attribute of each environment."""
        return self.access("get", name, (), {}, envs)

    def set_attr(self, name: str, values: Any, envs: Sequence[int] | None = None) -> None:
        """Set an attribute of each environment: one value for all, or a list with one per environment."""
        chosen = chosen_envs(envs, self.num_envs)
        several = isinstance(values, list | tuple)
        if several and len(values) != len(chosen):
            raise ConfigError(f"set_attr({name!r}): {len(values)} values for {len(chosen)} environments")
        for which, value in zip([[i] for i in chosen], values, strict=True) if several else [(chosen, values)]:
            self.access("set", name, (value,), {}, which)

    def call(self, name: str, *args: Any, envs: Sequence[int] | None = None, **kwargs: Any) -> list[Any]:
        """Call a method of each environment and return what they returned."""
        return self.access("call", name, args, kwargs, envs)

    def render(self, envs: Sequence[int] | None = None) -> list[Any]:
        """Return what ``render()`` of each environment returns."""
        return self.access("call", "render", (), {}, envs)

    def access(self, kind: str, name: str, args: Any, kwargs: dict[str, Any], envs: Sequence[int] | None) -> list[Any]:
        """Get, set, call or apply something to each of ``envs``; the methods above are made of it."""
        self._check_open()
        if self._broken is not None:
            self._drain()
        if self._running:
            raise CallOrderError(f"{name!r}: the environments are stepping; recv() all batches first")
        try:
            return self._runner.call(kind, name, args, kwargs, chosen_envs(envs, self.num_envs))
        except (EnvTimeout, WorkerDied) as error:
            self._broken = error
            raise

    # --- memory ---

    def views(self, obs: np.ndarray) -> Any:
        """Return rows of observations in the space's own structure; every array is a view."""
        return self.obs_layout.views(obs)

    @property
    def rows(self) -> Rows:
        """Return all columns of the batch last received."""
        if self._received is None:
            raise CallOrderError("there are no rows before reset(), and none between send() and recv()")
        return self._rows[self._received][self._slot[self._received]]

    @property
    def action_mask(self) -> np.ndarray | None:
        """Return the mask of the batch last received, ``[agents, choices]``; ones where the environment does not restrict anything."""
        if self._received is None:
            return None
        return self._rows[self._received][self._slot[self._received]].action_mask

    @property
    def memory(self) -> np.ndarray:
        """Return the rows as bytes: in both slots, the columns of a batch lie in one piece."""
        return self._buffers.block

    @property
    def masks_actions(self) -> bool:
        """Return True if the environments may forbid actions."""
        return self.num_choices > 0 and self._runner.masks_actions

    @property
    def memory_bytes(self) -> int:
        """Return the size of the rows of all agents in bytes, both slots."""
        return self._buffers.nbytes

    @property
    def restarts(self) -> int:
        """Return how many environments and workers were replaced so far (``on_error="restart"``)."""
        return self._runner.restarts

    # --- the end ---

    def close(self) -> None:
        """End all environments and processes. Safe to call twice and in any state; takes at most a few seconds."""
        if not self._closed:
            self._closed = True
            self._at_once = None
            self._runner.close()
            self._stats.infos.close()

    def __enter__(self) -> VecEnv:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        c = self.config
        batches = "" if c.num_batches == 1 else f", {c.num_batches} batches {c.order}"
        kind = type(self._runner).__name__
        return f"VecEnv({self.spec.name}, {self.num_envs} envs, {self.num_agents} agents, {kind}{batches})"

    # --- inside ---

    def _start(self, group: int, command: int, options: Options = None) -> None:
        self._running.append(group)
        try:
            self._runner.start(group, command, self._slot[group], options)
        except BaseException as error:
            self._broken = error
            if isinstance(error, ConfigError):
                self._running.remove(group)  # refused before anything was set going
            raise

    def _deliver(self, group: int, infos: Infos) -> Rows:
        """Return the rows that a group has just written, with statistics in their infos."""
        self._served[group] += 1
        slot = self._slot[group]
        rows = self._rows[group][slot]
        rows.infos = infos
        if (fresh := self._fresh[group]) is not False:
            self._fresh[group] = False
            self._stats.start(rows.agents if fresh is True else fresh)
        elif self.episode_stats:
            self._stats.update(rows, acted=self._rows[group][1 - slot].mask)
        return rows

    def _waiting_for(self) -> list[int]:
        """List the running groups ``recv`` may return when the first finished is served first, best first."""
        least = min(self._running, key=self._served.__getitem__)
        if max(self._served) - self._served[least] >= self.config.max_lag:
            return [least]
        return sorted(self._running, key=self._served.__getitem__)

    def _drain(self) -> None:
        """Let whatever is still running finish; its results are dropped."""
        if isinstance(self._broken, EnvTimeout | WorkerDied):
            why = f"this vector env cannot go on after {type(self._broken).__name__}; close() it"
            raise CallOrderError(why) from self._broken
        while self._running:
            self._runner.abandon(self._running[0])
            del self._running[0]
        self._broken = None

    def _one_batch(self, name: str) -> None:
        if len(self._groups) > 1:
            raise CallOrderError(
                f"{name}() works on all environments at once, but batch_size={self.config.batch_size} makes "
                f"{len(self._groups)} batches: use async_reset(), recv() and send(), or leave batch_size out"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise CallOrderError(CLOSED)

    def _check_can_snapshot(self) -> None:
        if not self.can_snapshot:
            if self.config.backend == "native":
                raise no_valid(self.spec.name)
            raise ConfigError(f"{self.spec.name} with backend={self.config.backend!r} cannot be put into a saved state")

    def _check_whole(self) -> None:
        if self._broken is not None:
            raise CallOrderError("an earlier call did not finish; reset() or close() this vector env") from self._broken


def means_of(drained: Drained, costs: Sequence[str] = ()) -> EpisodeLog:
    """Divide the sums by the episodes. ``costs``: which of the named values are costs."""
    episodes, returns, lengths, values = drained
    many = max(episodes, 1)
    means = {name: total / many for name, total in values.items()}
    spent = {name: means.pop(name) for name in costs}
    return EpisodeLog(episodes, returns / many, lengths / many, means, spent)
