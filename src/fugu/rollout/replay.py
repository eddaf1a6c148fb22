"""Replay: rows that a source plays are kept in a ring, and batches are segments drawn from all that are there.

A batch is due for every ``batch rows / ratio`` rows that were played after the first ``start``: this is counted in whole numbers, so
that nothing is rounded, and a run that goes on counts on. The ``Experience`` of a batch has the rows that were played since the one
before it: 0 if it is only drawn again. Segments begin on rows where an agent acted. Beside its columns a segment has once

    obs_after, action_mask_after, acts_after    columns of the row after its last
    importance                                  weight of its rows, where chances are unequal
    the carry, by its names                     what the policy carried before its first row

``hand_back(priority=...)`` sets how likely segments are drawn from then on. ``hand_back(NAME=...)`` with a name of the carry,
``[segments, horizon or horizon + 1, ...]``, puts newer values of what is carried before these rows in place of the old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fugu.emulation.saved import unfit
from fugu.emulation.stats import EpisodeLog, together
from fugu.errors import ConfigError, FuguError
from fugu.ranks import ALONE, Ranks
from fugu.rollout.acting import Act, Actor, Acts, Forms, Seen, zeros
from fugu.rollout.agreed import agreed
from fugu.rollout.batch import Batch, Origin
from fugu.rollout.columns import PER_SEGMENT
from fugu.rollout.config import ReplayConfig
from fugu.rollout.priorities import SumTree
from fugu.rollout.recalled import Rows, check_priorities, counts_of, newest
from fugu.rollout.ring import Ring, row_bytes
from fugu.rollout.room import free_on, rows_of, shown
from fugu.rollout.source import Experience, Kept, Page, Source, no_episodes

if TYPE_CHECKING:
    from fugu.data import DataSet

BEFORE = "before "
"""prefix of the columns that keep the carry before each row"""
PAGE = 1 << 26
"""most bytes of a page"""
ROUNDS = 32
"""how often segments that begin where nobody acted are drawn anew"""
INDEX = 32
"""bytes for each row of a batch beside its columns: which row it is, and what chose it"""
IDLE = 1000
"""calls of the inner source in which nobody may have acted"""
DUE = 1000
"""batches that may be due at once in what a checkpoint holds"""


class Replay(Source):
    uniform = True

    def __init__(
        self,
        inner: Source,
        config: ReplayConfig,
        *,
        horizon: int,
        minibatch: int | None,
        acted: Forms,
        carry: Forms | None = None,
        data: DataSet | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """``inner``: plays; its batches are ``[agents, steps]``. ``horizon``: rows of the segments that are drawn. ``minibatch``: rows
        of a gradient step; None: of all that is due together. ``acted``, ``carry``: what the policy keeps of a row and takes along.
        ``data``: recorded episodes that it begins with."""
        assert inner.vec is not None
        self.inner, self.config, self.ranks, self.horizon, self.data = inner, config, ranks, horizon, data
        if data is not None and (carry or set(acted) != {"action"}):
            raise ConfigError(
                f"replay.data={config.data}: recorded episodes hold actions, and this policy keeps more of a row "
                f"({', '.join(sorted({*acted, *(carry or {})} - {'action'}))}); they are for --algorithm sac"
            )
        self.vec, self.device = inner.vec, inner.device
        agents = inner.vec.num_agents
        due = agents * inner.horizon * config.ratio
        rows = minibatch or due
        self.segments = max(1, max(1, due // rows) * rows // horizon)
        self.carry = dict(carry or {})
        spec = inner.vec.spec
        forms = rows_of(spec) | dict(acted) | {BEFORE + name: form for name, form in self.carry.items()}
        self._forms, self._acted = forms, acted
        self._row_bytes = row_bytes(forms)
        memory = torch.device("cpu") if config.memory == "cpu" else self.device
        capacity = config.size // agents
        if capacity < horizon + 2 or capacity < inner.horizon:
            least = agents * max(horizon + 2, inner.horizon)
            raise ConfigError(
                f"replay.size={config.size} leaves {capacity} rows for each of {agents} agents, too few for segments of {horizon} and "
                f"the row after them; try --replay.size {least} or more"
            )
        self.nbytes = agents * capacity * self._row_bytes
        self._check_memory(memory, agents * capacity)
        self._ring = Ring(agents, capacity, forms, memory)
        self._mask = np.zeros((agents, capacity), bool)
        """the ring's column, where segments are chosen"""
        self._tree = SumTree(agents * capacity) if config.priority > 0 else None
        self._highest = 1.0
        """highest priority so far: what new rows begin with"""
        self._random = torch.Generator()
        self._rows = 0
        """rows played, over all agents and ranks"""
        self._credit = 0
        """rows that may still be learned from"""
        self._untold = 0
        """rows played since the last experience"""
        self._drawn: tuple[np.ndarray, np.ndarray] | None = None
        """agent and first row of the segments of the last batch"""
        self._pages: list[tuple[int, int, Page]] = []
        """first row, row after the last, and page, of what has gone to checkpoints"""

    def _check_memory(self, memory: torch.device, rows: int) -> None:
        free = free_on(memory)
        if self.nbytes > free:
            fits = max(1, int(free / 2 / self._row_bytes))
            raise ConfigError(
                f"replay.size={self.config.size} takes {shown(self.nbytes)} of memory, {self._row_bytes:,} bytes a row, and "
                f"{shown(free)} are free; try --replay.size {_round(fits)}"
                + ("" if memory.type == "cpu" else " or --replay.memory cpu")
            )
        batch = self.segments * self.horizon
        if batch * (self._row_bytes + INDEX) > free:
            fits = max(1, int(self.config.ratio * free / 4 / (batch * (self._row_bytes + INDEX))))
            raise ConfigError(
                f"replay.ratio={self.config.ratio} makes batches of {batch:,} rows, which take "
                f"{shown(batch * (self._row_bytes + INDEX))} of memory, and {shown(free)} are free; try --replay.ratio {_round(fits)}"
            )
        self.note = (
            f"the replay takes up to {shown(self.nbytes)} of memory ({memory.type}) for {rows:,} rows, and as much on the disk, which "
            "checkpoints share"
        )

    @property
    def played(self) -> int:
        return max(1, self.segments * self.horizon // self.config.ratio)

    # --- a batch ---

    def next(self, actor: Actor, stop: Callable[[], bool] = bool) -> Experience:
        """Play until a batch is due, and draw it. ``stop`` is asked meanwhile; True raises ``Stopped``."""
        logs: list[Callable[[], EpisodeLog]] = []
        marks: list[tuple[Tensor | None, Tensor | None]] = []
        idle = 0
        wanted = self.segments * self.horizon * self.ranks.size
        while self._credit < wanted or self._ring.end <= self.horizon:
            found = agreed(self.ranks, lambda: self.inner.next(Actor(keeping(actor.act, self.carry), actor.version), stop))
            counted = self._keep(found)
            logs.append(found.episodes)
            marks.append((found.acted, found.ended))
            idle = 0 if counted else idle + 1
            if idle == IDLE:
                raise FuguError(f"no agent was to act in any row of {IDLE} batches in a row, so there is nothing to learn from")
        self._credit -= wanted
        batch = self._draw()
        played, self._untold = self._untold, 0
        log = (lambda: together([each() for each in logs])) if logs else no_episodes
        acted, ended = (_either([pair[i] for pair in marks]) for i in range(2))
        return Experience(batch, played, actor.version, log, acted, ended)

    def _keep(self, found: Experience) -> int:
        """Write what was played into the ring. Returns its rows, over all ranks."""
        ring, start = self._ring, self._ring.end
        ring.write(found.batch.columns)
        self._note(start)
        counted = int(self.ranks.sum(torch.as_tensor(found.rows)))
        before, self._rows = self._rows, self._rows + counted
        self._credit += self.config.ratio * max(0, self._rows - max(before, self.config.start))
        self._untold = self._untold + int(found.rows)
        return counted

    def _note(self, start: int) -> None:
        """Note where nobody acted in the rows from ``start`` on, and how likely segments begin with those that can begin one now."""
        ring = self._ring
        written = np.arange(max(start - 1, ring.begin), ring.end) % ring.capacity  # the row before may have become an end
        self._mask[:, written] = ring.columns["mask"][:, torch.from_numpy(written).to(ring.device)].cpu().numpy()
        if self._tree is None:
            return
        begins = np.arange(ring.agents)[:, None] * ring.capacity
        self._tree.set((begins + written).ravel(), 0.0)
        can = np.arange(max(start - self.horizon, ring.begin), ring.end - self.horizon) % ring.capacity
        weight = np.where(self._mask[:, can], self._highest**self.config.priority, 0.0)
        self._tree.set((begins + can).ravel(), weight.ravel())

    def _draw(self) -> Batch:
        agent, row = self._chosen()
        self._drawn = agent, row
        ring, horizon = self._ring, self.horizon
        where = torch.from_numpy(agent), torch.from_numpy(row)
        columns = ring.segments(*where, horizon)
        for name in self.carry:
            columns[name] = columns.pop(BEFORE + name)[:, 0]
        after = ring.flat(where[0], where[1] + horizon, 1)[:, 0]
        for name, kept in (("obs", "obs_after"), ("mask", "acts_after"), ("action_mask", "action_mask_after")):
            if name in ring.columns:
                columns[kept] = ring.columns[name].flatten(0, 1)[after]
        if self._tree is not None:
            columns["importance"] = self._importance(agent, row)
        batch = Batch(columns, PER_SEGMENT | self.carry.keys(), Origin(self.feedback))
        return batch if ring.device == self.device else batch.to(self.device)

    def _chosen(self) -> tuple[np.ndarray, np.ndarray]:
        """Return agent and first row of the segments of a batch."""
        ring, count = self._ring, self.segments
        starts = ring.end - ring.begin - self.horizon
        newest = min(count, round(self.config.newest * count))
        if self._tree is not None and self._tree.total > 0:
            offset = torch.rand(count - newest, dtype=torch.float64, generator=self._random).numpy()
            points = (np.arange(count - newest) + offset) / max(1, count - newest)
            agent, slot = np.divmod(self._tree.draw(points), ring.capacity)
            row = ring.begin + (slot - ring.begin) % ring.capacity
        else:
            agent, row = self._uniform(count - newest, starts)
        if newest:  # one segment after the other, the newest first, of every agent in turn
            number = np.arange(newest)
            latest = starts - 1 - self.horizon * (number // ring.agents) % starts
            agent = np.concatenate([number % ring.agents, agent])
            row = np.concatenate([ring.begin + latest, row])
        return agent, row

    def _uniform(self, count: int, starts: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows, each with the same chance, where an agent acted."""
        ring = self._ring

        def drawn(count: int) -> np.ndarray:
            return torch.randint(ring.agents * starts, (count,), generator=self._random).numpy()

        found = drawn(count)
        for _ in range(ROUNDS):
            idle = np.flatnonzero(~self._mask[found // starts, (ring.begin + found % starts) % ring.capacity])
            if not len(idle):
                break
            found[idle] = drawn(len(idle))
        return found // starts, ring.begin + found % starts

    def _importance(self, agent: np.ndarray, row: np.ndarray) -> Tensor:
        assert self._tree is not None
        weight = self._tree[agent * self._ring.capacity + row % self._ring.capacity]
        with np.errstate(divide="ignore"):
            found = (self._tree.count * weight / max(self._tree.total, 1e-300)) ** -self.config.correction
        found = np.where(weight > 0, found, 0.0)
        return torch.from_numpy((found / max(found.max(), 1e-300)).astype(np.float32)).to(self._ring.device)

    # --- what learning found ---

    def feedback(self, columns: Mapping[str, Tensor], segments: Tensor | None) -> None:
        """Take back priorities and newer values of the carry of the last batch."""
        if self._drawn is None:
            return
        which = slice(None) if segments is None else segments.cpu().numpy()
        agent, row = (each[which] for each in self._drawn)
        if "priority" in columns and self._tree is not None:
            found = columns["priority"].detach().double().cpu().numpy()
            found = np.where(np.isfinite(found), np.maximum(found, 1e-6), self._highest)
            self._highest = max(self._highest, float(found.max(initial=0)))
            index = agent * self._ring.capacity + row % self._ring.capacity
            found = np.where(self._tree[index] > 0, found**self.config.priority, 0.0)  # nobody acted: it stays as it is
            self._tree.set(index, found)
        for name in self.carry.keys() & columns.keys():
            values = columns[name].detach()
            flat = self._ring.flat(torch.from_numpy(agent), torch.from_numpy(row), values.shape[1])
            self._ring.replace(BEFORE + name, flat, values)

    # --- starting, saving and going on ---

    def close(self) -> None:
        self.inner.close()

    def waited(self) -> Mapping[str, float]:
        return self.inner.waited()

    def restart(self, seed: int) -> None:
        self.inner.restart(seed)
        if self._ring.end == 0:
            self._random.manual_seed(seed)
            self._begin_with_data()

    def _begin_with_data(self) -> None:
        """Keep what was recorded, as if it had been played; it counts neither as played nor as due."""
        if self.data is None:
            return
        from fugu.rollout.dataset import in_lanes

        for columns in in_lanes(self.data, self._ring.agents, self._ring.capacity):
            start = self._ring.end
            self._ring.write(columns)
            self._note(start)

    @property
    def can_snapshot(self) -> bool:
        return self.inner.can_snapshot

    def snapshot(self) -> dict[str, Tensor]:
        return self.inner.snapshot()

    def fits(self, saved: Mapping[str, Tensor]) -> bool:
        return self.inner.fits(saved)

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self.inner.restore(saved)

    def kept(self) -> Kept:
        ring = self._ring
        self._pages = [(first, last, page) for first, last, page in self._pages if last > ring.begin]
        start = max(ring.begin, self._pages[-1][1] if self._pages else 0)
        most = max(1, PAGE // (ring.agents * self._row_bytes))
        for first in range(start, ring.end, most):
            self._pages.append(self._page(first, min(first + most, ring.end), None))
        begin = self._pages[0][0] if self._pages else 0
        counts = [ring.agents, begin, ring.end, self._rows, self._credit, self._untold]
        tensors = {
            "counts": torch.tensor(counts),
            "random": self._random.get_state(),
            "highest": torch.tensor(self._highest, dtype=torch.float64),
        }
        slots = torch.arange(ring.begin, ring.end) % ring.capacity
        tensors |= {name: ring.columns[BEFORE + name][:, slots.to(ring.device)].cpu() for name in self.carry}
        if self._tree is not None:
            weights = self._tree[:].reshape(ring.agents, ring.capacity)
            tensors["weights"] = torch.from_numpy(weights[:, slots.numpy()])
        return Kept(tensors, [page for _, _, page in self._pages])

    def _page(self, first: int, last: int, file: Mapping[str, Any] | None) -> tuple[int, int, Page]:
        def columns() -> dict[str, Tensor]:
            found = self._ring.rows(max(first, self._ring.begin), last)
            return {name: column for name, column in found.items() if not name.startswith(BEFORE)}

        return first, last, Page(columns, file)

    def remember(self, tensors: Mapping[str, Tensor], pages: Iterable[Page]) -> None:
        ring = self._ring
        assert self.vec is not None
        of = f"{ring.agents} agents of {self.vec.spec.name}"
        counts = counts_of(tensors, ring.agents, self._most_due, of)
        forms = {name: form for name, form in self._forms.items() if not name.startswith(BEFORE)}
        rows = Rows(self.vec.spec, ring.agents, forms, self._acted, of)
        ring.end, self._pages = counts.begin, []
        for page in pages:
            first = ring.end
            ring.write(rows.checked(page.columns()))
            self._pages.append(self._page(first, ring.end, page.file))
        if ring.end != counts.end:
            raise unfit("replay counts", of, f"has rows up to {counts.end}, and the pages those up to {ring.end}")
        self._rows, self._credit, self._untold = counts.rows, counts.credit, counts.untold
        there = torch.arange(ring.begin, ring.end)
        slots, shape = there % ring.capacity, (ring.agents, len(there))
        check_priorities(tensors, shape, of)
        for name, (form, dtype) in self.carry.items():
            ring.columns[BEFORE + name][:, slots.to(ring.device)] = newest(tensors, name, (*shape, *form), dtype, of).to(
                ring.device
            )
        self._highest = float(tensors["highest"])
        self._random.set_state(tensors["random"])
        self._note(ring.begin)
        if self._tree is not None and "weights" in tensors:
            index = np.arange(ring.agents)[:, None] * ring.capacity + slots.numpy()
            weights = newest(tensors, "weights", shape, torch.float64, of).numpy()
            # a segment may be longer now: the newest rows begin none yet
            self._tree.set(index.ravel(), np.where(there.numpy() < ring.end - self.horizon, weights, 0.0).ravel())

    @property
    def _most_due(self) -> int:
        """Return more rows than may ever still be learned from, also where a training goes on with smaller batches."""
        played = self._ring.agents * self.inner.horizon * self.ranks.size
        return DUE * max(self.segments * self.horizon * self.ranks.size, self.config.ratio * played)


def keeping(act: Acts, carry: Forms) -> Acts:
    """Return what acts like ``act`` and also keeps, of every row, what was carried before it."""
    if not carry:
        return act

    def keep(seen: Seen) -> Act:
        done = act(seen)
        before = seen.carry or zeros(carry, len(seen.first), seen.first.device)
        return Act(done.env_action, done.carry, {**done.columns, **{BEFORE + name: before[name] for name in carry}})

    return keep


def _either(marks: list[Tensor | None]) -> Tensor | None:
    """Return which agents are marked in any of ``marks``."""
    found = [each for each in marks if each is not None]
    return None if not found else torch.stack(found).any(0)


def _round(number: int) -> int:
    """Return the number with all digits but the first set to 0."""
    return 10 ** (len(str(number)) - 1) * int(str(number)[0])
