"""Episodes that were cut off because their environment or its worker was lost, and replaced: they are learned from like others that
were cut off, but are no episodes to count.

In: rows as they are received. Out: the experience with a column ``lost``, ``[segments, horizon]`` bool, if there was such a row or may
be one in what is recorded once.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fugu.emulation.env import Rows
from fugu.emulation.stats import lost_agents
from fugu.rollout.source import Experience
from fugu.vector.vecenv import VecEnv


class Lost:
    @classmethod
    def noted_in(cls, vec: VecEnv, *, static: bool = False) -> Lost | None:
        """Return where to note what ``vec`` loses; None if it replaces nothing. ``static``: the experience lies in the same memory each
        time, and so does what is added to it here."""
        return cls(static) if vec.config.on_error == "restart" else None

    def __init__(self, static: bool) -> None:
        self._static = static
        self._places: list[tuple[int, int]] = []
        self._column: Tensor | None = None

    def note(self, rows: Rows, place: slice, t: int) -> None:
        """Note what was lost in row ``t`` of the segments ``place``, whose outcome ``rows`` are."""
        if rows.infos:
            self._places += [(place.start + agent - rows.agents.start, t) for agent in lost_agents(rows.infos)]

    def marked(self, experience: Experience) -> Experience:
        """Return the experience with a mark on the rows noted since the last call, which end no episode that counts."""
        places, self._places = self._places, []
        batch, ended = experience.batch, experience.ended
        if ended is None or not (places or self._static):
            return experience
        marks = torch.zeros(batch["truncated"].shape, dtype=torch.bool)
        if places:
            marks[tuple(zip(*places, strict=True))] = True
        if self._column is None:
            self._column = torch.zeros_like(batch["truncated"])
        lost = self._column.copy_(marks)
        whole = (batch["terminated"] | batch["truncated"]) & ~lost
        ended.copy_(whole.any(1).view(-1, len(ended)).any(0))
        return replace(experience, batch=batch.also(lost=lost))
