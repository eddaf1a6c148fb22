"""What a policy is given, as rows: one observation, a batch, or those of a team by the names of its agents; and actions back.

A team's rows are those of all its agents, in their order, as in training: agents that are not named have rows of zeros that do not
act. An observation with a part ``action_mask`` for the choices says itself what is allowed.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces as gs
from torch import Tensor

from fugu.emulation.env import EnvSpec, discrete_choices, flat_mask, offers_mask
from fugu.emulation.kinds import widened
from fugu.errors import SpaceError, did_you_mean
from fugu.spaces.values import Values


@dataclass(frozen=True, slots=True)
class Observed:
    rows: np.ndarray
    """[n, *row_shape]"""
    single: bool
    """True if it was one observation"""
    here: np.ndarray
    """[n] bool; False where an agent of a team was not named"""
    action_mask: np.ndarray | None = None
    """[n, choices] bool; None: nothing is forbidden"""
    names: tuple[tuple[int, Any], ...] | None = None
    """row and name of the agents that were named; None: rows have no names"""

    def with_rows(self, rows: np.ndarray) -> Observed:
        return dataclasses.replace(self, rows=rows)

    def starts(self, episode_start: Any, without_state: bool) -> np.ndarray:
        """Return which rows are the first of an episode."""
        if episode_start is None:
            return self.here & without_state
        if isinstance(episode_start, Mapping):
            flags = np.zeros(len(self.rows), bool)
            for i, name in self.names or ():
                flags[i] = bool(episode_start.get(name, False))
            return flags
        flags = np.asarray(episode_start, bool)
        if flags.shape not in ((), (1,), (len(self.rows),)):
            raise SpaceError(f"expected {len(self.rows)} flags, got {list(flags.shape)}", where="episode_start")
        return np.broadcast_to(flags, len(self.rows)) & self.here

    def numbers(self, column: np.ndarray) -> Any:
        """Return a number per row in the form of what was given."""
        if self.names is not None:
            return {name: float(column[i]) for i, name in self.names}
        return float(column[0]) if self.single else column


class Reader:
    """Reads what the policy of an environment like ``env`` is given."""

    def __init__(self, env: EnvSpec) -> None:
        self.env = env
        self.observations, self.actions = Values(env.observation_space), Values(env.action_space)
        self.choices = discrete_choices(env.action_space)
        self.masked = offers_mask(env.observation_space, env.action_space)
        """True if observations say which choices are allowed"""
        self._mask_leaf = next(
            (i for i, leaf in enumerate(self.observations.layout.leaves) if self.masked and leaf.path[:1] == ("action_mask",)),
            0,
        )
        self._index = {name: i for i, name in enumerate(env.agents)}
        self._own = [discrete_choices(action) for _, action in env.agent_spaces]
        """choices of each agent of a team whose agents differ"""

    def read(self, obs: Any, action_mask: Any = None) -> Observed:
        """Return ``obs`` as rows; SpaceError if it does not fit the space."""
        if self._by_name(obs):
            return self._team(obs, action_mask)
        try:
            rows, single = self.observations.rows(obs)
        except SpaceError as error:
            raise self._refused(error) from None
        mask = None
        if action_mask is not None:
            mask = self._mask(action_mask, (len(rows),) if not single else (), "action_mask").reshape(len(rows), -1)
        elif self.masked:
            mask = self._offered(rows)
        return Observed(rows, single, np.ones(len(rows), bool), self._forbidding(mask))

    def shown(self, env_action: Tensor, given: Observed) -> Any:
        """Return actions in the environment's own form, and in that of what was given."""
        rows = env_action.cpu().numpy()
        if given.names is None:
            return self.actions.value(rows, single=given.single)
        return {name: self.actions.value(rows[i : i + 1], single=True) for i, name in given.names}

    def nothing(self, given: Observed) -> Any:
        """Return the actions on no observation, in the form of what was given."""
        return {} if given.names is not None else self.actions.value(self.actions.layout.zeros(0), single=False)

    def _by_name(self, obs: Any) -> bool:
        if not self._index or not isinstance(obs, Mapping):
            return False
        space = self.env.observation_space
        return not (isinstance(space, gs.Dict) and set(obs) <= set(space.spaces) and obs)

    def _team(self, obs: Mapping[Any, Any], action_mask: Any) -> Observed:
        count, layout = self.env.num_agents, self.observations.layout
        rows, here = layout.zeros(count if obs else 0), np.zeros(count if obs else 0, bool)
        mask = np.ones((len(rows), self.choices), bool) if self.choices else None
        for name, value in obs.items():
            i = self._index.get(name)
            if i is None:
                raise SpaceError(
                    f"there is no agent {name!r}.{did_you_mean(str(name), map(str, self._index))}", where="observation"
                )
            try:
                if self.env.agent_spaces:
                    value = widened(value, self.env.agent_spaces[i][0], self.env.observation_space)
                self.observations.packer.pack(value, rows[i, ...])
            except SpaceError as error:
                raise self._refused(error).of(agent=name) from None
            here[i] = True
        if mask is not None and len(rows):
            self._team_masks(mask, rows, here, action_mask)
        names = tuple((self._index[name], name) for name in obs)
        return Observed(rows, False, here, self._forbidding(mask), names)

    def _team_masks(self, mask: np.ndarray, rows: np.ndarray, here: np.ndarray, action_mask: Any) -> None:
        """Write what the agents that are here may choose: what they have, their observations allow and ``action_mask`` says."""
        if not isinstance(action_mask, Mapping | None):
            raise SpaceError(
                f"expected a dict by the names of the agents, as the observations are, got {type(action_mask).__name__}",
                where="action_mask",
            )
        if self.masked:
            mask[here] = self._offered(rows)[here]
        for i, name in enumerate(self.env.agents):
            own = self._own[i] if self._own else self.choices
            given = (action_mask or {}).get(name)
            if here[i] and given is not None:
                given = self._flags(given, ())
                given = np.ravel(given)[:own] if np.size(given) == self.choices else given
                mask[i, :own] = self._mask(given, (), f"action_mask of {name!r}", own)
            mask[i, own:] &= not here[i]

    def mask_of(self, rows: np.ndarray) -> np.ndarray | None:
        """Return the flags that the only row of ``rows`` has for the choices, as a view of it; None if observations have none."""
        return self.observations.layout.leaf_views(rows)[self._mask_leaf].reshape(-1) if self.masked else None

    def _offered(self, rows: np.ndarray) -> np.ndarray:
        return self.observations.layout.leaf_views(rows)[self._mask_leaf].reshape(len(rows), -1) != 0

    def _mask(self, given: Any, batch: tuple[int, ...], where: str, choices: int | None = None) -> np.ndarray:
        expected, mask = choices or self.choices, self._flags(given, batch)
        if not self.choices or mask.size != expected * int(np.prod(batch)) or mask.dtype.kind not in "biu":
            raise SpaceError(
                f"expected {[*batch, expected]} flags, one per choice of {self.env.action_space}, got {mask.dtype}{list(mask.shape)}",
                where=where,
            )
        return mask.astype(bool)

    def _flags(self, given: Any, batch: tuple[int, ...]) -> np.ndarray:
        """Return a mask as an array, also where it is given by parts of the action space, as environments do: of a batch a list."""
        with contextlib.suppress(ValueError):  # parts of different length
            mask = np.asarray(given)
            if mask.dtype != object:
                return mask
        parts = [flat_mask(one, self.env.action_space) for one in (given if batch else [given])]
        return np.stack(parts) if len({part.size for part in parts}) == 1 else np.asarray(None)

    @staticmethod
    def _forbidding(mask: np.ndarray | None) -> np.ndarray | None:
        """Return ``mask`` if it forbids something. A row without any choice left has all: otherwise there is no distribution."""
        if mask is None or mask.all():
            return None
        return mask | ~mask.any(1, keepdims=True)

    def _refused(self, error: SpaceError) -> SpaceError:
        """Return the error in the words of someone who acts, not of one who writes an environment."""
        whole = error.where in ("", "value") or error.where.startswith("value of number")
        where = f"observation{error.where.removeprefix('value')}" if whole else error.where
        kind = f"This policy is for {self.env.name}: give it observations of {_brief(self.env.observation_space)}"
        return SpaceError(error.problem, where=where, fix=f"{kind}, one, or a batch with one more axis in front")


def _brief(space: Any) -> str:
    text = str(space)
    return text if len(text) <= 200 else text[:197] + "..."
