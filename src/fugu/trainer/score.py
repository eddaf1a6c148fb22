"""The score of a run: the mean return of its last episodes, without favour for those that end soon.

Agents start together, so the first hundred episodes to end are the shortest of many, and in many tasks those that went well, or
those that went badly. So episodes are counted in rounds: a round is over when each agent that acts has ended one in it. The score
is the mean over the last hundred episodes of whole rounds; a round of which only some are needed counts with its mean.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fugu.ranks import ALONE, Ranks
from fugu.rollout.source import Experience
from fugu.trainer.sound import put
from fugu.vector.vecenv import EpisodeLog

RECENT = 100
"""episodes that the score is the mean of"""
ENOUGH = 10
"""episodes per agent after which a round is over in any case: those still running are then too few to matter"""


class Score:
    def __init__(self, agents: int, device: torch.device, ranks: Ranks = ALONE) -> None:
        self._ranks = ranks
        self._acted = torch.zeros(agents, dtype=torch.bool, device=device)
        self._ended = torch.zeros_like(self._acted)
        """agents that have acted, and ended an episode, in this round"""
        self._round = (0, 0.0)
        """episodes that ended in this round, and the sum of their returns"""
        self._rounds: deque[tuple[int, float]] = deque()
        """the same of the last whole rounds, enough for RECENT episodes"""
        self.settled = False
        """True if a round has ended since the environments were started"""

    @property
    def value(self) -> float | None:
        """Return the score; None until there were ``RECENT`` episodes."""
        missing, total = RECENT, 0.0
        for count, returns in reversed(self._rounds):
            taken = min(count, missing)
            missing, total = missing - taken, total + returns * (taken / count)
        return None if missing else total / RECENT

    def see(self, experience: Experience) -> None:
        """Mark the agents that acted and those that ended, without the host. Batches of whole episodes need no marks."""
        for column, marks in ((experience.acted, self._acted), (experience.ended, self._ended)):
            if column is not None:
                marks.logical_or_(column.to(marks.device))

    def add(self, log: EpisodeLog) -> None:
        """Count the episodes that ended in what was seen since the last call."""
        if not log.episodes:
            return
        episodes, total = self._round[0] + log.episodes, self._round[1] + log.episodes * log.mean_return
        self._round = episodes, total
        late = self._acted & ~self._ended
        if episodes < max(RECENT, ENOUGH * len(late) * self._ranks.size) and self._ranks.any(bool(late.any())):
            return
        self._end()
        self.settled = True

    def restart(self) -> None:
        """Begin new rounds: the environments start anew, all together. If no round has ended since the last time, none ever might,
        so the episodes that have ended count as one."""
        if not self.settled and self._round[0]:
            self._end()
        self._begin()
        self.settled = False

    def _end(self) -> None:
        self._rounds.append(self._round)
        while sum(count for count, _ in self._rounds) - self._rounds[0][0] >= RECENT:
            self._rounds.popleft()
        self._begin()

    def _begin(self) -> None:
        self._round = 0, 0.0
        self._acted.zero_()
        self._ended.zero_()

    def tensors(self) -> dict[str, Tensor]:
        return {"acted": self._acted, "ended": self._ended}

    def state(self) -> dict[str, Any]:
        rounds = [list(each) for each in self._rounds]
        return {"mean": self.value, "rounds": rounds, "round": list(self._round), "settled": self.settled}

    def load(self, state: Mapping[str, Any] | None, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what was saved; count anew after an earlier version, which saved nothing."""
        if state is None:
            return
        self._rounds = deque((count, total) for count, total in state["rounds"])
        count, total = state["round"]
        self._round, self.settled = (count, total), state["settled"]
        for name, mine in (("acted", self._acted), ("ended", self._ended)):
            put(mine, tensors[name].bool(), f"score.{name}")


def all_episodes(log: EpisodeLog, ranks: Ranks = ALONE) -> EpisodeLog:
    """Return the episodes of all ranks together. All of them have environments of the same kind, so names are the same."""
    if ranks.size == 1:
        return log
    count = float(log.episodes)
    numbers = [log.mean_return, log.mean_length, *log.mean_values.values(), *log.mean_costs.values()]
    episodes, *sums = ranks.sum(torch.tensor([count, *(count * number for number in numbers)], dtype=torch.float64)).tolist()
    means = [total / max(episodes, 1) for total in sums]
    values = dict(zip(log.mean_values, means[2:], strict=False))
    costs = dict(zip(log.mean_costs, means[2 + len(values) :], strict=True))
    infos = {name: (int(had), total / max(had, 1)) for name, (had, total) in _summed(log.infos, ranks).items()}
    agents = {
        name: (int(had), total / max(had, 1), steps / max(had, 1))
        for name, (had, total, steps) in _summed(log.agents, ranks).items()
    }
    return EpisodeLog(int(episodes), means[0], means[1], values, costs, infos, agents)


def _summed(means: Mapping[str, tuple[float, ...]], ranks: Ranks) -> dict[str, list[float]]:
    """Return the counts of all ranks, each with the sums that the means beside it come from. Every rank has every name."""
    if not means:
        return {}
    own = [[count, *(count * mean for mean in rest)] for count, *rest in means.values()]
    return dict(zip(means, ranks.sum(torch.tensor(own, dtype=torch.float64)).tolist(), strict=True))
