"""The memory of a vector env: one mapping with a block for each group of agents, twice; in it lies a column per field.

There are two slots: while an env writes slot 1, the rows of slot 0 stay as they were, so what ``recv`` returned is valid until the
second ``recv`` after it, and a crashed worker cannot leave a half-written row behind. A batch is one block: never a copy, and, where
it must go elsewhere (a GPU), one copy of bytes.

Every column starts on its own 128-byte line; those of a page or more start on a page, with an unused one before it. A core that
comes to the end of its share of a column fetches ahead what comes next, and would take it from the core that writes there. A block
starts on a page, so that those of groups of one size all lie alike.
"""

from __future__ import annotations

import itertools
import math
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces as gs

from fugu.emulation.columns import blanks, outcomes, present
from fugu.emulation.env import EnvSpec, Rows
from fugu.emulation.saved import check_obs, check_values, column_of
from fugu.errors import FuguError, SpaceError
from fugu.spaces import Layout, Packer
from fugu.spaces.layout import Node

LINE, PAGE = 128, 4096
SLOTS = 2


class OutOfSharedMemory(FuguError, MemoryError):
    """The shared memory for the rows could not be had."""


class Buffers:
    """Columns over ``memory(nbytes)``, a writable buffer (default: private), for agents in ``groups`` (default: all in one). Both
    sides of a process boundary build the same."""

    def __init__(
        self,
        spec: EnvSpec,
        num_envs: int,
        num_agents: int,
        *,
        groups: Sequence[slice] | None = None,
        head: int = 0,
        memory: Callable[[int], Any] | None = None,
    ) -> None:
        self.obs_layout = Layout(spec.observation_space)
        self.action_layout = Layout(spec.action_space)
        forms = present(spec)
        columns: dict[str, tuple[tuple[int, ...], Any]] = {
            "head": ((head,), np.uint8),
            "seeds": ((num_envs,), np.int64),
            "action": ((num_agents, *self.action_layout.row_shape), self.action_layout.dtype),
        }
        self.groups = tuple(groups or [slice(0, num_agents)])
        for slot, group in itertools.product(range(SLOTS), range(len(self.groups))):
            count = self.groups[group].stop - self.groups[group].start
            columns |= {f"{form.name} {slot} {group}": ((count, *form.shape), form.dtype) for form in forms}
        offsets, self.nbytes = {}, 0
        for name, (shape, dtype) in columns.items():
            size = math.prod(shape) * np.dtype(dtype).itemsize
            small = LINE if not name.startswith("obs ") else PAGE
            offsets[name] = _next(self.nbytes, small) if size < PAGE else _next(self.nbytes, PAGE) + PAGE
            self.nbytes = offsets[name] + size
        block = (memory or _aligned)(self.nbytes)
        self.block: np.ndarray = np.frombuffer(block, np.uint8, self.nbytes)
        """all of it, as bytes"""
        column = {
            name: np.ndarray(shape, dtype, block, offsets[name]) if math.prod(shape) else np.zeros(shape, dtype)
            for name, (shape, dtype) in columns.items()
        }
        self.head: np.ndarray = column["head"]
        """bytes for the backend's own use"""
        self.seeds: np.ndarray = column["seeds"]
        """[num_envs] what each env is to be seeded with at the next reset; negative: not"""
        self.action: np.ndarray = column["action"]
        self.rows: list[list[Rows]] = [
            [Rows.of({form.name: column[f"{form.name} {slot} {group}"] for form in forms}, agents) for slot in range(SLOTS)]
            for group, agents in enumerate(self.groups)
        ]
        """by group and slot"""
        for rows, (name, value) in itertools.product(itertools.chain(*self.rows), blanks().items()):
            if name in rows.columns:
                rows[name][...] = value  # an env that restricts nothing need not write it
        self._parts = [self.action_layout.leaf_views(self.action[agents]) for agents in self.groups]
        """by group, the actions leaf by leaf"""
        self._ranges = [leaf.choice_range() for leaf in self.action_layout.leaves]
        root = self.action_layout.root
        self._packer = Packer(self.action_layout, finite=False, cast=True) if root.children or root.codes is not None else None
        """for spaces of several parts, whose actions may come as a list with one per agent"""

    def part(self, slot: int, agents: slice) -> Rows:
        """Return the rows of some agents of one group."""
        group = next(i for i, group in enumerate(self.groups) if group.start <= agents.start < group.stop)
        start = self.groups[group].start
        assert agents.stop <= self.groups[group].stop, "agents of two groups do not lie together"
        return self.rows[group][slot][agents.start - start : agents.stop - start]

    def save(self, slots: Sequence[int]) -> dict[str, np.ndarray]:
        """Return copies of the rows of all groups, of each those in its slot, by column and as bytes: observations have any dtype."""
        saved = {}
        for name in self.rows[0][0].columns:
            parts = [self.rows[group][slot][name] for group, slot in enumerate(slots)]
            saved[name] = np.concatenate(parts).reshape(-1).view(np.uint8)
        return saved

    def checked(self, saved: Mapping[str, np.ndarray], of: str) -> dict[str, np.ndarray]:
        """Return the columns of all agents in what ``save`` returned, or what claims to be that. What is not in it of an action's
        outcome, as not all of it always was, there was none of."""
        names, columns = self.rows[0][0].columns, {}
        for name, like in names.items():
            shape = (self.groups[-1].stop, *like.shape[1:])
            if name not in saved and name in outcomes(names):
                columns[name] = np.zeros(shape, like.dtype)
                continue
            columns[name] = column_of(saved, name, shape, like.dtype, of)
            if name == "obs":
                check_obs(columns[name], self.obs_layout, of)
            else:
                check_values(name, columns[name], of)
        return columns

    def load(self, columns: Mapping[str, np.ndarray], slots: Sequence[int]) -> None:
        """Write what ``checked`` returned into these slots."""
        for name, column in columns.items():
            for group, slot in enumerate(slots):
                self.rows[group][slot][name][...] = column[self.groups[group]]

    def write_action(self, group: int, action: Any, slot: int) -> None:
        """Copy in the actions for the rows of ``slot``: rows, the natural shape of the space, the space's own structure of batched
        arrays, or a list with one structured action per agent."""
        acting = self.rows[group][slot].mask
        if isinstance(action, dict | tuple):
            _write_structure(self.action_layout, self.action_layout.root, action, self._parts[group], acting)
        elif self._packer is not None and _one_each(action):
            self._pack_each(group, action, acting)
        else:
            target = self.action[self.groups[group]]
            array = _array(action, "actions", target)
            if array.shape != target.shape:
                raise SpaceError(f"actions: expected shape {list(target.shape)}, got {list(array.shape)}")
            if not np.can_cast(array.dtype, target.dtype, "same_kind"):
                raise SpaceError(f"actions: expected {target.dtype}, got {array.dtype}")
            _refuse_overflow(array, target.dtype, acting)
            target[...] = array

    def check_actions(self, group: int, slot: int) -> None:
        """Refuse actions that are outside their space. Where nobody acts on a row of ``slot`` a harmless one takes their place."""
        for view, leaf, choices in zip(self._parts[group], self.action_layout.leaves, self._ranges, strict=True):
            if leaf.dtype.kind == "f":
                if np.isfinite(view).all():
                    continue
                bad, harmless = ~np.isfinite(view), np.zeros((), leaf.dtype)
            elif choices is not None:
                bad, harmless = (view < choices[0]) | (view > choices[1]), choices[0]
                if not bad.any():
                    continue
            else:
                continue
            rows, acting = bad.reshape(len(bad), -1).any(axis=1), self.rows[group][slot].mask
            view[rows & ~acting] = harmless
            if (rows & acting).any():
                agent = int(np.argmax(rows & acting))
                if leaf.dtype.kind == "f":
                    raise SpaceError(f"actions{_of(leaf.name)}: NaN or infinity at agent {agent}")
                raise SpaceError(f"actions{_of(leaf.name)}: {view[agent].tolist()} at agent {agent} is outside {leaf.space}")

    def _pack_each(self, group: int, actions: Any, acting: np.ndarray) -> None:
        assert self._packer is not None
        target = self.action[self.groups[group]]
        if len(actions) != len(target):
            raise SpaceError(f"actions: expected a list of {len(target)}, one per agent; got {len(actions)}")
        for i, action in enumerate(actions):
            row = target[i : i + 1].reshape(self.action_layout.row_shape)
            try:
                self._packer.pack(action, row)
            except SpaceError as error:
                if acting[i]:
                    raise SpaceError(f"actions: {error.complaint}").of(
                        agent=i
                    ) from None  # its fix is for an environment's author
                target[i] = 0


