"""A fleet: nodes of a Ray cluster that play by themselves, each with environments and a replica of the algorithm.

In: at each call an actor, of which the version counts; the weights are those of the learner at that moment. Out: a batch of all nodes'
segments, in the order of the nodes, however they come in. Per update the weights are put into Ray's store once, and each node is asked
once: ``fleet_node.py`` is the other side.

``lag`` is a number and never a race. ``next`` sets a flight going with the newest weights, and hands over the one that was set going
``lag`` calls ago. So with lag 1 nodes play while the learner learns, with a policy that is exactly one update old. A checkpoint waits
for what is under way and drops it, in the run that goes on as in the one that loads it.

A node that dies is replaced. Its part of the batch is masked, the environments in its place have other seeds, and from there on the run
cannot be repeated exactly, which is said.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fugu.emulation.stats import together
from fugu.errors import EnvError, EnvTimeout, WorkerDied
from fugu.ranks import ALONE, Ranks
from fugu.rollout.acting import Actor
from fugu.rollout.fleet_merge import Part, lost_part, merged, part_of
from fugu.rollout.fleet_node import Built, Played, common, weights_of
from fugu.rollout.fleet_vec import FleetVec
from fugu.rollout.source import Clock, Experience, Kept, Page, Source, Stopped
from fugu.vector.ray_nodes import GRACE_S, Member
from fugu.vector.shard import restart_seed

ASK_S = 0.25
"""how often ``stop`` is asked while nodes play"""
PATIENCE = 20
"""how many times the longest flight so far another may take before its node counts as lost"""


class NodeRank(Ranks):
    """A node as a rank that draws numbers of its own, and sums over itself alone."""

    def __init__(self, rank: int) -> None:
        self.rank = rank


@dataclass
class Flight:
    """A batch under way."""

    version: int
    weights: Any
    """reference of the weights in Ray's store"""
    parts: list[Any]
    """by node, a reference of its part; None: it was lost"""
    began: float = field(default_factory=time.monotonic)


