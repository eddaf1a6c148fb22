"""``DataSet``: recorded episodes, as memory maps of their columns.

In: a folder of the fast form (``format.py``). Out: arrays ``[episodes]`` about the episodes, in memory, and ``[rows, ...]`` with their
rows, which the system reads when they are looked at. Row ``i`` holds an observation, the action taken on it, and the reward, ending
and cost that this action produced. Episode ``e`` has the rows ``starts[e]`` to ``starts[e] + lengths[e]``, both included: the last one
holds the final observation, with ``mask`` False.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fugu import files
from fugu.data import format
from fugu.data.format import DataError, fault
from fugu.emulation.columns import Form
from fugu.emulation.env import EnvSpec
from fugu.spaces import Layout

__all__ = ["DataError", "DataSet", "Problem"]


@dataclass(frozen=True)
class Problem:
    """Something in the rows that no training should see."""

    episode: int | None
    """which episode of the data set; None: the data set as a whole"""
    field: str
    """column, or part of the index"""
    what: str

    def __str__(self) -> str:
        place = "" if self.episode is None else f"episode {self.episode}, "
        return f"{place}{self.field}: {self.what}"


@dataclass(frozen=True, eq=False)
class DataSet:
    """Episodes that were recorded. Nothing in it changes; ``select`` gives others."""

    path: Path
    about: Mapping[str, Any]
    """what ``DATA.json`` says: ``recorded`` (environment, settings and the like), ``fugu`` (version), ``sources``"""
    spec: EnvSpec
    forms: Mapping[str, Form]
    """columns by name: shape and dtype of a row"""
    starts: np.ndarray
    """[episodes] int64; first row of each episode. Rows of an episode lie together, episodes of a selection need not"""
    lengths: np.ndarray
    """[episodes] int64; steps, one less than rows"""
    returns: np.ndarray
    """[episodes] float64; sum of the rewards, undiscounted"""
    terminated: np.ndarray
    """[episodes] bool; the last step ended the episode"""
    truncated: np.ndarray
    """[episodes] bool; the last step was cut off by a limit. An episode may be both, or, of foreign files, neither"""
    seeds: np.ndarray
    """[episodes] int64; seed of the environment's last reset with a seed, -1 if unknown"""
    numbers: np.ndarray
    """[episodes] int64; episodes that the environment had played since that reset. The agents of one play of a team share seed and
    number"""
    source: np.ndarray
    """[episodes] int32; which of ``sources`` played it"""
    agents: np.ndarray
    """[episodes] int32; which agent of its environment it was"""
    rows: int
    """rows in the columns, of all episodes of the file"""
    missing: str = ""
    """what an interrupted recording left behind besides complete episodes; nothing is read of it"""

    @classmethod
    def at(cls, path: Path, *, salvage: bool = False) -> DataSet:
        """Open the folder ``path``. A DataError names what is damaged in it, unless ``salvage``."""
        about = format.read_about(path)
        spec = format.spec_in(path, about)
        forms = format.forms_of(spec, reward=about["reward"], action_mask=about["action_mask"])
        records, rest = format.read_index(path)
        _check_records(path, about, spec, records)
        ends = np.cumsum(records["length"] + 1)
        closed = None if salvage else about.get("closed")
        if closed is not None and len(records) < closed:
            raise fault(
                path / format.INDEX,
                f"is damaged or cut off: {closed} episodes were recorded, {len(records)} can be read",
                episode=len(records),
                fix="fugu data FILE --salvage --out NEW keeps what is whole",
            )
        whole = _whole(path, forms, ends, tolerant=closed is None)
        missing = f"{rest} bytes of the index" if rest or whole < len(records) else ""
        records, ends = records[:whole], ends[:whole]
        index = {name: np.ascontiguousarray(records[name]) for name in RECORDS}
        starts = np.concatenate([[0], ends[:-1]]).astype(np.int64) if whole else np.zeros(0, np.int64)
        flags = {name: index.pop(name).astype(bool) for name in ("terminated", "truncated")}
        renamed: dict[str, Any] = {RECORDS[name]: column for name, column in index.items()}
        return cls(path, about, spec, forms, starts, **renamed, **flags, rows=int(ends[-1]) if whole else 0, missing=missing)

    # --- what is in it ---

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def episodes(self) -> int:
        return len(self.starts)

    @property
    def steps(self) -> int:
        return int(self.lengths.sum())

    @property
    def sources(self) -> Sequence[Mapping[str, Any]]:
        """Return the table of what played: by policy, checkpoint and noise."""
        return self.about["sources"]

    @property
    def obs_layout(self) -> Layout:
        """Return how an observation lies in a row of ``obs``."""
        return self.spec.obs_layout

    @property
    def action_layout(self) -> Layout:
        """Return how an action lies in a row of ``action``."""
        return self.spec.action_layout

    def column(self, name: str) -> np.ndarray:
        """Return a column, ``[rows, ...]``: a memory map, read-only. The same object each time."""
        return self._columns[name]

    @cached_property
    def _columns(self) -> dict[str, np.ndarray]:
        return {name: _mapped(self.path, form, self.rows) for name, form in self.forms.items()}

    def episode(self, number: int) -> dict[str, np.ndarray]:
        """Return the rows of one episode by column, ``[length + 1, ...]``: views."""
        start = int(self.starts[number])
        rows = slice(start, start + int(self.lengths[number]) + 1)
        return {name: column[rows] for name, column in self._columns.items()}

    # --- others made of it ---

    def select(self, episodes: Any) -> DataSet:
        """Return these episodes alone, given as indices or as ``[episodes]`` bool, in that order. No row is copied."""
        chosen = np.asarray(episodes)
        per_episode = {name: getattr(self, name)[chosen] for name in ("starts", *RECORDS.values(), "terminated", "truncated")}
        other = dataclasses.replace(self, **per_episode)
        other.__dict__["_columns"] = self._columns
        return other

    # --- whether it can be learned from ---

    def check(self, most: int = 20) -> list[Problem]:
        """Look at all rows, and return up to ``most`` problems, with episode and field; nothing if there is none."""
        from fugu.data.check import problems

        return problems(self, most)

    def require(self, spec: EnvSpec | None = None) -> None:
        """Raise a DataError that names file, episode and field unless all is well, and fits ``spec`` if that is given."""
        from fugu.data.check import refuse

        refuse(self, spec)


