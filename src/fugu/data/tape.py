"""``Tape``: turns the rows that a vector env shows step by step into whole episodes, and hands these to a ``Writer``.

In: before each step the rows that wait for an action, after it the actions and what they produced. Out: episodes in the order in
which they ended, agents of one step in their order, however often the tape is emptied: the same play writes the same bytes.

Steps lie in a ring, ``[steps, agents, ...]`` per column, which grows until the longest episode under way fits in. An agent's rows go
from one with ``first`` to the one after its ending; what lies between episodes, where an agent is not there, is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import psutil

from fugu.data import format
from fugu.data.format import DataError
from fugu.data.writer import Writer
from fugu.emulation.columns import outcomes
from fugu.emulation.stats import lost_agents

TOGETHER = 1 << 22
"""bytes of steps that are kept before the tape is emptied"""
AT_ONCE = 1 << 26
"""bytes of episodes that are written together"""
PATIENCE = 0.1
"""seconds that a complete episode waits until it is written, as long as there are steps; longer where writing is slow"""
FOREVER = 1 << 62


class Ended(NamedTuple):
    """Episodes that ended, ``[episodes]`` each."""

    start: np.ndarray
    end: np.ndarray
    """step of the last action"""
    agent: np.ndarray
    number: np.ndarray


class Tape:
    """Records ``writer.spec.num_agents`` agents in each of ``seeds`` environments. ``sources`` are what plays: episode ``number`` of
    environment ``env`` is of source ``(env + number * envs) % len(sources)``, so that all play alike often."""

    def __init__(self, writer: Writer, seeds: np.ndarray, sources: np.ndarray) -> None:
        spec = writer.spec
        self.writer, self.per_env, self.sources = writer, spec.num_agents, sources
        self.envs, self.count = len(seeds), len(seeds) * spec.num_agents
        self.share = np.full(self.count, FOREVER)
        """[agents] episodes of each that are kept, the first ones"""
        self.kept = np.zeros(self.count, np.int64)
        """[agents] episodes of each so far"""
        self.number = np.full(self.count, -1)
        """[agents] which episode is under way, or was last"""
        self.now = 0
        """steps so far; the rows that wait for actions are those of this step"""
        self._seeds = np.repeat(seeds, spec.num_agents)
        self._start = np.full(self.count, FOREVER)
        """[agents] first step of the episode under way"""
        self._over = np.full(self.count, -1)
        """[agents] step at which the last one ended"""
        self._done = 0
        """steps that were looked at for endings"""
        self._begun = 0
        """the same for beginnings, which the current step may have too"""
        self._lost: set[tuple[int, int]] = set()
        self._forms = writer.forms
        self._outcomes = outcomes([name for name in writer.forms if name != "action"])
        self._next = [name for name in writer.forms if name not in self._outcomes and name != "action"]
        self._row_bytes = format.row_bytes(writer.forms) + 1
        self._chunk = int(np.clip(TOGETHER // (self._row_bytes * self.count), 16, 512))
        self._capacity = 1 << (2 * self._chunk - 1).bit_length()
        self._columns = {name: self._made(name) for name in writer.forms}
        self._first = np.zeros((self._capacity, self.count), bool)
        self._gathered: dict[str, np.ndarray] = {}
        self._due = time.perf_counter() + PATIENCE

    def _made(self, name: str) -> np.ndarray:
        form = self._forms[name]
        return np.zeros((self._capacity, self.count, *form.shape), form.dtype)

    # --- step by step ---

    def see(self, rows: Mapping[str, np.ndarray]) -> None:
        """Take down the rows that wait for actions, columns by name."""
        slot = self.now & (self._capacity - 1)
        for name in self._next:
            self._columns[name][slot] = rows[name]
        self._first[slot] = rows["first"]
        if self.now - self._done >= self._chunk or time.perf_counter() > self._due:
            self.empty()

    def took(self, action: np.ndarray, rows: Mapping[str, np.ndarray], infos: Mapping[int, Mapping[str, object]]) -> None:
        """Take down the actions on the rows last seen, and what they produced."""
        slot = self.now & (self._capacity - 1)
        self._columns["action"][slot] = action
        for name in self._outcomes:
            self._columns[name][slot] = rows[name]
        if infos:
            self._lost.update((self.now, agent) for agent in lost_agents(infos))
        self.now += 1

    @property
    def enough(self) -> bool:
        """Return True if every agent has its share, or is not there while others of its environment have theirs."""
        short = self.kept < self.share
        if not short.any():
            return True
        gone = (self._start == FOREVER) & (self.now - self._over >= 3)
        others = np.repeat(self.number.reshape(self.envs, -1).max(1), self.per_env) >= self.share
        return bool((~short | (gone & others)).all())

    def finish(self) -> None:
        """Keep what is under way, and nothing that begins later."""
        self.empty()
        self.share = np.minimum(self.share, self.kept + (self._start != FOREVER))

    # --- whole episodes ---

    def empty(self) -> None:
        """Write the episodes that are complete. The rows of the current step must have been seen."""
        began, found = time.perf_counter(), self._ended()
        self._done, self._begun = self.now, self.now + 1
        at = 0
        rows = np.cumsum(found.end - found.start + 2)
        while at < len(found.start):
            before = rows[at - 1] if at else 0
            stop = max(at + 1, int(np.searchsorted(rows, before + AT_ONCE // self._row_bytes, side="right")))
            self._write(Ended(*(part[at:stop] for part in found)))
            at = stop
        self._make_room()
        over = time.perf_counter()
        self._due = over + max(PATIENCE, 20 * (over - began))  # so that it takes a twentieth of the time at most

    def _ended(self) -> Ended:
        """Return the episodes that ended since the last look and are to be kept, and note those that began."""
        terminated, truncated = self._columns["terminated"], self._columns["truncated"]
        end_agent, end = self._events(self._done, self.now, lambda slots: terminated[slots] | truncated[slots])
        # of the current step only whether an episode begins is known
        begin_agent, begin = self._events(self._begun, self.now + 1, lambda slots: self._first[slots])
        # the last beginning of an agent before its ending; those under way count as beginnings
        under_way = np.flatnonzero(self._start != FOREVER)
        agents = np.concatenate([under_way, begin_agent])
        starts = np.concatenate([self._start[under_way], begin])
        order = np.lexsort((starts, agents))
        agents, starts = agents[order], starts[order]
        fresh = (order >= len(under_way)).astype(np.int64)
        counted = np.cumsum(fresh)
        before = np.searchsorted(agents, np.arange(self.count))  # entries of agents below
        numbers = self.number[agents] + counted - np.concatenate([[0], counted])[before[agents]]
        span = self.now + 2
        which = np.searchsorted(agents * span + starts, end_agent * span + end, side="right") - 1
        fine = (which >= 0) & (agents[which] == end_agent) if len(agents) else np.zeros(len(end), bool)
        fine[1:] &= (which[1:] != which[:-1]) | ~fine[:-1]  # it has ended already
        which, end, end_agent = which[fine], end[fine], end_agent[fine]
        found = Ended(starts[which], end, end_agent, numbers[which])
        self._note(agents, starts, numbers, found)
        return self._chosen(found)

    def _events(self, start: int, stop: int, flags: Callable[[slice], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return agent and step of what ``flags`` marks in the steps from ``start`` to ``stop``, sorted by both."""
        agents, steps = [], []
        while start < stop:
            first = start & (self._capacity - 1)
            last = min(first + stop - start, self._capacity)  # the ring goes on at its beginning
            step, agent = np.divmod(np.flatnonzero(flags(slice(first, last))), self.count)
            agents.append(agent)
            steps.append(step + start)
            start += last - first
        agent, step = (np.concatenate([*parts, np.zeros(0, np.int64)]) for parts in (agents, steps))
        order = np.argsort(agent, kind="stable")
        return agent[order], step[order]

    def _note(self, agents: np.ndarray, starts: np.ndarray, numbers: np.ndarray, found: Ended) -> None:
        """Remember what is under way now."""
        self._start[agents] = starts  # in order: the last of each agent stays
        self.number[agents] = numbers
        self._over[found.agent] = found.end
        self._start[self._over >= self._start] = FOREVER

    def _chosen(self, found: Ended) -> Ended:
        """Return the episodes that count, in the order in which they ended."""
        if self._lost:
            whole = [(int(end), int(agent)) not in self._lost for end, agent in zip(found.end, found.agent, strict=True)]
            cut = np.array([agent for end, agent in self._lost if end < self.now], int)
            self._seeds[cut] = -1  # whatever plays there now began with another seed
            self._lost.clear()
            found = Ended(*(part[np.array(whole, bool)] for part in found))
        firsts = np.searchsorted(found.agent, found.agent)  # sorted by agent
        rank = np.arange(len(found.agent)) - firsts
        counts = self.kept[found.agent] + rank < self.share[found.agent]
        found = Ended(*(part[counts] for part in found))
        self.kept += np.bincount(found.agent, minlength=self.count)
        order = np.lexsort((found.agent, found.end))
        return Ended(*(part[order] for part in found))

    def _write(self, found: Ended) -> None:
        steps = found.end - found.start + 1
        lasts = np.cumsum(steps + 1) - 1
        size = self._capacity * self.count
        first = (found.start & (self._capacity - 1)) * self.count + found.agent
        jump = np.full(lasts[-1] + 1, self.count)  # each row of an agent lies a step after the one before
        jump[lasts - steps] = np.diff(first, prepend=0)
        jump[(lasts - steps)[1:]] -= steps[:-1] * self.count
        where = np.cumsum(jump)  # beyond the end of the ring it goes on at its beginning
        where[where >= size] -= size
        rows = {}
        alone = ("mask", "terminated", "truncated") if self.per_env == 1 else ()
        for name, column in self._columns.items():
            flat = column.reshape(-1, *column.shape[2:])
            into = self._gathered.get(name)
            if into is None or len(into) < len(where):  # memory that is used again is not fetched from the system again
                into = self._gathered[name] = np.empty((len(where) * 5 // 4, *column.shape[2:]), column.dtype)
            rows[name] = into[: len(where)]
            if name in alone:  # of an agent without others all is known: it acts until an ending
                rows[name][...] = name == "mask"
                rows[name][lasts - 1] = flat[where[lasts - 1]]
            else:  # clip: nothing to be checked, and twice as fast
                np.take(flat, where, axis=0, out=rows[name], mode="clip")
        for name in (*self._outcomes, "action", "mask"):
            rows[name][lasts] = 0
        if not alone and np.count_nonzero(rows["mask"]) < len(where) - len(lasts):
            rows["action"][~rows["mask"]] = 0
        env = found.agent // self.per_env
        self.writer.add_many(
            rows,
            steps,
            terminated=rows["terminated"][lasts - 1],
            truncated=rows["truncated"][lasts - 1],
            source=self.sources[(env + found.number * self.envs) % len(self.sources)],
            seed=self._seeds[found.agent],
            number=found.number,
            agent=found.agent % self.per_env,
        )

    def _make_room(self) -> None:
        """Let the ring grow if the episodes under way would not fit in with what comes before it is emptied again."""
        wanted = (self._start != FOREVER) & (self.kept < self.share)
        oldest = int(self._start[wanted].min()) if wanted.any() else self.now
        needed = self.now - oldest + self._chunk + 2
        if needed <= self._capacity:
            return
        capacity = 1 << (needed - 1).bit_length()
        size, free = capacity * self.count * self._row_bytes, psutil.virtual_memory().available
        if size > free:
            raise DataError(
                f"episodes under way have {self.now - oldest:,} steps by now, and {self.count} agents of them need "
                f"{size / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free",
                fix="Use fewer environments (--num-envs), or give the environment a time limit",
            )
        kept = np.arange(max(self.now - self._capacity + 1, 0), self.now + 1)
        old, self._capacity = kept & (self._capacity - 1), capacity
        for name, column in self._columns.items():
            self._columns[name] = self._made(name)
            self._columns[name][kept & (capacity - 1)] = column[old]
        first, self._first = self._first, np.zeros((capacity, self.count), bool)
        self._first[kept & (capacity - 1)] = first[old]