def shared_memory(fd: int, nbytes: int) -> mmap.mmap:
    """Give ``fd`` (a memfd) ``nbytes`` and map it. Reserves every page now, so that no later write can fail."""
    available = _available_memory()
    if available is not None and nbytes > available:
        raise OutOfSharedMemory(_too_big(nbytes) + f"; {available / 2**20:,.0f} MiB are free")
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        raise OutOfSharedMemory(_too_big(nbytes) + f": {error.strerror}") from error
    return mmap.mmap(fd, nbytes)


def _too_big(nbytes: int) -> str:
    return (
        f"the rows of this vector env need {nbytes / 2**20:,.1f} MiB of shared memory. Use fewer envs or smaller observations"
    )


def _available_memory() -> int | None:
    try:
        with open("/proc/meminfo") as file:
            line = next(line for line in file if line.startswith("MemAvailable:"))
        free = int(line.split()[1]) * 1024
    except (OSError, StopIteration, ValueError):
        return None
    try:  # a container may have less than the machine
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text().strip() for name in ("max", "current"))
        return free if limit == "max" else min(free, int(limit) - int(used))
    except (OSError, ValueError):
        return free


def _aligned(nbytes: int) -> Any:
    raw = np.zeros(nbytes + PAGE, np.uint8)
    start = -raw.ctypes.data % PAGE
    return raw[start : start + nbytes]


