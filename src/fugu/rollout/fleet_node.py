"""A node of a fleet: environments, a replica of the algorithm, and the source that asks it to act.

In: weights and statistics as one block of bytes, with the number of updates they are from. Out: a batch as one block of bytes.
Nothing here imports Ray: the actor is made of this class by ``vector/ray_cluster.py``. The algorithm and its source are built by a
function that comes with the order, as what they are built from is of higher layers.
"""

from __future__ import annotations

import os
import pickle
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fugu.emulation.env import EnvSpec
from fugu.emulation.stats import EpisodeLog
from fugu.rollout.acting import Actor, generators
from fugu.rollout.flat import Header, header_of, read, written
from fugu.rollout.source import Source
from fugu.vector.config import VectorConfig
from fugu.vector.ray_actor import About, Surroundings, guarded, versions
from fugu.vector.vecenv import VecEnv

EXTRA = "_extra_state"
"""end of the names under which torch keeps the state of a module that is no tensor"""


@dataclass(frozen=True)
class Order:
    """Makes what a node needs, in two steps: its environments, and what acts in them."""

    envs: Callable[[], VecEnv]
    player: Callable[[VecEnv], tuple[nn.Module, Source]]


@dataclass(frozen=True)
class Opened:
    """The environments of a node."""

    spec: EnvSpec
    agents: list[int]
    """agents of each environment"""
    masks_actions: bool
    config: VectorConfig


@dataclass(frozen=True)
class Built:
    """The source of a node, and what its replica takes."""

    segments: int
    horizon: int
    note: str | None
    can_snapshot: bool
    weights: Header
    """tensors of the replica, in the order in which they are sent"""
    extra: list[str]
    """names of state that is no tensor but a mapping of tensors"""
    generators: dict[str, Tensor]
    """states of all random generators"""


@dataclass(frozen=True)
class Played:
    """A batch of one node."""

    header: Header
    once: frozenset[str]
    block: np.ndarray
    rows: int
    version: int
    log: EpisodeLog
    acted: np.ndarray | None
    ended: np.ndarray | None
    generators: dict[str, Tensor]
    """states of all random generators after it"""
    seconds: float
    restarts: int
    """environments and workers that this node has replaced so far"""


class FleetNode:
    """An actor. What goes wrong is part of its answers, as bytes."""

    def __init__(self, surroundings: Surroundings) -> None:
        surroundings.enter()
        self._number = surroundings.number
        self._vec: VecEnv | None = None
        self._source: Source | None = None
        self._algorithm: Any = None
        self._order: Order | None = None

    def about(self) -> About:
        return About(os.getpid(), platform.node(), {**versions(), "torch": torch.__version__})

    def open(self, order: bytes) -> Opened | bytes:
        """Make the environments."""

        def work() -> Opened:
            self._order = pickle.loads(order)
            assert self._order is not None
            self._vec = vec = self._order.envs()
            agents = [part.stop - part.start for part in vec.env_agents]
            return Opened(vec.spec, agents, vec.masks_actions, vec.config)

        return guarded(work, "make", self._number)

    def build(self) -> Built | bytes:
        """Make the algorithm and its source."""

        def work() -> Built:
            assert self._order is not None and self._vec is not None, "the environments of this node were not made"
            self._algorithm, self._source = self._order.player(self._vec)
            state, source = self._algorithm.state_dict(), self._source
            tensors = {name: tensor for name, tensor in state.items() if not name.endswith(EXTRA)}
            extra = [name for name in state if name.endswith(EXTRA)]
            form = source.segments, source.horizon, source.note, source.can_snapshot
            return Built(*form, header_of(tensors), extra, self._generators())

        return guarded(work, "make", self._number)

    def restart(self, seed: int) -> bytes | None:
        """Start all environments anew."""
        return guarded(lambda: self._ready().restart(seed), "reset", self._number)

    def reseed(self, seed: int) -> None:
        """Seed all random generators, in place of a node that was lost."""
        for generator in generators(self._algorithm).values() if self._algorithm is not None else ():
            generator.manual_seed(seed)

    def play(self, weights: tuple[np.ndarray, dict[str, Any]], header: Header, version: int) -> Played | bytes:
        """Play a batch with the policy of this version."""

        def work() -> Played:
            source, began = self._ready(), time.perf_counter()
            load(self._algorithm, weights, header)
            with torch.no_grad():
                found = source.next(Actor(self._algorithm.act, version))
            columns = dict(found.batch.columns)
            return Played(
                header_of(columns),
                found.batch.once,
                written(columns),
                int(found.rows),
                found.version,
                _plain(found.episodes()),
                None if found.acted is None else found.acted.numpy(),
                None if found.ended is None else found.ended.numpy(),
                self._generators(),
                time.perf_counter() - began,
                0 if self._vec is None else self._vec.restarts,
            )

        return guarded(work, "step", self._number)

    def snapshot(self) -> dict[str, Tensor] | bytes:
        """Return what a checkpoint needs of the environments."""
        return guarded(lambda: self._ready().snapshot(), "call", self._number)

    def restore(self, saved: Mapping[str, Tensor]) -> bytes | None:
        return guarded(lambda: self._ready().restore(saved), "call", self._number)

    def set_generators(self, states: Mapping[str, Tensor]) -> None:
        for name, generator in generators(self._algorithm).items():
            generator.set_state(states[name])

    def close(self) -> None:
        source, self._source = self._source, None
        vec, self._vec = self._vec, None
        if source is not None:
            source.close()
        elif vec is not None:
            vec.close()

    def _ready(self) -> Source:
        assert self._source is not None, "this node was not built"
        return self._source

    def _generators(self) -> dict[str, Tensor]:
        return {name: generator.get_state() for name, generator in generators(self._algorithm).items()}


def common(module: nn.Module, built: Sequence[Built]) -> Header:
    """Return the tensors that ``module`` has in the same form as the replicas on all nodes. Sums over running episodes have a number
    for each agent, of which a node has fewer; nobody acts by those."""
    own = {form.name: form for form in header_of({n: t for n, t in module.state_dict().items() if not n.endswith(EXTRA)})}
    kept = tuple(form for form in own.values() if all(form in each.weights for each in built))
    missing = dict(module.named_parameters()).keys() - {form.name for form in kept}
    assert not missing, f"{sorted(missing)} have another form on a node"
    return kept


def weights_of(module: nn.Module, header: Header, extra: list[str]) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the weights and statistics of ``module`` that a replica takes: one block of bytes, and what is no tensor."""
    state = module.state_dict()
    block = written({form.name: state[form.name] for form in header})
    return block, {name: {key: tensor.cpu() for key, tensor in state[name].items()} for name in extra}


def load(module: nn.Module, weights: tuple[np.ndarray, dict[str, Any]], header: Header) -> None:
    """Put what ``weights_of`` returned into a replica."""
    block, extra = weights
    with torch.no_grad():
        module.load_state_dict({**read(header, block), **extra}, strict=False)


def _plain(log: EpisodeLog) -> EpisodeLog:
    """Return ``log`` with mappings that can be pickled."""
    return log._replace(mean_costs=dict(log.mean_costs), infos=dict(log.infos), agents=dict(log.agents))
