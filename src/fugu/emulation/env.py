"""The native environment contract, and the rows an environment writes.

An ``Env`` holds ``num_agents`` agents with the same spaces (one, a team, or thousands of independent copies) and writes their
rows into arrays it is given. The convention, everywhere in fugu:

- A row holds an observation, the action taken on it, and what that action produced. ``step(action, out)`` takes the
  actions for the rows last written and writes into ``out`` what they produced (``reward``, ``terminated``, ``truncated``, and
  ``cost`` and columns of its own where the environment has any) and the next rows (``obs``, ``first``, ``mask``, ``action_mask``).
- Auto-reset happens on the next step. The row after an ending holds the final observation and ``mask=False``: its action is
  ignored, and the step taken on it yields reward, cost and the like of 0 and the first row of the next episode, with ``first=True``.
- ``mask=False`` also marks agents that are padding: dead, not yet there, or waiting for their turn.

The environment resets its own agents by this rule; adapters for Gymnasium and PettingZoo do it for theirs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, overload, runtime_checkable

import numpy as np
from gymnasium import spaces as gs

from fugu.emulation.columns import Own, blanks, outcomes, own_columns, present
from fugu.errors import ConfigError, SpaceError
from fugu.spaces import Layout, maxima

Autoreset = Literal["next_step", "same_step"]

Infos = dict[int, dict[str, Any]]
"""agent index within the env (or batch) -> its non-empty info"""

MAX_MASK_CHOICES = 8192
"""beyond this many discrete choices no action-mask column is kept"""


@dataclass(slots=True, eq=False)
class Rows:
    """The rows of some agents, as arrays with one leading axis. Views into memory owned by someone else.

    ``rows["reward"]`` is a column by its name, as ``rows.reward`` is; what an environment declares beyond those named here is found
    by its name alone. ``rows[2:5]`` are the rows of some agents.
    """

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
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    """all columns there are, by name"""

    def __post_init__(self) -> None:
        if not self.columns:
            found = {name: getattr(self, name) for name in NAMED}
            self.columns = {name: column for name, column in found.items() if column is not None}

    @classmethod
    def of(cls, columns: dict[str, np.ndarray], agents: slice) -> Rows:
        """Make rows of columns by name."""
        return cls(**{name: columns.get(name) for name in NAMED}, agents=agents, columns=columns)  # type: ignore[arg-type]

    @classmethod
    def zeros(cls, spec: EnvSpec, num_agents: int | None = None) -> Rows:
        """Make fresh rows of one environment like ``spec``, or of ``num_agents`` agents, in private memory."""
        count = spec.num_agents if num_agents is None else num_agents
        columns = {form.name: np.zeros((count, *form.shape), form.dtype) for form in present(spec)}
        for name, value in blanks().items():
            if name in columns:
                columns[name][...] = value
        return cls.of(columns, slice(0, count))

    @overload
    def __getitem__(self, which: str) -> np.ndarray: ...

    @overload
    def __getitem__(self, which: slice) -> Rows: ...

    def __getitem__(self, which: str | slice) -> np.ndarray | Rows:
        """Return a column by its name, or the rows of some of the agents; every array is a view."""
        if isinstance(which, str):
            return self.columns[which]
        start, stop, _ = which.indices(len(self.reward))
        agents = slice(self.agents.start + start, self.agents.start + stop)
        return Rows.of({name: column[which] for name, column in self.columns.items()}, agents)

    def outcome(self) -> list[np.ndarray]:
        """Return the columns that say what the previous action produced."""
        return [self.columns[name] for name in outcomes(self.columns)]

    def blank(self) -> None:
        """Write that nobody is there: zeros, and nothing forbidden."""
        for column in self.columns.values():
            column[...] = 0
        for name, value in blanks().items():
            if name in self.columns:
                self.columns[name][...] = value

    def set_action_mask(self, agent: int, offered: Any, space: gs.Space | None = None) -> None:
        """Write what the env offers for actions of ``space``, or None for "anything goes". A row that does not act has all choices
        open, whatever the env says of it: without any choice there is no distribution."""
        assert self.action_mask is not None
        if offered is None or not self.mask[agent]:
            self.action_mask[agent] = True
            return
        if isinstance(offered, tuple | list | dict):
            offered = flat_mask(offered, space)
        mask = np.asarray(offered, bool).ravel()
        if mask.size != self.action_mask.shape[1]:
            raise SpaceError(f"expected {self.action_mask.shape[1]} choices, got {mask.size}", where="action_mask")
        self.action_mask[agent] = mask

    def start(self) -> None:
        """Mark all rows as the first of an episode (``obs`` is the env's to write)."""
        for column in self.outcome():
            column[...] = 0
        self.first[...] = True
        self.mask[...] = True


NAMED = ("obs", "reward", "terminated", "truncated", "first", "mask", "action_mask", "cost")
"""columns that ``Rows`` has as attributes too"""


@runtime_checkable
class Env(Protocol):
    """An environment that a vector env can step. No base class is needed; having these members is enough.

    ``observation_space`` and ``action_space`` are those of one agent. ``reset`` and ``step`` write into ``out`` (see
    ``Rows``) and return the non-empty infos by agent, or None. ``action`` is ``[num_agents, *row_shape]`` of the action layout
    and is only valid during the call. An env whose steps have costs beside their reward names them in an attribute ``costs`` and
    writes ``out.cost``. What else it says of every step, ``columns = {"risk": ((), "float32")}``, it writes into ``out["risk"]``.
    What an episode is to be remembered by beside its return, named numbers, stands in the info of its last step as
    ``episode_log``; their means are logged. Where ``agent_names`` says what the agents are called, returns are also told by agent.

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
    columns: Own = field(default_factory=dict)
    """what the env says of a step beyond the columns that all have"""
    agents: tuple[Any, ...] = ()
    """names of the agents in the order of their rows; empty where they have none"""
    agent_spaces: tuple[tuple[gs.Space, gs.Space], ...] = ()
    """observation and action space of each of them; empty where all have those of the spec"""

    @property
    def agent_names(self) -> tuple[str, ...]:
        """Return what the agents are called, in the order of their rows; empty where they have no names."""
        return tuple(map(str, self.agents))

    @property
    def obs_layout(self) -> Layout:
        """Return how an observation lies in a row."""
        return Layout(self.observation_space)

    @property
    def action_layout(self) -> Layout:
        """Return how an action lies in a row."""
        return Layout(self.action_space)

    @property
    def choices(self) -> int:
        """Count the columns of the action mask that the action space has room for."""
        return discrete_choices(self.action_space)

    def difference(self, other: EnvSpec) -> str | None:
        """Name the space, the costs or the columns that keep envs of both kinds from sharing one batch; None if nothing does."""
        for name in ("observation_space", "action_space"):
            a, b = getattr(self, name), getattr(other, name)
            if a is not b and (a != b or maxima(a) != maxima(b)):
                return name
        return next((name for name in ("costs", "columns") if getattr(self, name) != getattr(other, name)), None)


def spec_of(env: Env) -> EnvSpec:
    if env.num_agents < 1:
        raise ConfigError(f"num_agents={env.num_agents} of {type(env).__name__} must be at least 1")
    name = getattr(env, "name", type(env).__name__)
    return EnvSpec(
        env.observation_space,
        env.action_space,
        int(env.num_agents),
        dict(getattr(env, "metadata", None) or {}),
        getattr(env, "render_mode", None),
        name,
        getattr(env, "autoreset", "next_step"),
        tuple(getattr(env, "costs", ())),
        own_columns(getattr(env, "columns", None), name),
        *_named_agents(env),
    )


def _named_agents(env: Env) -> tuple[Any, ...]:
    """Return the names and the spaces of the agents of a team (``team.py``); of other environments their ``agent_names``."""
    names, spaces = getattr(env, "agents", ()), getattr(env, "agent_spaces", None)
    if isinstance(spaces, tuple) and isinstance(names, tuple):
        return names, spaces
    names = tuple(getattr(env, "agent_names", ()))
    if names and len(names) != env.num_agents:
        raise ConfigError(f"agent_names of {type(env).__name__} has {len(names)} names for num_agents={env.num_agents}")
    return names, ()


def cost_metric(metric: str, cost: str, costs: Collection[str]) -> str:
    """Name the ``metric`` of a cost: by itself where it is the only cost, else with the cost's name behind."""
    return metric if len(costs) == 1 else f"{metric}/{cost}"


def flat_mask(offered: Any, space: gs.Space | None = None) -> np.ndarray:
    """Return a mask for actions of ``space`` as one array of bools, also where it is a tuple or dict with an array for each part, in
    the form that ``space.sample`` takes. A part that is None, or is not in the dict, forbids nothing."""
    if offered is None:
        return np.ones(0 if space is None else discrete_choices(space), bool)
    inner: list[gs.Space | None] = []
    if isinstance(offered, dict):
        keys = list(space.spaces) if isinstance(space, gs.Dict) else sorted(offered)
        if unknown := [key for key in offered if key not in keys]:
            raise SpaceError(f"there is no part {unknown[0]!r}; parts of the actions are {keys}", where="action_mask")
        inner = [space[key] if isinstance(space, gs.Dict) else None for key in keys]
        offered = tuple(offered.get(key) for key in keys)
    elif isinstance(space, gs.Tuple) and isinstance(offered, tuple | list) and len(space) == len(offered):
        inner = list(space.spaces)
    if isinstance(offered, tuple | list) and any(isinstance(part, np.ndarray | tuple | list | dict | None) for part in offered):
        inner = inner or [None] * len(offered)
        return np.concatenate([np.ones(0, bool), *(flat_mask(*part) for part in zip(offered, inner, strict=True))])
    return np.asarray(offered).astype(bool).ravel()


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
