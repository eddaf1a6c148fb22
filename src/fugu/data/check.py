"""Look at all recorded rows, a few episodes at a time, for what no training should see.

In: a ``DataSet``. Out: problems with episode and field. Found are numbers that are NaN or infinite, choices and bits that do not
exist, actions that were forbidden or out of bounds, endings in the wrong place or nowhere, and returns that are not the sum of rewards.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from gymnasium import spaces as gs

from fugu.data.dataset import DataSet, Problem
from fugu.data.format import fault, row_bytes
from fugu.emulation.env import EnvSpec
from fugu.spaces import Layout

CHUNK = 1 << 25
"""bytes of rows that are looked at together"""


def problems(data: DataSet, most: int) -> list[Problem]:
    """Return up to ``most`` problems, in the order of episodes as they lie in the file."""
    if not data.episodes:
        return [Problem(None, "episodes", "there are none" + (f" (but {data.missing})" if data.missing else ""))]
    found: list[Problem] = []
    neither = np.flatnonzero(~data.terminated & ~data.truncated)
    found += [Problem(int(e), "terminated", "the last step neither ends nor cuts off the episode") for e in neither[:most]]
    for problem in _in_rows(data):
        if len(found) >= most:
            break
        found.append(problem)
    return found


def refuse(data: DataSet, spec: EnvSpec | None) -> None:
    """Raise a DataError about the first problem, or about what does not fit ``spec``."""
    if spec is not None and (name := data.spec.difference(spec)) is not None:
        theirs, ours = getattr(data.spec, name), getattr(spec, name)
        raise fault(data.path, f"was recorded with {theirs}, but {spec.name} has {ours}", field=name)
    if found := data.check(1):
        first = found[0]
        raise fault(
            data.path,
            first.what,
            episode=first.episode,
            field=first.field,
            fix="fugu data FILE --check lists all; --filter sound --out NEW keeps the other episodes",
        )


def _in_rows(data: DataSet) -> Iterator[Problem]:
    order = np.argsort(data.starts, kind="stable")
    most = max(1, CHUNK // max(1, row_bytes(data.forms)))
    rows = np.cumsum(data.lengths[order] + 1)
    at = 0
    while at < len(order):
        before = rows[at - 1] if at else 0
        stop = max(at + 1, int(np.searchsorted(rows, before + most, side="right")))
        yield from _Part(data, order[at:stop]).problems()
        at = stop


class _Part:
    """Some episodes, and their rows in one piece."""

    def __init__(self, data: DataSet, episodes: np.ndarray) -> None:
        self.data, self.episodes = data, episodes
        self.lengths = data.lengths[episodes]
        rows = self.lengths + 1
        self.lasts = np.cumsum(rows) - 1
        starts = data.starts[episodes]
        together = bool((starts[1:] == starts[:-1] + rows[:-1]).all())
        where: slice | np.ndarray = slice(int(starts[0]), int(starts[0] + rows.sum()))
        if not together:
            where = np.repeat(starts - (self.lasts - self.lengths), rows) + np.arange(rows.sum())
        self.columns = {name: np.asarray(data.column(name)[where]) for name in data.forms}

    def problems(self) -> Iterator[Problem]:
        columns = self.columns
        bools = [name for name, form in self.data.forms.items() if form.dtype == "bool"]
        for name in bools:
            yield from self._where(columns[name].view(np.uint8) > 1, name, "holds a byte that is neither true nor false")
        mask = columns["mask"]
        for name, layout, acting in (("obs", self.data.obs_layout, None), ("action", self.data.action_layout, mask)):
            yield from self._leaves(name, layout, columns[name], acting)
        for name, form in self.data.forms.items():
            if form.dtype.startswith("float") and name not in ("obs", "action"):
                yield from self._where(~np.isfinite(columns[name]), name, "NaN or infinity")
        yield from self._allowed(mask)
        yield from self._endings(mask)
        yield from self._returns()

    def _leaves(self, name: str, layout: Layout, rows: np.ndarray, acting: np.ndarray | None) -> Iterator[Problem]:
        for leaf, view in zip(layout.leaves, layout.leaf_views(rows), strict=True):
            field = f"{name} {leaf.name!r}" if leaf.name else name
            choices = leaf.choice_range()
            if leaf.dtype.kind == "f":
                yield from self._where(_acting(~np.isfinite(view), acting), field, "NaN or infinity", view)
            if choices is not None:
                bad = (view < choices[0]) | (view > choices[1])
                yield from self._where(_acting(bad, acting), field, f"outside {leaf.space}", view)
            elif acting is not None and isinstance(leaf.space, gs.Box):
                bad = (view < leaf.space.low) | (view > leaf.space.high)
                yield from self._where(_acting(bad, acting), field, "outside the bounds of the action space", view)

    def _allowed(self, mask: np.ndarray) -> Iterator[Problem]:
        if "action_mask" not in self.columns:
            return
        allowed, at, layout = self.columns["action_mask"], 0, self.data.action_layout
        for leaf, view in zip(layout.leaves, layout.leaf_views(self.columns["action"]), strict=True):
            if not isinstance(leaf.space, gs.Discrete | gs.MultiDiscrete):
                continue
            sizes = np.ravel(leaf.space.n if isinstance(leaf.space, gs.Discrete) else leaf.space.nvec)
            choices = view.reshape(len(view), -1).astype(np.int64) - np.ravel(leaf.space.start)
            for k, size in enumerate(sizes.tolist()):
                part, chosen = allowed[:, at : at + size], np.clip(choices[:, k], 0, size - 1)
                bad = mask & ~part[np.arange(len(part)), chosen] & part.any(axis=1)
                yield from self._where(bad, "action", "forbidden by the action mask", choices[:, k])
                at += size

    def _endings(self, mask: np.ndarray) -> Iterator[Problem]:
        yield from self._where_episodes(mask[self.lasts], "mask", "the row with the final observation must have mask False")
        for name in ("terminated", "truncated"):
            column = self.columns[name]
            inside = column.copy()
            inside[self.lasts - 1] = False
            yield from self._where(inside, name, "in the middle of the episode")
            wrong = column[self.lasts - 1] != getattr(self.data, name)[self.episodes]
            yield from self._where_episodes(wrong, name, "its last step and the index say different things")

    def _returns(self) -> Iterator[Problem]:
        reward = np.asarray(self.columns["reward"], np.float64)
        firsts = self.lasts - self.lengths
        with np.errstate(invalid="ignore", over="ignore"):
            sums = np.add.reduceat(reward, firsts)
            size = np.add.reduceat(np.abs(reward), firsts)
            wrong = ~(np.abs(sums - self.data.returns[self.episodes]) <= 1e-9 * size)
        yield from self._where_episodes(wrong, "return", "is not the sum of the rewards")

    def _where(self, bad: np.ndarray, field: str, what: str, values: np.ndarray | None = None) -> Iterator[Problem]:
        """Yield a problem for each episode in which ``bad``, ``[rows, ...]``, is True, with the first step where it is so."""
        if not bad.any():
            return
        rows = np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))
        which, first = np.unique(np.searchsorted(self.lasts, rows), return_index=True)
        for k, row in zip(which, rows[first], strict=True):
            step = int(row - (self.lasts[k] - self.lengths[k]))
            got = "" if values is None else f", {np.asarray(values[row])[bad[row]].ravel()[:1].tolist()[0]}"
            yield Problem(int(self.episodes[k]), field, f"{what}, at step {step}{got}")

    def _where_episodes(self, bad: np.ndarray, field: str, what: str) -> Iterator[Problem]:
        for k in np.flatnonzero(bad):
            yield Problem(int(self.episodes[k]), field, what)


def _acting(bad: np.ndarray, acting: np.ndarray | None) -> np.ndarray:
    return bad if acting is None else bad & acting.reshape(-1, *[1] * (bad.ndim - 1))
