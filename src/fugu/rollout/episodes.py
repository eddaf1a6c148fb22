"""Complete episodes in groups that begin alike: what GRPO learns from.

In: a ``VecEnv`` and, at each call, ``act``. Out: a ``Batch`` of one segment per agent, an episode from its first row to its last, and
beside the usual columns, once per segment,

    group    number of its group. ``Groups.size`` neighbouring environments are reset with the same seed, so they are in the same state,
             and will have the same luck: whatever chance does to one it does to all, as far as they act alike
    score    the return of the episode. NaN if it has none: a reward was NaN, or its environment failed and was replaced
    round    how often its group was drawn anew before: see ``Groups.rounds``

Rows after the end have ``mask=False``, and the batch is as long as its longest episode. One that has not ended after ``horizon`` rows
is truncated there. An environment that is done early plays on until the last is done, unobserved; in which order the batches of
the vector env come, and which members of a group end first, makes no difference to what is in which segment.

Every batch starts all environments anew, so that between two batches there is nothing to be saved but where seeds come from.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fugu.emulation.env import Rows
from fugu.emulation.stats import EpisodeLog
from fugu.errors import ConfigError
from fugu.rollout.acting import Actor, Carry, Forms, zeros
from fugu.rollout.batch import Batch, Segments, seen_of
from fugu.rollout.columns import PER_SEGMENT
from fugu.rollout.source import Clock, Experience, Source, Stopped
from fugu.vector.vecenv import VecEnv, means_of


@dataclass(frozen=True)
class Groups:
    """Requirements of an algorithm that compares episodes."""

    size: int
    """environments that begin alike"""
    rounds: int = 0
    """most times that groups not ``worth`` learning from are replaced by new ones"""
    worth: Callable[[Batch, int], Tensor] | None = None
    """function of a batch and its number of groups that returns which groups are worth learning from, ``[groups]`` bool; None: all"""


class Episodes(Source):
    vec: VecEnv

    def __init__(
        self,
        vec: VecEnv,
        horizon: int,
        groups: Groups,
        *,
        carry: Forms | None = None,
        device: torch.device | str = "cpu",
        clock: Clock | None = None,
    ) -> None:
        """``carry``: what the policy takes along from row to row."""
        if vec.num_envs % groups.size:
            near = -(-vec.num_envs // groups.size) * groups.size
            raise ConfigError(
                f"{vec.num_envs} environments are not whole groups of {groups.size}; try --vector.num-envs {near} or another "
                "--grpo.group-size"
            )
        self.vec, self.horizon, self.groups = vec, horizon, groups
        self.segments = vec.num_agents
        self.device = torch.device(device)
        self._clock = clock or nullcontext
        self._memory = Segments(vec, self.segments, horizon, self.device)
        self._carry = carry or {}
        self._once = PER_SEGMENT | self._carry.keys()
        self._group = group_of_agents(vec, groups.size)
        self._score = np.zeros(self.segments)
        self._done = np.zeros(self.segments, bool)
        self._seeds = torch.Generator()
        self._warned = False
        self._log = (0, 0.0, 0.0)
        """episodes, their returns and lengths, since the batch before"""

    @property
    def num_groups(self) -> int:
        return int(self._group.max()) + 1

    # --- a batch ---

    def next(self, actor: Actor, stop: Callable[[], bool] = bool) -> Experience:
        """Play an episode of every agent. ``stop`` is asked after every step; True raises ``Stopped``."""
        batch, played = self._chosen(actor, stop)
        log = self._drain()
        return Experience(batch, played, actor.version, lambda: log)

    def _chosen(self, actor: Actor, stop: Callable[[], bool]) -> tuple[Batch, int]:
        """Return a batch in which groups that are not ``worth`` it have been replaced, and the number of rows played."""
        batch = self._play(actor, stop)
        worth, played = self.groups.worth, int(batch["mask"].sum())
        if self.groups.rounds == 0 or worth is None:
            return batch, played
        wanted = ~worth(batch, self.num_groups)
        batch = Batch({name: column.clone() for name, column in batch.columns.items()}, self._once)
        for number in range(1, self.groups.rounds + 1):
            if not wanted.any():
                break
            fresh = self._play(actor, stop)
            played += int(fresh["mask"].sum())
            found = worth(fresh, self.num_groups).nonzero().squeeze(1)
            taken = wanted.nonzero().squeeze(1)[: len(found)]
            batch = _replaced(batch, fresh, self._group, taken, found[: len(taken)], number)
            wanted[taken] = False
        return batch, played

    def _play(self, actor: Actor, stop: Callable[[], bool]) -> Batch:
        """Play one episode of every agent, into memory that the next call overwrites."""
        for name in ("mask", "terminated", "truncated", "reward"):
            self._memory.written[name].zero_()
        self._score[:], self._done[:] = 0, False
        self._memory.begin()
        time = {group.start: 0 for group in self.vec.groups}
        carry: dict[int, Carry | None] = {}
        open_groups = len(time)
        with self._clock("env"):
            self.vec.async_reset(self._starts())
        while open_groups:
            with self._clock("env"):
                rows = self.vec.recv()
            t, start = time[rows.agents.start], rows.agents.start
            if t:
                self._write_outcome(rows, t - 1)
            self._note_failures(rows)
            if t == self.horizon or self._done[rows.agents].all():
                self.vec.park()
                open_groups -= 1
                continue
            if t == 0:
                carry[start] = zeros(self._carry, rows.agents.stop - rows.agents.start, self.device) or None
            carry[start] = self._act(rows, t, actor, carry[start])
            time[start] = t + 1
            if stop():
                raise Stopped
        return self._finished(max(time.values()))

    def _act(self, rows: Rows, t: int, actor: Actor, carry: Carry | None) -> Carry | None:
        """Send actions for ``rows`` and keep them. Returns the carry."""
        agents = rows.agents
        with self._clock("inference"):
            seen = seen_of(rows, carry, self.device)
            done = actor.act(seen)
        with self._clock("env"):
            self.vec.send(done.env_action.cpu().numpy())
        with self._clock("copy"):
            self._memory.keep_next(rows, agents, t, masked=seen.action_mask is not None)
            self._memory.arrays["mask"][agents, t] &= ~self._done[agents]
            self._memory.keep_acted(done.columns, agents, t)
        return done.carry

    def _write_outcome(self, rows: Rows, t: int) -> None:
        """Write the outcome of the last actions, for agents whose episode still runs; the last row there is room for is an end."""
        agents, arrays = rows.agents, self._memory.arrays
        on = ~self._done[agents]
        self._memory.keep_outcome(rows, agents, t)
        self._score[agents] += np.where(on, rows.reward, 0.0)
        for name in self._memory.outcome:
            arrays[name][agents, t][~on] = 0
        arrays["terminated"][agents, t] = rows.terminated & on
        arrays["truncated"][agents, t] = (rows.truncated | (~rows.terminated & (t == self.horizon - 1))) & on
        self._done[agents] |= rows.terminated | rows.truncated

    def _warn_if_none_ended(self) -> None:
        if not self._done.any() and not self._warned:
            self._warned = True
            warnings.warn(
                f"none of {self.segments} episodes ended within horizon={self.horizon}: they are compared by what they got so far. "
                f"If they are longer, try --horizon {4 * self.horizon}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _note_failures(self, rows: Rows) -> None:
        """Note environments that were replaced: the return of such an episode is unknown, and the next one begins elsewhere."""
        for agent, info in rows.infos.items():
            if "restarted" in info:
                env = next(part for part in self.vec.env_agents if part.start <= agent < part.stop)
                ended = self._memory.written["terminated"][env].any(1).numpy()  # before it failed
                self._score[env] = np.where(self._done[env] & ended, self._score[env], np.nan)
                self._done[env] = True

    def _finished(self, rows: int) -> Batch:
        score = torch.from_numpy(self._score.astype(np.float32))
        self._warn_if_none_ended()
        scored = ~np.isnan(self._score)
        lengths = self._memory.arrays["mask"].sum(1)
        count, returns, length = self._log
        self._log = (
            count + int(scored.sum()),
            returns + float(self._score[scored].sum()),
            length + float(lengths[scored].sum()),
        )
        columns = {name: column[:, :rows] for name, column in self._memory.columns().items()}
        first_carry = zeros(self._carry, self.segments, self.device)
        found = {"group": self._group, "score": score, "round": torch.zeros_like(self._group)}
        return Batch({**columns, **first_carry, **found}, self._once)

    def _starts(self) -> list[int | None]:
        """Return the seed of every environment: the same one for all of a group."""
        count = self.vec.num_envs // self.groups.size
        return torch.randint(2**31, (count,), generator=self._seeds).repeat_interleave(self.groups.size).tolist()

    def _drain(self) -> EpisodeLog:
        """Return the episodes of all rounds since the last call. Values that environments log by name, and costs, are means that
        also include the episodes played after an environment was done; they are unknown if all episodes were cut off."""
        whole = self.vec.drain_log()
        log, self._log = self._log, (0, 0.0, 0.0)
        means = means_of((*log, {}))
        if not whole.episodes:
            return means
        return whole._replace(episodes=means.episodes, mean_return=means.mean_return, mean_length=means.mean_length)

    # --- starting and restarting ---

    def restart(self, seed: int) -> None:
        self._seeds.manual_seed(seed)
        self.vec.drain_log()
        self._log = (0, 0.0, 0.0)  # of a batch that was given up

    def snapshot(self) -> dict[str, Tensor]:
        return {"seeds": self._seeds.get_state()}

    def fits(self, saved: Mapping[str, Tensor]) -> bool:
        return "seeds" in saved

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self._seeds.set_state(saved["seeds"])


def group_of_agents(vec: VecEnv, size: int) -> Tensor:
    """Return ``[agents]``: the group of each. Agents of a world are in different groups: only the same agent of worlds that began
    alike is in the same place."""
    counts = {part.stop - part.start for part in vec.env_agents}
    if len(counts) > 1:
        raise ConfigError("environments with different numbers of agents cannot be compared; give all the same number")
    agent = torch.arange(vec.num_agents)
    each = counts.pop()
    return agent // each // size * each + agent % each


def _replaced(batch: Batch, fresh: Batch, group: Tensor, taken: Tensor, found: Tensor, number: int) -> Batch:
    """Return ``batch`` with the groups ``taken`` replaced by the groups ``found`` of ``fresh``; as long as the longer of the two."""
    rows = max(batch.horizon, fresh.horizon)
    into = torch.cat([(group == g).nonzero().squeeze(1) for g in taken.tolist()] or [group[:0]])
    out_of = torch.cat([(group == g).nonzero().squeeze(1) for g in found.tolist()] or [group[:0]])
    columns = {}
    for name in {**batch.columns, **fresh.columns}:
        old, new = (_grown(part.get(name), name, rows, batch, fresh) for part in (batch, fresh))
        old[into.to(old.device)] = new[out_of.to(new.device)]
        columns[name] = old
    columns["group"] = group
    columns["round"][into] = number
    return Batch(columns, batch.once)


def _grown(column: Tensor | None, name: str, rows: int, *batches: Batch) -> Tensor:
    """Return a copy of ``column`` with ``rows`` rows; if there is no such column, no actions were forbidden."""
    if column is None:
        assert name == "action_mask"
        like = next(batch[name] for batch in batches if name in batch)
        return torch.ones((like.shape[0], rows, like.shape[2]), dtype=torch.bool)
    if name in batches[0].once or column.shape[1] == rows:
        return column.clone()
    more = torch.zeros((column.shape[0], rows - column.shape[1], *column.shape[2:]), dtype=column.dtype, device=column.device)
    return torch.cat([column, more.fill_(True) if name == "action_mask" else more], 1)