class Fleet(Source):
    vec: Any

    def __init__(
        self,
        vec: FleetVec,
        module: nn.Module,
        *,
        lag: int = 0,
        passes: int = 1,
        ranks: Ranks = ALONE,
        clock: Clock | None = None,
    ) -> None:
        """``module``: the algorithm whose weights the nodes play with."""
        self.vec, self.lag, self.passes = vec, lag, passes
        self.device = torch.device("cpu")
        self._nodes, self._module, self._ranks = vec.nodes, module, ranks
        self._clock = clock or nullcontext
        self._flights: deque[Flight] = deque()
        self._built: list[Built] = vec.build()
        self._header = common(module, self._built)
        """tensors that are sent to the nodes"""
        self._states = [dict(each.generators) for each in self._built]
        """by node, the random generators after the last flight that counted"""
        self._like: Part | None = None
        """a part of the batch before: what columns there are"""
        self._groups = [0] * len(self._built)
        """by node, its groups of episodes"""
        self._seed = 0
        self._longest = 0.0
        self._inner = [0] * len(self._built)
        """by node, environments and workers that it has replaced"""
        self._measured: dict[str, float] = {}
        self.segments = sum(each.segments for each in self._built)
        self.horizon = self._built[0].horizon
        self.note = self._built[0].note

    # --- a batch ---

    def next(self, actor: Actor, stop: Callable[[], bool] = bool) -> Experience:
        """Return the batch that was set going ``lag`` calls ago. ``stop`` is asked while it is waited for; True raises ``Stopped``."""
        began = time.monotonic()
        self._launch(actor.version)
        while len(self._flights) <= self.lag:  # the first call: there is nothing to hand over yet
            self._launch(actor.version)
        with self._clock("env"):
            flight = self._flights[0]
            played = self._landed(flight, stop)
            self._flights.popleft()
        with self._clock("copy"):
            found = self._together(flight, played)
        self._measure(flight, actor.version, played, time.monotonic() - began)
        return found

    def _launch(self, version: int) -> None:
        """Publish the weights of this moment, and have all nodes play with them."""
        with self._clock("copy"):
            weights = self._nodes.ray.put(weights_of(self._module, self._header, self._built[0].extra))
        flight = Flight(version, weights, [])
        for member in self._nodes.members:
            flight.parts.append(self._asked(member, flight))
        self._flights.append(flight)

    def _asked(self, member: Member, flight: Flight) -> Any:
        return member.actor.play.remote(flight.weights, self._header, flight.version)

    def _landed(self, flight: Flight, stop: Callable[[], bool] = bool) -> list[Played | None]:
        """Wait until all nodes have played their part; None where a node was lost."""
        flight.began = time.monotonic()
        while True:
            refs = [ref for ref in flight.parts if ref is not None]
            ready = self._nodes.ray.wait(refs, num_returns=len(refs), timeout=ASK_S)[0] if refs else []
            if len(ready) == len(refs):
                break
            if stop():
                raise Stopped
            if time.monotonic() > flight.began + self._limit:
                self._lose_late(flight, ready)
        self._longest = max(self._longest, time.monotonic() - flight.began)
        found: list[Played | None] = []
        for member, ref in zip(list(self._nodes.members), flight.parts, strict=True):
            try:
                found.append(None if ref is None else self._read(member, ref))
            except (WorkerDied, EnvTimeout) as error:
                if error.worker is not None:  # one of the node's own workers
                    raise
                self._lose(member, error)
                found.append(None)
        return found

    def _read(self, member: Member, ref: Any) -> Played:
        if member.starting is not None:  # it took the place of one that was lost
            self.vec.opened(member)
        answer = self._nodes.fetch(member, ref, "step", time.monotonic() + self._limit)
        return self._nodes.said(member, answer, "step")

    @property
    def _limit(self) -> float:
        """Return the seconds that nodes may take for a flight. They keep the limits of resets and steps themselves."""
        config = self.vec.config
        if self._longest:
            return config.step_timeout + PATIENCE * self._longest
        return config.reset_timeout + self.horizon * self.passes * config.step_timeout + GRACE_S

    # --- putting the parts together ---

    def _together(self, flight: Flight, played: list[Played | None]) -> Experience:
        parts = [None if each is None else part_of(each) for each in played]
        self._like = next((part for part in parts if part is not None), self._like)
        for i, (each, part) in enumerate(zip(played, parts, strict=True)):
            if each is not None and part is not None:
                self._states[i], self._inner[i] = dict(each.generators), each.restarts
                if "group" in part.forms:
                    self._groups[i] = int(part.content["group"].copy().view("int64").max()) + 1
        like = self._like
        if like is None:
            raise EnvError(
                "all nodes were lost in their first rollout; the error of each was told before", envs=(), phase="step"
            )
        known = next((i for i, groups in enumerate(self._groups) if groups), None)
        if known is not None:  # for a node that was lost before it said so
            each_has = self._built[known].segments // self._groups[known]
            self._groups = [own or built.segments // each_has for own, built in zip(self._groups, self._built, strict=True)]
        whole = [
            lost_part(built.segments, like.horizon, like, groups) if part is None else part
            for part, built, groups in zip(parts, self._built, self._groups, strict=True)
        ]
        batch = merged(whole, self.passes, self._groups)
        here = [each for each in played if each is not None]
        log = together([each.log for each in here]) if here else None
        acted, ended = (
            None if like is None or "score" in like.forms else self._marks(played, name) for name in ("acted", "ended")
        )
        rows = sum(each.rows for each in here)
        found = Experience(batch, rows, flight.version, acted=acted, ended=ended)
        if log is not None:
            found.episodes = lambda: log
        return found

    def _marks(self, played: list[Played | None], name: str) -> Tensor:
        """Return which agents of all nodes acted, or ended an episode; none of those that were lost."""
        marks = torch.zeros(self.vec.num_agents, dtype=torch.bool)
        for each, agents in zip(played, self.vec.agents, strict=True):
            if each is not None and (own := getattr(each, name)) is not None:
                marks[agents] = torch.from_numpy(own.copy())
        return marks

    def _measure(self, flight: Flight, version: int, played: list[Played | None], waited: float) -> None:
        here = [each for each in played if each is not None]
        seconds = [each.seconds for each in here] or [0.0]
        self._measured = {
            "nodes/lag": float(version - flight.version),
            "nodes/alive": float(len(here)),
            "nodes/restarts": float(self.vec.restarts + sum(self._inner)),
            "nodes/wait": waited,
            "nodes/slowest": max(seconds) / max(sum(seconds) / len(seconds), 1e-9),
            "nodes/bytes_in": float(sum(each.block.nbytes for each in here)),
            "nodes/bytes_out": float(sum(form.nbytes for form in self._header)),
        }

    def measured(self) -> dict[str, float]:
        return self._measured

    # --- losing a node ---

    def _lose_late(self, flight: Flight, ready: list[Any]) -> None:
        """Give up the nodes whose part has not come."""
        for i, (member, ref) in enumerate(zip(list(self._nodes.members), flight.parts, strict=True)):
            if ref is not None and ref not in ready:
                flight.parts[i] = None
                self._lose(member, self._nodes.late(member, "step", limit=self._limit))

    def _lose(self, member: Member, error: EnvError) -> None:
        """Put another node in the place of one that was lost. It builds and plays while others are waited for."""
        self.vec.restarts += 1
        if self.vec.restarts > self.vec.config.max_restarts:
            raise error
        number = self.vec.restarts
        warnings.warn(
            f"{error.message}; another takes its place. What it played is left out, and from here on the run cannot be repeated "
            "exactly",
            RuntimeWarning,
            stacklevel=4,
        )
        fresh = self.vec.replace(member)
        fresh.actor.reseed.remote(restart_seed(self._seed_of(member.number), number))
        fresh.actor.restart.remote(restart_seed(self._seed_of(member.number), number))
        for flight in list(self._flights)[1:]:
            flight.parts[member.number] = self._asked(fresh, flight)

    # --- starting, saving and going on ---

    def _seed_of(self, node: int) -> int:
        return NodeRank(self._ranks.rank * len(self._built) + node).seed(self._seed) if node else self._seed

    def _drain(self) -> None:
        """Wait for what is under way and drop it."""
        while self._flights:
            for i, each in enumerate(self._landed(self._flights[0])):
                if each is not None:
                    self._states[i] = dict(each.generators)
            self._flights.popleft()

    def restart(self, seed: int) -> None:
        self._drain()
        self._seed = seed
        self._all("restart", [(self._seed_of(i),) for i in range(len(self._built))], "reset")

    def _all(self, method: str, arguments: list[tuple[Any, ...]], phase: str) -> list[Any]:
        """Ask all nodes at once; return what they say."""
        config = self.vec.config
        members = self._nodes.members
        refs = [getattr(m.actor, method).remote(*own) for m, own in zip(members, arguments, strict=True)]
        deadline = time.monotonic() + config.start_timeout + config.reset_timeout
        return [
            self._nodes.said(m, self._nodes.fetch(m, ref, phase, deadline), phase) for m, ref in zip(members, refs, strict=True)
        ]

    @property
    def can_snapshot(self) -> bool:
        return all(each.can_snapshot for each in self._built)

    def snapshot(self) -> dict[str, Tensor]:
        self._drain()
        if not self.can_snapshot:
            return {}
        saved = self._all("snapshot", [()] * len(self._built), "call")
        return {_of(i, name): tensor for i, each in enumerate(saved) for name, tensor in each.items()}

    def fits(self, saved: Mapping[str, Tensor]) -> bool:
        """Return whether as many nodes made the snapshot; say so if not."""
        nodes = {name.partition("/")[0] for name in saved if "/" in name}
        if len(nodes) != len(self._built):
            warnings.warn(
                f"the checkpoint has the environments of {len(nodes) or 'no'} nodes, and there are {len(self._built)}: environments "
                "start anew",
                RuntimeWarning,
                stacklevel=3,
            )
            return False
        return True

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self._drain()
        self._all("restore", [(_part(saved, i),) for i in range(len(self._built))], "call")

    def kept(self) -> Kept:
        """Return the random generators of the nodes, from which their next actions are drawn."""
        return Kept({_of(i, name): state for i, each in enumerate(self._states) for name, state in each.items()}, ())

    def remember(self, tensors: Mapping[str, Tensor], pages: Iterable[Page]) -> None:
        self._drain()
        states = [_part(tensors, i) for i in range(len(self._built))]
        if all(state.keys() == own.keys() for state, own in zip(states, self._states, strict=True)):
            self._all("set_generators", [(state,) for state in states], "call")
            self._states = states

    def close(self) -> None:
        self._flights.clear()
        self.vec.close()


def _of(node: int, name: str) -> str:
    return f"node {node}/{name}"


def _part(saved: Mapping[str, Tensor], node: int) -> dict[str, Tensor]:
    """Return what of ``saved`` is of one node."""
    prefix = _of(node, "")
    return {name.removeprefix(prefix): tensor for name, tensor in saved.items() if name.startswith(prefix)}