RECORDS = {
    "length": "lengths",
    "total": "returns",
    "seed": "seeds",
    "number": "numbers",
    "source": "source",
    "agent": "agents",
    "terminated": "terminated",
    "truncated": "truncated",
}
"""field of a record of the index -> attribute of a DataSet"""


def _check_records(path: Path, about: Mapping[str, Any], spec: EnvSpec, records: np.ndarray) -> None:
    """Refuse numbers that no recording has."""
    most = 1 << 48
    for name, low, high in (
        ("length", 1, most),
        ("source", 0, max(len(about["sources"]) - 1, 0)),
        ("agent", 0, spec.num_agents - 1),
        ("terminated", 0, 1),
        ("truncated", 0, 1),
    ):
        bad = np.flatnonzero((records[name] < low) | (records[name] > high))
        if len(bad):
            got = records[name][bad[0]]
            raise fault(path, f"is {got}, expected from {low} to {high}", episode=int(bad[0]), field=name)
    if records["length"].sum(dtype=np.float64) > most:
        raise fault(path, f"claims {records['length'].sum(dtype=np.float64):.2g} steps, which no disk holds", field="length")


def _whole(path: Path, forms: Mapping[str, Form], ends: np.ndarray, *, tolerant: bool) -> int:
    """Return how many episodes, whose rows end at ``ends``, the files of all columns have room for."""
    count = len(ends)
    for name, form in forms.items():
        file = path / format.column_file(name)
        try:
            with files.reading(file) as opened:
                size = opened.seek(0, 2)
        except OSError as error:
            raise fault(file, f"{error.strerror or error}", field=name) from None
        rows = size // format.itemsize(form) if format.itemsize(form) else int(ends[-1]) if count else 0
        fit = int(np.searchsorted(ends, rows, side="right"))
        if fit < count and not tolerant:
            raise fault(
                file,
                f"is cut off: {rows} of {int(ends[-1])} rows are there",
                episode=fit,
                field=name,
                fix="fugu data FILE --salvage --out NEW keeps the episodes before it",
            )
        count = min(count, fit)
    return count


def _mapped(path: Path, form: Form, rows: int) -> np.ndarray:
    shape = (rows, *form.shape)
    if 0 in shape:
        return np.zeros(shape, form.dtype)
    with files.reading(path / format.column_file(form.name)) as file:
        return np.memmap(file, form.dtype, "r", shape=shape)
