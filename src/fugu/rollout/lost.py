"""Episodes that were cut off because their environment or its worker was lost, and replaced: they are learned from like others that
were cut off, but are no episodes to count.

In: rows as they are received. Out: the experience with a column ``lost``, ``[segments, horizon]`` bool, if there was such a row.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fugu.emulation.env import Rows
from fugu.emulation.stats import lost_agents
from fugu.rollout.source import Experience
from fugu.vector.vecenv import VecEnv


class Lost:
    @classmethod
    def noted_in(cls, vec: VecEnv) -> Lost | None:
        """Return where to note what ``vec`` loses; None if it replaces nothing."""
        return cls() if vec.config.on_error == "restart" else None

    def __init__(self) -> None:
        self._places: list[tuple[int, int]] = []

    def note(self, rows: Rows, place: slice, t: int) -> None:
        """Note what was lost in row ``t`` of the segments ``place``, whose outcome ``rows`` are."""
        if rows.infos:
            self._places += [(place.start + agent - rows.agents.start, t) for agent in lost_agents(rows.infos)]

    def marked(self, experience: Experience) -> Experience:
        """Return the experience with a mark on the rows noted since the last call, which end no episode that counts."""
        places, self._places = self._places, []
        if not places or experience.ended is None:
            return experience
        batch = experience.batch
        lost = torch.zeros(batch["truncated"].shape, dtype=torch.bool)
        lost[tuple(zip(*places, strict=True))] = True
        lost = lost.to(batch["truncated"].device)
        ended = (batch["terminated"] | batch["truncated"]) & ~lost
        return replace(experience, batch=batch.also(lost=lost), ended=ended.any(1).view(-1, len(experience.ended)).any(0))
