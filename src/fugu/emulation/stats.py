"""Episode statistics, in one place for every kind of environment: computed from the rows a vector env receives.

In: rows in the order they arrive. Out: ``infos[agent]["episode"] = {"r": return, "l": length, "t": seconds}`` on the row whose
``terminated`` or ``truncated`` is set, the keys Gymnasium uses, with ``"c": [cost, ...]`` where the environment has costs. A length
counts the rows an agent acted on.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fugu.emulation.env import EnvSpec, Rows
from fugu.emulation.infos import ALWAYS, numbers
from fugu.emulation.kinds import labels
from fugu.emulation.saved import check_form, unfit
from fugu.errors import ConfigError, did_you_mean

Drained = tuple[int, float, float, dict[str, float]]
"""episodes, their summed returns and lengths, and the sums of the environment's own named values and of its costs, by name"""

RUNNING = ("returns", "lengths", "costs")
"""the sums of ``EpisodeStats`` over episodes that have not ended"""

PATIENCE = 100
"""episodes without a name that was asked for, after which that is told of"""


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
    """name -> episodes whose last step's info had it as a number, and its mean over them; empty where the environments keep their
    statistics themselves, as those in C++ do"""
    agents: Mapping[str, tuple[int, float, float]] = MappingProxyType({})
    """name or kind of agents -> their episodes, mean return and mean length; empty where agents have no names"""


def together(logs: Sequence[EpisodeLog]) -> EpisodeLog:
    """Return the episodes of several looks as one look would have shown them."""
    if len(logs) == 1:
        return logs[0]

    def mean(numbers: Sequence[tuple[float, float]]) -> float:
        return sum(count * number for count, number in numbers) / max(sum(count for count, _ in numbers), 1)

    def means(kind: str) -> dict[str, float]:
        names = dict.fromkeys(name for log in logs for name in getattr(log, kind))
        return {name: mean([(log.episodes, getattr(log, kind).get(name, 0.0)) for log in logs]) for name in names}

    def counted(kind: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in dict.fromkeys(name for log in logs for name in getattr(log, kind)):
            rows = [getattr(log, kind)[name] for log in logs if name in getattr(log, kind)]
            parts = range(1, len(rows[0]))
            found[name] = (sum(row[0] for row in rows), *(mean([(row[0], row[part]) for row in rows]) for part in parts))
        return found

    return EpisodeLog(
        sum(log.episodes for log in logs),
        mean([(log.episodes, log.mean_return) for log in logs]),
        mean([(log.episodes, log.mean_length) for log in logs]),
        means("mean_values"),
        means("mean_costs"),
        counted("infos"),
        counted("agents"),
    )


def check_logged(names: Sequence[str], drained: Drained | None, spec: EnvSpec) -> None:
    """Refuse names that environments which keep their own statistics, and have ``drained`` them, do not log: they have no other
    infos."""
    if drained is None:
        return
    known = [name for name in drained[3] if name not in spec.costs]
    for name in names:
        if name not in known:
            raise ConfigError(
                f"{spec.name} says no {name!r} of an episode.{did_you_mean(name, known)} "
                + ("What it says is logged in any case; leave it out" if known else "It says nothing; leave it out")
            )


def lost_agents(infos: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """List the agents whose environment was lost in this step, and replaced: chance has cut their episode off."""
    return [agent for agent, info in infos.items() if "restarted" in info]


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

    def start(self, agents: slice | np.ndarray) -> None:
        """Begin an episode of each of ``agents``; what they had is forgotten."""
        self.returns[agents] = 0
        self.lengths[agents] = 0
        self.costs[agents] = 0
        self.started[agents] = time.perf_counter()

    def update(self, rows: Rows, acted: np.ndarray) -> None:
        """Add ``rows`` to the running episodes; ``acted`` is the mask of the rows before them."""
        agents = rows.agents
        self.returns[agents] += rows.reward
        self.lengths[agents] += acted
        if rows.cost is not None:
            self.costs[agents] += rows.cost
        ended = rows.terminated | rows.truncated
        if not ended.any():
            return
        if lost := lost_agents(rows.infos):  # no episodes to count, as those that a checkpoint cuts off
            ended[np.array(lost) - agents.start] = False
            self.start(np.array(lost))
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
            self.infos.add(info)
            # a new dict: the env may keep its own. Its own "episode", from a wrapper it has, stays
            rows.infos[agent] = {"episode": episode, **info}
            self.returns[agent] = 0
            self.lengths[agent] = 0
            self.costs[agent] = 0
            self.started[agent] = now

    def save(self) -> dict[str, np.ndarray]:
        """Return what the running episodes have come to so far, by name."""
        return {f"running {name}": getattr(self, name).copy() for name in RUNNING}

    def check(self, saved: Mapping[str, np.ndarray], of: str) -> None:
        """Refuse what claims to be from ``save`` and cannot be."""
        for name in RUNNING:
            if (part := f"running {name}") in saved:
                check_form(part, saved[part], getattr(self, name), of)
                if not np.isfinite(saved[part]).all() or (name == "lengths" and (saved[part] < 0).any()):
                    raise unfit(part, of, "holds no sums of an episode")

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

    def drain_by_agent(self) -> dict[str, tuple[int, float, float]]:
        """Return the same by agent and by kind, as in ``EpisodeLog.agents``."""
        return {} if self._labels is None else self._labels.drain()


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


class EpisodeInfos:
    """The sums over episodes that ended of numbers in the infos of their last steps: of ``names``, and of those that are always kept.

    A name's mean is over the episodes that had it as a finite number. A name that only some episodes have is told of once, and so is
    one that none has, though it was asked for.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = tuple(dict.fromkeys((*ALWAYS, *names)))
        self._asked = set(names)
        self._counts = np.zeros(len(self.names), np.int64)
        self._sums = np.zeros(len(self.names))
        self._episodes = 0
        """episodes so far that could have them"""
        self._had = np.zeros(len(self.names), np.int64)
        """how many of those had each"""
        self._told: set[str] = set()

    def add(self, info: Mapping[str, Any]) -> None:
        """Add an episode whose last step said ``info``."""
        for name, number in (numbers(info, self.names) if info else {}).items():
            k = self.names.index(name)
            self._counts[k] += 1
            self._sums[k] += number
            self._had[k] += 1
        self._episodes += 1

    def drain(self) -> dict[str, tuple[int, float]]:
        """Return, by name, how many episodes since the last call had it, and its mean over them."""
        self._tell()
        means = self._sums / np.maximum(self._counts, 1)
        found = {name: (int(self._counts[k]), float(means[k])) for k, name in enumerate(self.names)}
        self._counts[...] = 0
        self._sums[...] = 0
        return found

    def close(self) -> None:
        """Tell of the names that no episode had."""
        self._tell(patience=1)

    def _tell(self, patience: int = PATIENCE) -> None:
        """Warn, once each, of names that only some episodes have, and of those asked for that none has."""
        for name, had in zip(self.names, self._had.tolist(), strict=True):
            missing = self._episodes - had
            if name in self._told or missing <= 0:
                continue
            if had:
                why = "is a number in some episodes only; its mean is over those that have it"
            elif name in self._asked and self._episodes >= patience:
                why = "is a number in no episode; set it in the last step's info, or do not ask for it"
            else:
                continue
            self._told.add(name)
            # from this line and in the same words, so that the environments of evaluations do not say it once more
            warnings.warn(f"info[{name!r}] {why}", RuntimeWarning, stacklevel=1)
