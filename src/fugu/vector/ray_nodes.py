"""The nodes of a vector env or of a fleet: started, asked, replaced and ended.

A node is an actor (``ray_actor.py``, ``rollout/fleet_node.py``) that holds a contiguous range of environments. What it is asked returns
at once as a reference; ``fetch`` waits for what came of it, and turns whatever goes wrong into an error that names the node.
"""

from __future__ import annotations

import contextlib
import pickle
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fugu.errors import EnvError, EnvTimeout, FuguError, WorkerDied
from fugu.vector.config import VectorConfig
from fugu.vector.ray_actor import Surroundings
from fugu.vector.ray_cluster import Cluster, ClusterError, Place

GRACE_S = 2.0
"""added to time limits, which nodes keep themselves: the answer has to come here"""
POLITE_S = 2.0
"""how long nodes may take to close their environments"""

SETTINGS = {"make": "start_timeout", "reset": "reset_timeout"}
"""phase -> the time limit that it has; others have step_timeout"""


@dataclass
class Member:
    """A node, as it is seen from here."""

    number: int
    envs: range
    place: Place
    actor: Any
    starting: tuple[Any, Any] | None
    """references of what it says of itself, and of what it has made; None once they were read"""
    pid: int | None = None

    @property
    def name(self) -> str:
        return f"{self.number} ({self.place.address})"


class Nodes:
    """Nodes of ``kind``, one on each of ``places``; they are there once they were launched."""

    def __init__(self, kind: type, config: VectorConfig, address: str | None, count: int | None) -> None:
        self._kind, self._config = kind, config
        self.cluster = Cluster(address, count or 1)
        self.ray = self.cluster.ray
        self.members: list[Member] = []
        self.close = weakref.finalize(self, _end, self.cluster, self.members)
        """ends all of them, and Ray if it was started here; also runs at garbage collection and at interpreter exit"""

    def launch(self, envs: range, place: Place, order: bytes, number: int | None = None) -> Member:
        """Start a node and have it make its environments, in place of node ``number`` if that is given."""
        new = len(self.members) if number is None else number
        actor = self.cluster.start(self._kind, place, Surroundings.here(new))
        member = Member(new, envs, place, actor, (actor.about.remote(), actor.open.remote(order)))
        if number is None:
            self.members.append(member)
        else:
            self.members[number] = member
        return member

    def replace(self, member: Member, order: bytes) -> Member:
        """End a node for certain and start another in its place, on any machine that is left."""
        self.cluster.end([(member.actor, member.place, member.pid)], lost=True)
        place = self.cluster.places(len(self.members))[member.number]
        return self.launch(member.envs, place, order, member.number)

    def opened(self, member: Member, deadline: float, own: Mapping[str, str]) -> Any:
        """Wait until a node has made its environments; return what it says of them. ``own``: versions that it must have as well."""
        assert member.starting is not None
        about, opened = member.starting
        found = self.fetch(member, about, "make", deadline)
        member.pid, member.starting = found.pid, None
        if dict(found.versions) != dict(own):
            raise ClusterError(
                f"node {member.name} has other versions than this process: {_listed(found.versions)} there, {_listed(own)} here",
                fix="Install the same on all machines",
            )
        return self.said(member, self.fetch(member, opened, "make", deadline), "make")

    def fetch(self, member: Member, ref: Any, phase: str, deadline: float, seeds: Sequence[int | None] = ()) -> Any:
        """Wait for an answer until ``deadline``; raise an EnvError that names the node if there will be none."""
        place: dict[str, Any] = {"node": member.name, "envs": member.envs, "seeds": seeds, "phase": phase}
        errors = self.ray.exceptions
        try:
            return self.ray.get(ref, timeout=max(0.0, deadline - time.monotonic()))
        except errors.GetTimeoutError:
            raise self.late(member, phase, seeds) from None
        except errors.ObjectStoreFullError as error:
            fix = "start Ray with more of it (--object-store-memory), or make batches smaller"
            raise EnvError(f"the object store of node {member.name} is full; {fix}: {error}", **place) from None
        except errors.RayTaskError as error:
            text = str(error)
            raise EnvError(text.strip().splitlines()[-1], remote_traceback=text, **place) from None
        except errors.RayError as error:
            raise WorkerDied(f"node {member.name} died {_why(error)}", **place) from None

    def late(self, member: Member, phase: str, seeds: Sequence[int | None] = (), limit: float | None = None) -> EnvTimeout:
        """Return the error of a node that has not answered in time."""
        setting = SETTINGS.get(phase, "step_timeout")
        said = f"{getattr(self._config, setting):g} s ({setting})" if limit is None else f"{limit:.0f} s"
        return EnvTimeout(
            f"no answer of node {member.name} within {said}: it hangs, is stopped, or cannot be reached",
            node=member.name,
            envs=member.envs,
            seeds=seeds,
            phase=phase,
        )

    def said(self, member: Member, answer: Any, phase: str) -> Any:
        """Return what a node answered; raise the error that came in its place, with environments counted over all nodes."""
        if not isinstance(answer, bytes):
            return answer
        error: FuguError = pickle.loads(answer)
        if not isinstance(error, EnvError):
            raise error
        envs = tuple(env + member.envs.start for env in error.envs) or tuple(member.envs)
        kind = EnvTimeout if isinstance(error, EnvTimeout) else EnvError
        raise kind(**{**error.fields(), "node": member.name, "envs": envs})  # type: ignore[arg-type]


def _why(error: Exception) -> str:
    """Return the cause of a node's end, as short as it can be told."""
    text = " ".join(str(error).split())
    for known, words in (
        ("node it was running on", "with its machine"),
        ("node died", "with its machine"),
        ("worker process has died", "(killed, crashed, or ended for want of memory)"),
    ):
        if known in text:
            return words
    return f"({type(error).__name__}: {text[:200]})"


def _listed(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _end(cluster: Cluster, members: list[Member]) -> None:
    """Close politely, then for certain."""
    with contextlib.suppress(Exception):
        if cluster.ray.is_initialized():
            refs = [member.actor.close.remote() for member in members if member.pid is not None]
            if refs:
                cluster.ray.wait(refs, num_returns=len(refs), timeout=POLITE_S)
            cluster.end([(member.actor, member.place, member.pid) for member in members])
    members.clear()
    with contextlib.suppress(Exception):
        cluster.leave()
