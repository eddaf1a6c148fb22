"""The other side of the Ray backend: an actor that holds a vector env of a contiguous range of environments.

In: actions of all its agents. Out: ``Answer``, with all columns of the rows in one block of bytes, so that a step is one message each
way. Nothing here imports Ray: the actor is made of this class by ``ray_cluster.py``.
"""

from __future__ import annotations

import os
import pickle
import platform
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
import gymnasium
import numpy as np

from fugu import __version__
from fugu.emulation.beside import State, know, known
from fugu.emulation.env import EnvSpec, Infos, Rows
from fugu.errors import EnvError, FuguError, shared_class
from fugu.vector.config import VectorConfig, usable_cores
from fugu.vector.parcel import pack_infos, pack_results, pickled, registered
from fugu.vector.runner import Options
from fugu.vector.seeds import KEEP
from fugu.vector.vecenv import VecEnv


@dataclass(frozen=True)
class Surroundings:
    """Holds what a process elsewhere has to know before it can unpickle anything of the user's."""

    paths: list[str]
    beside: State
    folder: str
    registry: bytes
    """cloudpickled specs of the ids registered beside Gymnasium's own"""
    number: int
    """which node it is"""

    @classmethod
    def here(cls, number: int) -> Surroundings:
        return cls([str(path) for path in sys.path], known(), os.getcwd(), registered(), number)

    def enter(self) -> None:
        sys.path += [path for path in self.paths if path not in sys.path]
        know(*self.beside)
        if os.path.isdir(self.folder):
            os.chdir(self.folder)
        for spec in pickle.loads(self.registry):
            gymnasium.registry.setdefault(spec.id, spec)


@dataclass(frozen=True)
class About:
    """A node, as it says itself."""

    pid: int
    host: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Opened:
    """The environments of a node."""

    spec: EnvSpec
    agents: list[int]
    """agents of each environment"""
    masks_actions: bool


@dataclass(frozen=True)
class Order:
    """Says what to build: arguments of ``vector.make``."""

    env: Any
    arguments: Mapping[str, Any]
    config: VectorConfig
    sharing: int
    """nodes on this machine"""

    def sealed(self) -> bytes:
        return pickled(self, "the environment", "Build what cannot be pickled inside the factory, or use backend='serial'")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a step or a reset."""

    block: np.ndarray | None
    """all columns of the rows, one after the other, as bytes; None: it failed"""
    mail: bytes
    """infos, packed; or the error, pickled"""
    seconds: float
    restarts: int
    """environments and workers that this node has replaced so far"""


class Node:
    """An actor. Whatever goes wrong in an environment is part of the answer; only losing the process is Ray's to report."""

    def __init__(self, surroundings: Surroundings) -> None:
        surroundings.enter()
        self._number = surroundings.number
        self._vec: VecEnv | None = None
        self._rows: Rows | None = None
        self._block = np.zeros(0, np.uint8)

    def about(self) -> About:
        return About(os.getpid(), platform.node(), versions())

    def open(self, order: bytes) -> Opened | bytes:
        """Make the environments; return what they are, or the error."""

        def work() -> Opened:
            self._vec = vec = make_here(pickle.loads(order))
            vec.episode_stats = False  # kept by whoever asked
            return Opened(vec.spec, [part.stop - part.start for part in vec.env_agents], vec.masks_actions)

        return guarded(work, "make", self._number)

    def reset(self, seeds: np.ndarray, options: Options) -> Answer:
        """Reset the environments with their seeds: ``KEEP`` leaves one alone, any other negative number leaves it unseeded."""

        def work() -> Rows:
            assert self._vec is not None
            keep = seeds == KEEP
            if keep.all() and self._rows is not None:
                return replace(self._rows, infos={})
            listed = [None if seed < 0 else int(seed) for seed in seeds]
            if keep.any() and self._rows is not None:
                self._vec.reset_some(~keep, listed, options)
                return self._vec.rows
            self._vec.async_reset(listed, options)
            return self._vec.recv()

        return self._answer(work, "reset")

    def step(self, action: np.ndarray) -> Answer:
        def work() -> Rows:
            assert self._vec is not None
            self._vec.send(action)
            return self._vec.recv()

        return self._answer(work, "step")

    def call(self, kind: str, name: str, content: bytes, envs: list[int]) -> bytes:
        """Get, set, call or apply something; return the results, packed, behind a byte that says whether it worked."""

        def work() -> bytes:
            assert self._vec is not None
            args, kwargs = pickle.loads(content)
            return b"+" + pack_results(self._vec.access(kind, name, args, kwargs, envs))

        found = guarded(work, "call", self._number)
        return found if found[:1] == b"+" else b"-" + found

    def close(self) -> None:
        vec, self._vec = self._vec, None
        if vec is not None:
            vec.close()

    def _answer(self, work: Callable[[], Rows], phase: str) -> Answer:
        began = time.perf_counter()
        rows = guarded(work, phase, self._number)
        spent = time.perf_counter() - began
        restarts = 0 if self._vec is None else self._vec.restarts
        if isinstance(rows, bytes):
            return Answer(None, rows, spent, restarts)
        self._rows = rows
        size = sum(column.nbytes for column in rows.columns.values())
        if len(self._block) != size:
            self._block = np.zeros(size, np.uint8)
        start = 0
        for column in rows.columns.values():
            self._block[start : start + column.nbytes] = np.ascontiguousarray(column).view(np.uint8).reshape(-1)
            start += column.nbytes
        return Answer(self._block, pack_infos(rows.infos) if rows.infos else b"", spent, restarts)


def read_block(block: np.ndarray, rows: Rows) -> None:
    """Copy what ``Node`` sent into ``rows`` of the same columns."""
    start = 0
    for column in rows.columns.values():
        if column.nbytes:
            column[...] = np.ndarray(column.shape, column.dtype, block, start)
        start += column.nbytes
    assert start == len(block), "the rows of a node have other columns"


def make_here(order: Order) -> VecEnv:
    """Make the environments of a node with its share of the machine's cores."""
    from fugu.vector.make import make

    config = order.config
    if config.num_workers is None:
        cores = max(1, usable_cores() // order.sharing)
        alone = cores == 1 and not config.isolate and config.on_error == "raise"
        if alone and config.backend == "auto":
            config = replace(config, backend="serial") if not _is_native(order.env) else replace(config, num_workers=1)
        elif not alone:
            config = replace(config, num_workers=min(cores, config.num_envs))
    return make(order.env, config=config, **order.arguments)


def _is_native(env: Any) -> bool:
    from fugu.emulation.build import is_compiled

    return is_compiled(env)


def versions() -> dict[str, str]:
    """Return the versions that must be alike on all machines."""
    return {"fugu": __version__, "python": platform.python_version(), "numpy": np.__version__}


def guarded(work: Callable[[], Any], phase: str, node: int) -> Any:
    """Return what ``work`` returns, or its error as bytes that can be read anywhere. Ctrl-C and the like end the node."""
    try:
        return work()
    except Exception as error:
        if isinstance(error, FuguError):
            try:
                return _readable(error)
            except Exception:
                pass
        text = "".join(traceback.format_exception(error))
        message = f"{type(error).__name__}: {error}"
        return pickle.dumps(EnvError(message, phase=phase, remote_traceback=text, cause=shared_class(error)))


def _readable(error: FuguError) -> bytes:
    content = cloudpickle.dumps(error)
    pickle.loads(content)
    return content


def shifted(infos: Infos, by: int) -> Infos:
    """Return infos by the agents of all nodes."""
    return {agent + by: info for agent, info in infos.items()}