def _next(offset: int, step: int) -> int:
    return -(-offset // step) * step


def _write_structure(layout: Layout, node: Node, value: Any, views: list[np.ndarray], acting: np.ndarray) -> None:
    if isinstance(node.space, gs.Dict | gs.Tuple):
        wanted = dict if isinstance(node.space, gs.Dict) else (tuple, list)
        if not isinstance(value, wanted):
            raise SpaceError(f"actions: expected the parts {list(node.keys)}, got {type(value).__name__}")
        if len(value) != len(node.children):
            raise SpaceError(f"actions: expected the parts {list(node.keys)}, got {len(value)} parts")
        missing = [key for key in node.keys if isinstance(value, dict) and key not in value]
        if missing:
            raise SpaceError(f"actions: expected the parts {list(node.keys)}, missing {missing[0]!r}")
        for key, child in zip(node.keys, node.children, strict=True):
            _write_structure(layout, child, value[key], views, acting)
        return
    if node.children or node.codes is not None:
        raise SpaceError(f"actions: {type(node.space).__name__} parts must be sent as rows; pack them with fugu.spaces.Packer")
    view, where = views[node.leaf], f"actions{_of(layout.leaves[node.leaf].name)}"
    array = _array(value, where, view)
    if array.shape != view.shape or not np.can_cast(array.dtype, view.dtype, "same_kind"):
        raise SpaceError(f"{where}: expected {view.dtype}{list(view.shape)}, got {array.dtype}{list(array.shape)}")
    _refuse_overflow(array, view.dtype, acting)
    view[...] = array


def _one_each(action: Any) -> bool:
    """Return True for a list, or an array of objects, that holds values of a structured space rather than rows."""
    if not isinstance(action, list) and getattr(getattr(action, "dtype", None), "kind", "") != "O":
        return False
    return len(action) > 0 and all(isinstance(part, dict | tuple | str) for part in action)


def _array(value: Any, where: str, like: np.ndarray) -> np.ndarray:
    try:
        return np.asarray(value)
    except (TypeError, ValueError):  # parts of different lengths, or of no number
        got = ", ".join(str(np.shape(part)[0]) if np.ndim(part) == 1 else "other" for part in list(value)[:8])
        raise SpaceError(
            f"{where}: expected shape {list(like.shape)}, got a {type(value).__name__} of {len(value)} parts of unequal form "
            f"(lengths {got}{', ...' * (len(value) > 8)})"
        ) from None


def _refuse_overflow(array: np.ndarray, dtype: np.dtype, acting: np.ndarray) -> None:
    if array.dtype.kind not in "iu" or dtype.kind not in "iu" or np.can_cast(array.dtype, dtype):
        return
    info = np.iinfo(dtype)
    if array.size and (array.min() < info.min or array.max() > info.max):
        acted = array[acting]
        if acted.size and (acted.min() < info.min or acted.max() > info.max):
            raise SpaceError(f"actions: a value does not fit {dtype}")


def _of(name: str) -> str:
    return f" {name!r}" if name else ""
