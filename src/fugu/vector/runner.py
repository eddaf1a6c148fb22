"""Who runs the shards: the seam between ``VecEnv`` and its backends.

A runner owns shards, in contiguous groups; a group is the unit that ``recv`` returns. ``start`` sets a group going, ``finish``
waits for the first of some groups (in the order given) and says which one it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fugu.emulation.env import EnvSpec, Infos
from fugu.vector.buffers import Buffers

RESET, STEP, CALL, CLOSE = 1, 2, 3, 4

Options = dict[str, Any] | list[dict[str, Any] | None] | None
"""of a reset: the same for every env, or a list with one entry per env"""


Drained = tuple[int, float, float, dict[str, float]]
"""episodes, their summed returns and lengths, and the sums of the environment's own named values and of its costs, by name"""


class Runner(Protocol):
    spec: EnvSpec
    buffers: Buffers
    group_agents: list[slice]
    """the agents of each group"""
    env_agents: list[slice]
    """the agents of each env"""
    shares_workers: bool
    """whether whoever steps one group steps the others as well; else all groups can step at the same time"""

    @property
    def restarts(self) -> int:
        """Envs and workers replaced so far."""
        ...

    def take_actions(self, group: int, action: Any) -> None:
        """Copy the actions of a group into the buffers; refuse those outside their space."""

    def drain(self) -> Drained | None:
        """What ended since the last call, if the runner keeps the statistics itself."""

    def start(self, group: int, command: int, slot: int, options: Options = None) -> None: ...

    def finish(self, groups: Sequence[int]) -> tuple[int, Infos]: ...

    def abandon(self, group: int) -> None:
        """Wait until a group that was started is done, and forget what came of it."""

    def call(self, kind: str, name: str, args: Sequence[Any], kwargs: dict[str, Any], envs: Sequence[int]) -> list[Any]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Split:
    """Contiguous ranges of environments: which shard steps which, and which shards make up a group."""

    envs: tuple[range, ...]
    """per shard"""
    shards: tuple[range, ...]
    """per group"""


def split(num_envs: int, num_shards: int, num_groups: int) -> Split:
    """Share ``num_envs`` out as evenly as whole environments allow; groups are all of one size."""
    per_group, shards_per_group = num_envs // num_groups, num_shards // num_groups
    envs: list[range] = []
    for group in range(num_groups):
        base, extra = divmod(per_group, shards_per_group)
        start = group * per_group
        for s in range(shards_per_group):
            count = base + (s < extra)
            envs.append(range(start, start + count))
            start += count
    return Split(tuple(envs), tuple(range(g * shards_per_group, (g + 1) * shards_per_group) for g in range(num_groups)))


def agent_slices(counts: Sequence[int]) -> list[slice]:
    """Consecutive slices of the given sizes."""
    out, start = [], 0
    for count in counts:
        out.append(slice(start, start + count))
        start += count
    return out
