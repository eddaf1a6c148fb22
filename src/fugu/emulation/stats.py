"""Episode statistics, in one place for every kind of environment: computed from the rows a vector env receives.

In: rows in the order they arrive. Out: ``infos[agent]["episode"] = {"r": return, "l": length, "t": seconds}`` on the row whose
``terminated`` or ``truncated`` is set, the keys Gymnasium uses, with ``"c": [cost, ...]`` where the environment has costs. A length
counts the rows an agent acted on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fugu.emulation.env import Rows

Drained = tuple[int, float, float, dict[str, float]]
"""episodes, their summed returns and lengths, and the sums of the environment's own named values and of its costs, by name"""

RUNNING = ("returns", "lengths", "costs")
"""the sums of ``EpisodeStats`` over episodes that have not ended"""


class EpisodeLog(NamedTuple):
    """Means over the episodes that ended since the last look."""

    episodes: int
    mean_return: float
    """0 where no episode ended"""
    mean_length: float
    mean_values: dict[str, float]
    """of the environment's own named values"""
    mean_costs: Mapping[str, float] = MappingProxyType({})
    """of what its steps cost, summed over an episode; empty where it has no costs"""


class EpisodeStats:
    """The running episodes of ``num_agents`` agents, and the sums over those that ended."""

    def __init__(self, num_agents: int, costs: Sequence[str] = ()) -> None:
        self.returns = np.zeros(num_agents, np.float64)
        self.lengths = np.zeros(num_agents, np.int64)
        self.started = np.zeros(num_agents, np.float64)
        self.names = tuple(costs)
        self.costs = np.zeros((num_agents, len(costs)), np.float64)
        self._ended_costs = np.zeros(len(costs), np.float64)
        self._ended = (0, 0.0, 0.0)
        self._logged: dict[str, float] = {}
        """sums of what environments log of their episodes, by name"""
        self._between = np.zeros(num_agents, np.bool_)
        """whose episode ended on the row before, so that nothing runs until the reset"""

    def start(self, agents: slice | np.ndarray) -> None:
        """Begin an episode of each of ``agents``; what they had is forgotten."""
        self.returns[agents] = 0
        self.lengths[agents] = 0
        self.costs[agents] = 0
        self.started[agents] = time.perf_counter()
        self._between[agents] = False

    def update(self, rows: Rows, acted: np.ndarray) -> None:
        """Add ``rows`` to the running episodes; ``acted`` is the mask of the rows before them."""
        agents = rows.agents
        self.returns[agents] += rows.reward
        self.lengths[agents] += acted
        if rows.cost is not None:
            self.costs[agents] += rows.cost
        ended = rows.terminated | rows.truncated
        if not ended.any():
            self._between[agents] = False
            return
        between = ended & ~rows.mask
        ended &= ~self._between[agents]  # a reset that failed ends what had not begun: no episode
        self._between[agents] = between
        now = time.perf_counter()
        over = np.flatnonzero(ended) + agents.start
        count, returns, lengths = self._ended
        self._ended = (
            count + len(over),
            returns + float(self.returns[over].sum()),
            lengths + float(self.lengths[over].sum()),
        )
        self._ended_costs += self.costs[over].sum(0)
        for i in np.flatnonzero(ended):
            agent = int(agents.start + i)
            episode: dict[str, Any] = {
                "r": float(self.returns[agent]),
                "l": int(self.lengths[agent]),
                "t": now - float(self.started[agent]),
            }
            if self.names:
                episode["c"] = self.costs[agent].tolist()
            for name, number in rows.infos.get(agent, {}).get("episode_log", {}).items():
                self._logged[name] = self._logged.get(name, 0.0) + number
            # a new dict: the env may keep its own. Its own "episode", from a wrapper it has, stays
            rows.infos[agent] = {"episode": episode, **rows.infos.get(agent, {})}
            self.returns[agent] = 0
            self.lengths[agent] = 0
            self.costs[agent] = 0
            self.started[agent] = now

    def save(self) -> dict[str, np.ndarray]:
        """Return what the running episodes have come to so far, by name."""
        return {f"running {name}": getattr(self, name).copy() for name in RUNNING}

    def load(self, saved: Mapping[str, np.ndarray]) -> None:
        """Go on with the episodes that were running when ``saved`` was made; without them, begin new ones."""
        self.start(slice(0, len(self.returns)))
        for name in RUNNING:
            if f"running {name}" in saved:
                getattr(self, name)[...] = saved[f"running {name}"]

    def drain(self) -> Drained:
        """Return what the episodes that ended since the last call come to, and forget them."""
        ended, self._ended = self._ended, (0, 0.0, 0.0)
        costs = dict(zip(self.names, self._ended_costs.tolist(), strict=True))
        self._ended_costs[...] = 0
        logged, self._logged = self._logged, {}
        return (*ended, {**logged, **costs})


def means_of(drained: Drained, costs: Sequence[str] = ()) -> EpisodeLog:
    """Divide the sums by the episodes. ``costs``: which of the named values are costs."""
    episodes, returns, lengths, values = drained
    many = max(episodes, 1)
    means = {name: total / many for name, total in values.items()}
    spent = {name: means.pop(name) for name in costs}
    return EpisodeLog(episodes, returns / many, lengths / many, means, spent)
