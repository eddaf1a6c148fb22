"""Define a ``Runner``, which runs shards: the seam between ``VecEnv`` and its backends.

A runner owns shards, in contiguous groups; a group is the unit that ``recv`` returns. ``start`` sets a group going, ``finish``
waits for the first of some groups (in the order given) and says which one it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from fugu.emulation.env import EnvSpec, Infos
from fugu.emulation.stats import Drained
from fugu.errors import ConfigError, EnvError
from fugu.vector.buffers import Buffers
from fugu.vector.config import VectorConfig

RESET, STEP, CALL, CLOSE = 1, 2, 3, 4

Options = dict[str, Any] | list[dict[str, Any] | None] | None
"""of a reset: the same for every env, or a list with one entry per env"""


class Runner(Protocol):
    """The base of a backend. Members with a value here are right for one that has nothing special to offer."""

    spec: EnvSpec
    buffers: Buffers
    group_agents: list[slice]
    """the agents of each group"""
    env_agents: list[slice]
    """the agents of each env"""
    shares_workers: bool
    """whether the same threads, or the caller, step all groups; else all groups can step at the same time"""
    masks_actions: bool = True
    """whether the environments may forbid actions, where their action space has choices"""
    step_now: Callable[[Any, int], bool] | None = None
    """``step_now(action, slot)``: ``take_actions``, ``start`` and ``finish`` of the first group in one. False: nothing has moved, since
    the actions are of another form or outside their space; ``take_actions`` sees to both. None: there is no such shortcut"""
    can_snapshot: bool = False
    """whether ``state`` can be read and written in the middle of episodes"""

    @property
    def state(self) -> bytes:
        """Return the state of all environments: what they simulate, their random numbers and their running episodes."""
        raise ConfigError(f"the environments of {self.spec.name} cannot be saved in the middle of their episodes")

    @state.setter
    def state(self, state: bytes) -> None:
        raise ConfigError(f"the environments of {self.spec.name} cannot be put into a saved state")

    @property
    def restarts(self) -> int:
        """Return how many envs and workers were replaced so far."""
        return 0

    def take_actions(self, group: int, action: Any, slot: int) -> None:
        """Copy the actions for a group's rows of ``slot`` into the buffers; refuse those outside their space where somebody acts."""

    def drain(self) -> Drained | None:
        """Return what ended since the last call, if the runner keeps the statistics itself."""

    def start(self, group: int, command: int, slot: int, options: Options = None) -> None:
        """Set a group going: ``RESET`` or ``STEP``, to be written into ``slot``."""

    def finish(self, groups: Sequence[int]) -> tuple[int, Infos]:
        """Wait for the first of ``groups`` that is done; return it, with the infos of its agents."""
        ...

    def abandon(self, group: int) -> None:
        """Wait until a group that was started is done, and forget what came of it."""

    def call(self, kind: str, name: str, args: Sequence[Any], kwargs: dict[str, Any], envs: Sequence[int]) -> list[Any]:
        """Get, set, call or apply something to each of ``envs``; return what came of it."""
        ...

    def close(self) -> None:
        """End all environments, and whatever was started to run them."""


def shared_spec(specs: Sequence[EnvSpec]) -> EnvSpec:
    """Return the spec of all environments; refuse those with different spaces: one batch needs one kind. Agents keep their names only
    if they are called alike everywhere."""
    for i, spec in enumerate(specs):
        if what := specs[0].difference(spec):
            a, b = getattr(specs[0], what), getattr(spec, what)
            raise ConfigError(f"env {i} has another {what} than env 0; one batch needs one kind.\n  env 0: {a}\n  env {i}: {b}")
    alike = all(spec.agent_names == specs[0].agent_names for spec in specs)
    return specs[0] if alike else replace(specs[0], agents=(), agent_spaces=())


def chosen_envs(envs: Sequence[int] | None, num_envs: int) -> list[int]:
    """Return the environments a caller means: all for None; negative ones count from the end."""
    every = range(num_envs)
    if envs is None:
        return list(every)
    for i in envs:
        if not -num_envs <= i < num_envs:
            raise ConfigError(f"no environment {i}: there are {num_envs}")
    return [every[int(i)] for i in envs]


def check_distinct(envs: Sequence[Any], first: int = 0) -> None:
    """Refuse one environment object behind several rows: each would play, and reset, the others' episode."""
    seen: dict[int, int] = {}
    for i, env in enumerate(envs, first):
        inner = getattr(env, "env", None)
        inner = getattr(inner, "unwrapped", inner) if hasattr(inner, "step") else env  # env may be anything in a fugu.Env
        if seen.setdefault(id(inner), i) != i:
            name = type(inner).__name__
            raise ConfigError(
                f"environments {seen[id(inner)]} and {i} are one and the same {name} object, but each needs its own",
                fix=f"Build a new one in every call: lambda: {name}(...), not lambda: env",
            )


def check_budget(restarts: int, config: VectorConfig, infos: Infos) -> None:
    """Raise when more was restarted than ``max_restarts``, because restarting for ever would hide an environment that is broken."""
    if restarts > config.max_restarts:
        last = next((info["error"] for info in infos.values() if "restarted" in info), "")
        raise EnvError(f"gave up after {restarts} restarts (max_restarts={config.max_restarts}); the last was: {last}")


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
    """Return consecutive slices of the given sizes."""
    out, start = [], 0
    for count in counts:
        out.append(slice(start, start + count))
        start += count
    return out
