"""Complete episodes in groups that begin alike: what GRPO learns from.

In: a ``VecEnv`` and, at each call, ``act``. Out: a ``Batch`` of one segment per agent, an episode from its first row to its last, and
beside the usual columns, once per segment,

    group    number of its group. ``Groups.size`` neighbouring environments are reset with the same seed, so they are in the same state,
             and will have the same luck: whatever chance does to one it does to all, as far as they act alike
    score    the return of the episode. NaN if it has none: a reward was NaN, or its environment failed and was replaced
    round    how often its group was drawn anew before: see ``Groups.rounds``

Rows after the end have ``mask=False``, and the batch is as long as its longest episode. One that has not ended after ``horizon`` rows
is truncated there. An environment that is done early plays on until the last is done, and nobody looks; in which order the batches of
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
from fugu.errors import ConfigError
from fugu.rollout.batch import Batch
from fugu.rollout.onpolicy import FLAGS, Actor, Clock, Stopped
from fugu.spaces.views import TORCH_DTYPES
from fugu.vector.vecenv import EpisodeLog, VecEnv


@dataclass(frozen=True)
class Groups:
    """What an algorithm that compares episodes wants of them."""

    size: int
    """environments that begin alike"""
    rounds: int = 0
    """how often groups that are not ``worth`` learning from are replaced by new ones, at most"""
    worth: Callable[[Batch, int], Tensor] | None = None
    """of a batch and its number of groups: which groups are, ``[groups]`` bool; None: all"""


class Episodes:
    static = unattended = False

    def __init__(
        self,
        vec: VecEnv,
        horizon: int,
        groups: Groups,
        *,
        state_size: int = 0,
        device: torch.device | str = "cpu",
        clock: Clock | None = None,
    ) -> None:
        if vec.num_envs % groups.size:
            near = -(-vec.num_envs // groups.size) * groups.size
            raise ConfigError(
                f"{vec.num_envs} environments are not whole groups of {groups.size}; try --vector.num-envs {near} or another "
                "--grpo.group-size"
            )
        self.vec, self.horizon, self.groups = vec, horizon, groups
        self.device = torch.device(device)
        self._clock = clock or (lambda _: nullcontext())
        agents, layout = vec.num_agents, vec.obs_layout
        self._written: dict[str, Tensor] = {
            "obs": torch.zeros((agents, horizon, *layout.row_shape), dtype=TORCH_DTYPES[layout.dtype_name]),
            "reward": torch.zeros((agents, horizon)),
            **{name: torch.zeros((agents, horizon), dtype=torch.bool) for name in FLAGS},
        }
        """columns the environments fill, on the CPU"""
        self._arrays = {name: column.numpy() for name, column in self._written.items()}
        self._action_mask: Tensor | None = None
        """[agents, horizon, choices]; made when an environment first forbids something"""
        self._acted: dict[str, Tensor] = {}
        """columns the policy fills, where the learner is; made when the first act shows what they are"""
        self._first_state = torch.zeros((agents, state_size), device=self.device) if state_size else None
        self._group = group_of_agents(vec, groups.size)
        self._score = np.zeros(agents)
        self._done = np.zeros(agents, bool)
        self._seeds = torch.Generator()
        self._warned = False
        self._log = (0, 0.0, 0.0)
        """episodes, their returns and lengths, since the last look"""

    @property
    def segments(self) -> int:
        return self.vec.num_agents

    @property
    def num_groups(self) -> int:
        return int(self._group.max()) + 1

    # --- a batch ---

    def next(self, act: Actor, stop: Callable[[], bool] = bool) -> Batch:
        """An episode of every agent. ``stop`` is asked after every step; True raises ``Stopped``."""
        batch = self._play(act, stop)
        worth = self.groups.worth
        if self.groups.rounds == 0 or worth is None:
            return batch
        wanted = ~worth(batch, self.num_groups)
        batch = Batch({name: column.clone() for name, column in batch.columns.items()})
        for number in range(1, self.groups.rounds + 1):
            if not wanted.any():
                break
            fresh = self._play(act, stop)
            found = worth(fresh, self.num_groups).nonzero().squeeze(1)
            taken = wanted.nonzero().squeeze(1)[: len(found)]
            batch = _replaced(batch, fresh, self._group, taken, found[: len(taken)], number)
            wanted[taken] = False
        return batch

    def _play(self, act: Actor, stop: Callable[[], bool]) -> Batch:
        """One episode of every agent, in memory that the next call writes again."""
        for name in ("mask", "terminated", "truncated", "reward"):
            self._written[name].zero_()
        self._score[:], self._done[:] = 0, False
        if self._action_mask is not None:
            self._action_mask.fill_(True)
        forbidden = False
        time = {group.start: 0 for group in self.vec.groups}
        state: dict[int, Tensor | None] = {}
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
                state[start] = None if self._first_state is None else torch.zeros_like(self._first_state[rows.agents])
            state[start], forbade = self._act(rows, t, act, state[start])
            forbidden |= forbade
            time[start] = t + 1
            if stop():
                raise Stopped
        return self._finished(max(time.values()), forbidden)

    def _act(self, rows: Rows, t: int, act: Actor, state: Tensor | None) -> tuple[Tensor | None, bool]:
        """Send actions for ``rows`` and keep them. Returns the policy's memory, and whether actions were forbidden."""
        agents, mask = rows.agents, None
        if rows.action_mask is not None and not rows.action_mask.all():
            mask = torch.from_numpy(rows.action_mask).to(self.device)
        with self._clock("inference"):
            obs, first = torch.from_numpy(rows.obs).to(self.device), torch.from_numpy(rows.first).to(self.device)
            done = act(obs, state, first, mask)
        with self._clock("env"):
            self.vec.send(done.env_action.cpu().numpy())
        with self._clock("copy"):
            arrays = self._arrays
            arrays["obs"][agents, t] = rows.obs
            arrays["first"][agents, t] = rows.first
            arrays["mask"][agents, t] = rows.mask & ~self._done[agents]
            if mask is not None and self._action_mask is None:
                self._action_mask = torch.ones((self.segments, self.horizon, self.vec.num_choices), dtype=torch.bool)
            if mask is not None and self._action_mask is not None:
                self._action_mask.numpy()[agents, t] = rows.action_mask
            for name, column in done.columns.items():
                self._column(name, column)[agents, t] = column
        return done.state, mask is not None

    def _write_outcome(self, rows: Rows, t: int) -> None:
        """What the last actions produced, for those whose episode is still on; the last row there is room for is an end."""
        agents, arrays = rows.agents, self._arrays
        on = ~self._done[agents]
        self._score[agents] += np.where(on, rows.reward, 0.0)
        arrays["reward"][agents, t] = np.where(on, rows.reward, 0.0)
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
        """An environment that was replaced: what its episode would have come to is not known, and its next one begins elsewhere."""
        for agent, info in rows.infos.items():
            if "restarted" in info:
                env = next(part for part in self.vec.env_agents if part.start <= agent < part.stop)
                ended = self._written["terminated"][env].any(1).numpy()  # before it failed
                self._score[env] = np.where(self._done[env] & ended, self._score[env], np.nan)
                self._done[env] = True

    def _finished(self, rows: int, forbidden: bool) -> Batch:
        score = torch.from_numpy(self._score.astype(np.float32))
        self._warn_if_none_ended()
        scored = ~np.isnan(self._score)
        lengths = self._arrays["mask"].sum(1)
        count, returns, length = self._log
        self._log = (
            count + int(scored.sum()),
            returns + float(self._score[scored].sum()),
            length + float(lengths[scored].sum()),
        )
        columns = {name: column[:, :rows] for name, column in {**self._written, **self._acted}.items()}
        if forbidden and self._action_mask is not None:
            columns["action_mask"] = self._action_mask[:, :rows]
        if self._first_state is not None:
            columns["state"] = self._first_state
        return Batch({**columns, "group": self._group, "score": score, "round": torch.zeros_like(self._group)})

    def _starts(self) -> list[int | None]:
        """The seed of every environment: one for all of a group."""
        count = self.vec.num_envs // self.groups.size
        return torch.randint(2**31, (count,), generator=self._seeds).repeat_interleave(self.groups.size).tolist()

    def _column(self, name: str, like: Tensor) -> Tensor:
        if name not in self._acted:
            shape = (self.segments, self.horizon, *like.shape[1:])
            self._acted[name] = torch.zeros(shape, dtype=like.dtype, device=self.device)
        return self._acted[name]

    def drain_log(self) -> EpisodeLog:
        """The episodes of all rounds since the last call. What environments log by name, and what episodes cost, are means that
        also have those in them which nobody looked at; nothing of it is known where all were cut off."""
        whole = self.vec.drain_log()
        log, self._log = self._log, (0, 0.0, 0.0)
        means = EpisodeLog.of((*log, {}))
        return means._replace(mean_values=whole.mean_values, mean_costs=whole.mean_costs) if whole.episodes else means

    # --- starting and restarting ---

    def restart(self, seed: int) -> None:
        self._seeds.manual_seed(seed)
        self.vec.drain_log()

    can_snapshot = True
    """whatever the environments are: between two batches nothing of them is needed"""

    def snapshot(self) -> dict[str, Tensor]:
        return {"seeds": self._seeds.get_state()}

    def took(self, saved: Mapping[str, Tensor]) -> bool:
        return "seeds" in saved

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self._seeds.set_state(saved["seeds"])


