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

from fugu.emulation.env import EnvSpec, Rows
from fugu.emulation.episode_infos import EpisodeInfos
from fugu.emulation.kinds import labels
from fugu.errors import ConfigError, did_you_mean

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
    infos: Mapping[str, tuple[int, float]] = MappingProxyType({})
    """name -> episodes whose last step's info had it as a number, and its mean over them"""
    agents: Mapping[str, tuple[int, float, float]] = MappingProxyType({})
    """name or kind of agents -> their episodes, mean return and mean length; empty where agents have no names"""


def means_of(drained: Drained, costs: Sequence[str] = ()) -> EpisodeLog:
    """Divide the sums by the episodes. ``costs``: which of the named values are costs."""
    episodes, returns, lengths, values = drained
    many = max(episodes, 1)
    means = {name: total / many for name, total in values.items()}
    spent = {name: means.pop(name) for name in costs}
    return EpisodeLog(episodes, returns / many, lengths / many, means, spent)


def check_logged(names: Sequence[str], drained: Drained, spec: EnvSpec) -> None:
    """Refuse names that environments which keep their own statistics do not log: they have no other infos."""
    known = [name for name in drained[3] if name not in spec.costs]
    for name in names:
        if name not in known:
            raise ConfigError(
                f"episode_infos: {spec.name} logs no {name!r}.{did_you_mean(name, known)} "
                + ("What it logs is in the metrics in any case; leave it out" if known else "It logs nothing; leave it out")
            )


class EpisodeStats:
    """The running episodes of ``num_agents`` agents, and the sums over those that ended."""

    def __init__(
        self, num_agents: int, costs: Sequence[str] = (), infos: Sequence[str] = (), agent_names: Sequence[str] = ()
    ) -> None:
        """``infos``: numbers in the infos of last steps that are asked for. ``agent_names``: of the agents of each environment."""
        self.returns = np.zeros(num_agents, np.float64)
        self.lengths = np.zeros(num_agents, np.int64)
        self.started = np.zeros(num_agents, np.float64)
        self.names = tuple(costs)
        self.costs = np.zeros((num_agents, len(costs)), np.float64)
        self._ended_costs = np.zeros(len(costs), np.float64)
        self._ended = (0, 0.0, 0.0)
        self._logged: dict[str, float] = {}
        """sums of what environments log of their episodes, by name"""
        self.infos = EpisodeInfos(infos)
        self._labels = Labels(agent_names) if agent_names else None
        self._between = np.zeros(num_agents, np.bool_)
        """whose episode ended on the row before, so that nothing runs until the reset"""

    def start(self, agents: slice) -> None:
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
        if self._labels is not None:
            self._labels.add(over, self.returns[over], self.lengths[over])
        cut_off = any("restarted" in info for info in rows.infos.values())
        for i in np.flatnonzero(ended):
            agent = int(agents.start + i)
            episode: dict[str, Any] = {
                "r": float(self.returns[agent]),
                "l": int(self.lengths[agent]),
                "t": now - float(self.started[agent]),
            }
            if self.names:
                episode["c"] = self.costs[agent].tolist()
            info = rows.infos.get(agent, {})
            for name, number in info.get("episode_log", {}).items():
                self._logged[name] = self._logged.get(name, 0.0) + number
            self.infos.add(info, cut_off=cut_off)
            # a new dict: the env may keep its own. Its own "episode", from a wrapper it has, stays
            rows.infos[agent] = {"episode": episode, **info}
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

    def drain(self) -> EpisodeLog:
        """Return the means over the episodes that ended since the last call, and forget them."""
        ended, self._ended = self._ended, (0, 0.0, 0.0)
        costs = dict(zip(self.names, self._ended_costs.tolist(), strict=True))
        self._ended_costs[...] = 0
        logged, self._logged = self._logged, {}
        log = means_of((*ended, {**logged, **costs}), self.names)
        by_agent = {} if self._labels is None else self._labels.drain()
        return log._replace(infos=self.infos.drain(), agents=by_agent)


class Labels:
    """Sums over the episodes of the agents of each name and kind that is told apart (``kinds.labels``)."""

    def __init__(self, agent_names: Sequence[str]) -> None:
        self._places = {label: np.isin(np.arange(len(agent_names)), own) for label, own in labels(agent_names).items()}
        """label -> which agents of an environment it is about"""
        self._size = len(agent_names)
        self._sums = dict.fromkeys(self._places, (0, 0.0, 0.0))

    def add(self, agents: np.ndarray, returns: np.ndarray, lengths: np.ndarray) -> None:
        """Add the episodes of ``agents``, which have just ended."""
        place = agents % self._size
        for label, own in self._places.items():
            its = own[place]
            count, total, steps = self._sums[label]
            self._sums[label] = count + int(its.sum()), total + float(returns[its].sum()), steps + float(lengths[its].sum())

    def drain(self) -> dict[str, tuple[int, float, float]]:
        """Return by label the episodes since the last call, their mean return and their mean length."""
        sums, self._sums = self._sums, dict.fromkeys(self._places, (0, 0.0, 0.0))
        return {label: (count, total / max(count, 1), steps / max(count, 1)) for label, (count, total, steps) in sums.items()}
