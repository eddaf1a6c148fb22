"""The environments of a vector env in the middle of their episodes, with the rows that wait for actions and the sums beside them.

A snapshot may come from anywhere: ``checked`` reads all of it and changes nothing, ``put`` relies on what ``checked`` found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fugu.emulation.saved import bytes_of
from fugu.emulation.stats import EpisodeStats
from fugu.vector.runner import Runner


class Snapshot(NamedTuple):
    """What of a snapshot was found to be sound."""

    state: bytes
    columns: Mapping[str, np.ndarray]
    sums: Mapping[str, np.ndarray]
    parked: list[int]
    """the batches, in the order they are taken up"""


def taken(runner: Runner, slots: Sequence[int], parked: Sequence[int], stats: EpisodeStats | None) -> dict[str, np.ndarray]:
    """Return copies of everything, of the rows of each batch those in its slot."""
    saved: dict[str, np.ndarray] = {"state": np.frombuffer(runner.state, np.uint8).copy(), "parked": np.array(parked, np.int64)}
    saved |= runner.buffers.save(slots)
    if stats is not None:
        saved |= stats.save()
    return saved


def checked(saved: Mapping[str, np.ndarray], runner: Runner, stats: EpisodeStats, of: str) -> Snapshot:
    """Refuse what claims to be from ``taken`` and cannot be ``of`` these environments."""
    columns = runner.buffers.checked(saved, of)
    stats.check(saved, of)
    state = bytes_of(saved, "state", of).tobytes()
    batches = list(range(len(runner.group_agents)))
    order = saved["parked"].reshape(-1).tolist() if "parked" in saved else []
    return Snapshot(state, columns, saved, order if sorted(order) == batches else batches)


def put(snapshot: Snapshot, runner: Runner, slots: Sequence[int], stats: EpisodeStats) -> None:
    """Have the environments go on from there. Those that cannot be in the saved state say so before anything is changed."""
    runner.state = snapshot.state
    runner.buffers.load(snapshot.columns, slots)
    stats.load(snapshot.sums)