def group_of_agents(vec: VecEnv, size: int) -> Tensor:
    """``[agents]``: the group of each. Agents of a world are in different ones: only the same agent of worlds that began alike is in
    the same place."""
    counts = {part.stop - part.start for part in vec.env_agents}
    if len(counts) > 1:
        raise ConfigError("environments with different numbers of agents cannot be compared; give all the same number")
    agent = torch.arange(vec.num_agents)
    each = counts.pop()
    return agent // each // size * each + agent % each


def _replaced(batch: Batch, fresh: Batch, group: Tensor, taken: Tensor, found: Tensor, number: int) -> Batch:
    """``batch`` with the groups ``taken`` replaced by the groups ``found`` of ``fresh``; as long as the longer of the two."""
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
    return Batch(columns)


def _grown(column: Tensor | None, name: str, rows: int, *batches: Batch) -> Tensor:
    """A copy of ``column`` with ``rows`` rows; where there is none, actions were not forbidden."""
    if column is None:
        assert name == "action_mask"
        like = next(batch[name] for batch in batches if name in batch)
        return torch.ones((like.shape[0], rows, like.shape[2]), dtype=torch.bool)
    if name in ("group", "score", "round", "state") or column.shape[1] == rows:
        return column.clone()
    more = torch.zeros((column.shape[0], rows - column.shape[1], *column.shape[2:]), dtype=column.dtype, device=column.device)
    return torch.cat([column, more.fill_(True) if name == "action_mask" else more], 1)
