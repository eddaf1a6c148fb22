"""The native environment contract, and the rows an environment writes.

An ``Env`` holds ``num_agents`` agents with the same spaces (one, a team, or thousands of independent copies) and writes their
rows into arrays it is given. The convention, everywhere in fugu:

- A row holds an observation, the action taken on it, and what that action produced. ``step(action, out)`` takes the
  actions for the rows last written and writes into ``out`` what they produced (``reward``, ``terminated``, ``truncated``, and
  ``cost`` where the environment has costs) and the next rows (``obs``, ``first``, ``mask``, ``action_mask``).
- Auto-reset happens on the next step. The row after an ending holds the final observation and ``mask=False``: its action is
  ignored, and the step taken on it yields reward and cost 0 and the first row of the next episode, with ``first=True``.
- ``mask=False`` also marks agents that are padding: dead, not yet there, or waiting for their turn.

The environment resets its own agents by this rule; adapters for Gymnasium and PettingZoo do it for theirs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from gymnasium import spaces as gs

from fugu.errors import ConfigError, SpaceError
from fugu.spaces import Layout, maxima

Autoreset = Literal["next_step", "same_step"]

Infos = dict[int, dict[str, Any]]
"""agent index within the env (or batch) -> its non-empty info"""

MAX_MASK_CHOICES = 8192
"""beyond this many discrete choices no action-mask column is kept"""


@dataclass(slots=True, eq=False)
class Rows:
    """The rows of some agents, as arrays with one leading axis. Views into memory owned by someone else."""

    obs: np.ndarray
    """[agents, *row_shape]"""
    reward: np.ndarray
    """[agents] float32; produced by the previous action"""
    terminated: np.ndarray
    """[agents] bool; the previous action ended the episode"""
    truncated: np.ndarray
    """[agents] bool; the previous action was cut off by a limit"""
    first: np.ndarray
    """[agents] bool; ``obs`` is the first of its episode"""
    mask: np.ndarray
    """[agents] bool; an action on ``obs`` counts"""
    action_mask: np.ndarray | None = None
    """[agents, choices] bool; which discrete actions are allowed, ones where the env does not say"""
    cost: np.ndarray | None = None
    """[agents, costs] float32; what the previous action cost, of each kind; None where the env has no costs"""
    infos: Infos = field(default_factory=dict)
    """set on received batches; keyed by global agent index"""
    agents: slice = field(default_factory=lambda: slice(0, 0))
    """which agents of the vector env these are"""
    writer: Any = None
    """scratch for the one env that writes here"""

    @classmethod
    def zeros(cls, layout: Layout, num_agents: int, choices: int = 0, costs: int = 0) -> Rows:
        """Make fresh rows in private memory."""
        return cls(
            obs=layout.zeros(num_agents),
            reward=np.zeros(num_agents, np.float32),
            terminated=np.zeros(num_agents, bool),
            truncated=np.zeros(num_agents, bool),
            first=np.zeros(num_agents, bool),
            mask=np.zeros(num_agents, bool),
            action_mask=np.ones((num_agents, choices), bool) if choices else None,
            cost=np.zeros((num_agents, costs), np.float32) if costs else None,
            agents=slice(0, num_agents),
        )

    def __getitem__(self, agents: slice) -> Rows:
        """Return the rows of some of the agents; every array is a view."""
        start, stop, _ = agents.indices(len(self.reward))
        return Rows(
            self.obs[agents],
            self.reward[agents],
            self.terminated[agents],
            self.truncated[agents],
            self.first[agents],
            self.mask[agents],
            None if self.action_mask is None else self.action_mask[agents],
            None if self.cost is None else self.cost[agents],
            agents=slice(self.agents.start + start, self.agents.start + stop),
        )

    def set_action_mask(self, agent: int, offered: Any) -> None:
        """Write what the env offers, or None for "anything goes". A row that does not act has all choices open, whatever the
        env says of it: without any choice there is no distribution."""
        assert self.action_mask is not None
        if offered is None or not self.mask[agent]:
            self.action_mask[agent] = True
            return
        mask = np.asarray(offered, bool).ravel()
        if mask.size != self.action_mask.shape[1]:
            raise SpaceError(f"expected {self.action_mask.shape[1]} choices, got {mask.size}", where="action_mask")
        self.action_mask[agent] = mask

    def start(self) -> None:
        """Mark all rows as the first of an episode (``obs`` is the env's to write)."""
        self.reward[...] = 0
        self.terminated[...] = False
        self.truncated[...] = False
        self.first[...] = True
        self.mask[...] = True
        if self.cost is not None:
            self.cost[...] = 0


@runtime_checkable
class Env(Protocol):
    """An environment that a vector env can step. No base class is needed; having these members is enough.

    ``observation_space`` and ``action_space`` are those of one agent. ``reset`` and ``step`` write into ``out`` (see
    ``Rows``) and return the non-empty infos by agent, or None. ``action`` is ``[num_agents, *row_shape]`` of the action layout
    and is only valid during the call. An env whose steps have costs beside their reward names them in an attribute ``costs`` and
    writes ``out.cost``. What an episode is to be remembered by beside its return, named numbers, stands in the info of its last step
    as ``episode_log``; their means are logged.

    An env whose steps are computed elsewhere, by other processes or a service, can have the members of ``Deferred`` as well. Then
    the steps of many envs are under way at once, in one process.
    """

    observation_space: gs.Space
    action_space: gs.Space
    num_agents: int

    def reset(self, seed: int | None, out: Rows) -> Infos | None: ...

    def step(self, action: np.ndarray, out: Rows) -> Infos | None: ...

    def close(self) -> None: ...


class Waiter(Protocol):
    """Waits for whatever the envs that share it have under way."""

    def wait(self, timeout: float) -> None:
        """Return when a step of one of them may have become ready, at the latest after ``timeout`` seconds."""
        ...


@runtime_checkable
class Deferred(Env, Protocol):
    """An ``Env`` whose steps are computed elsewhere while others are set going: ``step`` is ``begin``, wait until ``ready``,
    ``finish``. ``reset`` and ``close`` may come in between, and drop what is under way."""

    waiter: Waiter
    """the same object for all envs that one wait can serve"""

    def begin(self, action: np.ndarray, out: Rows) -> None:
        """Set a step going and return at once. ``action`` is only valid during the call; ``out`` is given again to ``finish``."""
        ...

    def ready(self) -> bool:
        """Return, at once, True if ``finish`` would return at once; once it is so it stays so."""
        ...

    def finish(self, out: Rows) -> Infos | None:
        """Write what came of the step, as ``step`` does."""
        ...


DEFERRED = ("begin", "ready", "finish", "waiter")


def is_deferred(env: Any) -> bool:
    """Return True if ``env``, an instance or a class, has all members that let its steps be computed elsewhere."""
    return all(hasattr(env, name) for name in DEFERRED)


@dataclass(frozen=True)
class EnvSpec:
    """The facts a vector env must know of its environments before it can lay out memory. Travels between processes."""

    observation_space: gs.Space
    action_space: gs.Space
    num_agents: int
    metadata: dict[str, Any] = field(default_factory=dict)
    render_mode: str | None = None
    name: str = ""
    autoreset: Autoreset = "next_step"
    """when the env restarts an ended episode"""
    costs: tuple[str, ...] = ()
    """what a step costs beside its reward: the names of the columns of ``cost``"""

    def difference(self, other: EnvSpec) -> str | None:
        """Name the space, or the costs, that keep envs of both kinds from sharing one batch; None if nothing does."""
        for name in ("observation_space", "action_space"):
            a, b = getattr(self, name), getattr(other, name)
            if a is not b and (a != b or maxima(a) != maxima(b)):
                return name
        return "costs" if self.costs != other.costs else None


def spec_of(env: Env) -> EnvSpec:
    if env.num_agents < 1:
        raise ConfigError(f"num_agents={env.num_agents} of {type(env).__name__} must be at least 1")
    return EnvSpec(
        env.observation_space,
        env.action_space,
        int(env.num_agents),
        dict(getattr(env, "metadata", None) or {}),
        getattr(env, "render_mode", None),
        getattr(env, "name", type(env).__name__),
        getattr(env, "autoreset", "next_step"),
        tuple(getattr(env, "costs", ())),
    )


def cost_metric(metric: str, cost: str, costs: Collection[str]) -> str:
    """Name the ``metric`` of a cost: by itself where it is the only cost, else with the cost's name behind."""
    return metric if len(costs) == 1 else f"{metric}/{cost}"


def discrete_choices(space: gs.Space) -> int:
    """Count the columns of an action mask for ``space``: the choices of its discrete leaves side by side; 0 for none."""
    total = 0
    for leaf in Layout(space).leaves:
        if isinstance(leaf.space, gs.Discrete):
            total += int(leaf.space.n)
        elif isinstance(leaf.space, gs.MultiDiscrete):
            total += int(leaf.space.nvec.sum())
    return total if total <= MAX_MASK_CHOICES else 0


def offers_mask(observation_space: gs.Space, action_space: gs.Space) -> bool:
    """Return True if the observation is a Dict with an ``action_mask`` for the choices of ``action_space``."""
    if not isinstance(observation_space, gs.Dict) or "action_mask" not in observation_space.spaces:
        return False
    choices = discrete_choices(action_space)
    if choices == 0:
        return False
    size = int(np.prod(observation_space["action_mask"].shape or (0,)))
    if size != choices:
        raise ConfigError(
            f"the observation's 'action_mask' has {size} entries, but {action_space} has {choices} choices",
            fix="give it one entry per choice, or another name if it means something else",
        )
    return True
