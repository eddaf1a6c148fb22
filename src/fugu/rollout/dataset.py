"""Recorded episodes as a source: rows that were recorded earlier are drawn, and nothing is played.

Every step is as likely as any other to be the first of a segment. So an episode is drawn in proportion to its length, and the place in
it evenly. A segment that reaches the end of its episode is filled up with rows whose ``mask`` is False: the
final observation, again and again. They come last, so nothing that looks only back ever sees them.

Beside the columns of the recording a segment has those of a replay (``obs_after``, ``acts_after``, ``action_mask_after``), ``action``
as the policy would have drawn it and, if asked for, for each row

    time         steps since the episode began
    to_go        undiscounted sum of the rewards from this row to the end of the episode

A batch holds several minibatches, each of which counts as one step of the run: a gradient step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fugu.policy.distribution import Distribution
from fugu.ranks import ALONE, Ranks
from fugu.rollout.acting import Actor
from fugu.rollout.batch import Batch
from fugu.rollout.source import Experience, Source, Stopped

if TYPE_CHECKING:
    from fugu.data import DataSet

AFTER = {"obs": "obs_after", "mask": "acts_after", "action_mask": "action_mask_after"}
"""columns whose next value a segment has as well"""
PIECE = 4096
"""steps of a lane that are read at once"""
MINIBATCH = 256
"""rows of a gradient step, if nothing else is said"""


class Dataset(Source):
    def __init__(
        self,
        data: DataSet,
        *,
        horizon: int,
        minibatch: int | None = None,
        together: int = 1,
        to_go: bool = False,
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        """``horizon``: rows of a segment. ``minibatch``: rows of a gradient step; None: about ``MINIBATCH``, of the whole batch.
        ``together``: minibatches of a batch. ``to_go``: segments have ``time`` and ``to_go``."""
        self.data, self.horizon, self.device, self.ranks = data, horizon, device, ranks
        self.together = together if minibatch else 1
        self.segments = self.together * -(-(minibatch or MINIBATCH) // horizon)
        self._actions = Distribution(data.spec.action_space)
        self._names = [name for name in data.forms if name in ("obs", "mask", "reward", "terminated", "truncated")]
        self._names += [name for name in data.forms if name in ("action_mask", "cost")]
        self._ends = np.cumsum(data.lengths)
        """[episodes] steps up to the end of each episode"""
        self._left = rewards_to_go(data) if to_go else None
        self._random = torch.Generator()

    @property
    def played(self) -> int:
        return max(1, self.together // self.ranks.size)

    # --- a batch ---

    def next(self, actor: Actor, stop: Callable[[], bool] = bool) -> Experience:
        """Draw a batch. ``stop`` is asked once; True raises ``Stopped``."""
        if stop():
            raise Stopped
        episode, step = self._drawn()
        batch = self._batch(episode, step).to(self.device)
        return Experience(batch, self.together if self.ranks.rank == 0 else 0, actor.version)

    def _drawn(self) -> tuple[np.ndarray, np.ndarray]:
        """Return episode and step with which each segment begins."""
        total = int(self._ends[-1])
        place = torch.randint(total, (self.segments,), generator=self._random).numpy()
        episode = np.searchsorted(self._ends, place, side="right")
        return episode, place - (self._ends[episode] - self.data.lengths[episode])

    def _batch(self, episode: np.ndarray, step: np.ndarray) -> Batch:
        length = self.data.lengths[episode][:, None]
        time = step[:, None] + np.arange(self.horizon + 1)  # [segments, horizon + 1]
        rows = self.data.starts[episode][:, None] + np.minimum(time, length)
        here, inside = rows[:, :-1], time[:, :-1] < length
        columns = {name: self._taken(name, here) for name in self._names}
        columns["mask"] &= torch.from_numpy(inside)
        columns["first"] = torch.from_numpy(time[:, :-1] == 0)
        action = self._actions.env_action.inverse(self._taken("action", here))
        columns["action"] = action.to(self._actions.dtype)
        for name, after in AFTER.items():
            if name in columns:
                columns[after] = self._taken(name, rows[:, -1])
        if self._left is not None:
            columns["time"] = torch.from_numpy(time[:, :-1])
            columns["to_go"] = torch.from_numpy(np.where(inside, self._left[here], np.float32(0)))
        return Batch(columns)

    def _taken(self, name: str, rows: np.ndarray) -> Tensor:
        """Return a copy of these rows of a column."""
        found = torch.from_numpy(np.asarray(self.data.column(name))[rows])
        return found.float() if name == "reward" else found

    # --- starting, saving and going on ---

    def restart(self, seed: int) -> None:
        self._random.manual_seed(seed)

    def snapshot(self) -> dict[str, Tensor]:
        return {"random": self._random.get_state()}

    def fits(self, saved: Mapping[str, Tensor]) -> bool:
        return "random" in saved

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self._random.set_state(saved["random"])


def highest(data: DataSet, share: float) -> DataSet:
    """Return the ``share`` of the episodes that have the highest returns, at least one, in the order they had."""
    count = max(1, round(share * data.episodes))
    return data if count == data.episodes else data.select(np.sort(np.argsort(-data.returns, kind="stable")[:count]))


def rewards_to_go(data: DataSet) -> np.ndarray:
    """Return ``[rows of the file]`` float32, the sum of the rewards from each row to the end of its episode. Rows of episodes that are
    not selected, and last rows, hold 0."""
    reward = data.column("reward")
    left = np.zeros(len(reward), np.float32)
    for start, length in zip(data.starts.tolist(), data.lengths.tolist(), strict=True):
        left[start : start + length] = np.cumsum(reward[start : start + length][::-1], dtype=np.float64)[::-1]
    return left


def in_lanes(data: DataSet, lanes: int, most: int) -> Iterator[dict[str, Tensor]]:
    """Yield the rows of all episodes as a replay keeps what was played, ``[lanes, steps, ...]`` pieces that follow each other: episodes
    one after the other, in equal shares, of which the newest ``most`` steps of each lane. Episodes at the borders of lanes are cut."""
    actions = Distribution(data.spec.action_space)
    rows = np.concatenate(
        [np.arange(start, start + length + 1) for start, length in zip(data.starts, data.lengths, strict=True)]
    )
    first = np.zeros(len(rows), bool)
    first[np.cumsum(data.lengths + 1) - data.lengths - 1] = True
    each = len(rows) // lanes
    for begin in range(max(0, each - most), each, PIECE):
        place = np.arange(lanes)[:, None] * each + np.arange(begin, min(begin + PIECE, each))
        columns = {name: torch.from_numpy(np.asarray(data.column(name))[rows[place]]) for name in data.forms}
        columns["reward"] = columns["reward"].float()
        columns["action"] = actions.env_action.inverse(columns["action"]).to(actions.dtype)
        yield {**columns, "first": torch.from_numpy(first[place])}
