"""Hold what the agents of a PettingZoo environment share: their fixed order, their spaces, and how their rows are written.

Comes in: what the env says of one agent, by its name. Goes out: that agent's row, checked, with its action mask; errors name the
agent. ``action_mask`` comes from ``obs["action_mask"]`` or ``info["action_mask"]``. Rows that do not act have all choices
open, whatever the env says: a row without any choice has no distribution. The observation keeps what the env said.
Agents of different kinds get one space with room for all (``kinds.py``); choices that an agent does not have are masked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces as gs

from fugu.emulation.columns import blanks
from fugu.emulation.env import Rows, discrete_choices, flat_mask, offers_mask
from fugu.emulation.gymnasium import Autoreset, _decoder, _takes, required
from fugu.emulation.infos import Said
from fugu.emulation.kinds import common_action, common_observation, widened
from fugu.emulation.writer import RowWriter, row_writer
from fugu.errors import ConfigError, SpaceError
from fugu.spaces import Layout, Packer, convert


class Team:
    """The agents of ``env``, one row each in the order of ``possible_agents``. Parent of both PettingZoo adapters."""

    def __init__(self, env: Any, *, autoreset: Autoreset, check_finite: bool, cast: bool) -> None:
        if autoreset != "next_step":
            raise ConfigError(
                f"autoreset={autoreset!r} has no meaning where agents end one by one: a team starts anew together, on the "
                "step after its last agent ended",
                fix='Leave it out, or use autoreset="next_step"',
            )
        self.env = env
        self.agents: tuple[Any, ...] = tuple(getattr(env, "possible_agents", ()))
        """who may come, in the order of their rows"""
        if not self.agents:
            raise ConfigError(
                f"{type(env).__name__} has agents but no possible_agents, and every agent that may come needs a row",
                fix="Set possible_agents to the list of their names",
            )
        self.num_agents = len(self.agents)
        self.index = {agent: i for i, agent in enumerate(self.agents)}
        self.observation_spaces = _spaces(env, self.agents, "observation_space")
        self.observation_space = _common(env, self.agents, self.observation_spaces, "observation_space", common_observation)
        action_spaces = _spaces(env, self.agents, "action_space")
        self.action_space = _common(env, self.agents, action_spaces, "action_space", common_action)
        self.narrow = [space != self.observation_space for space in self.observation_spaces]
        """whose observations must be filled up"""
        self.choices = [discrete_choices(space) if space != self.action_space else None for space in action_spaces]
        """of an agent that has fewer than others"""
        alike = not any(self.narrow) and not any(self.choices)
        self.agent_spaces = () if alike else tuple(zip(self.observation_spaces, action_spaces, strict=True))
        """observation and action space of each agent; empty where all have the same"""
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self.render_mode = getattr(env, "render_mode", None)
        self.name = str(self.metadata.get("name") or type(getattr(env, "unwrapped", env)).__name__)
        self.packer = Packer(Layout(self.observation_space), finite=check_finite, cast=cast)
        self.mask_in_obs = offers_mask(self.observation_space, self.action_space)
        self.mask_in_info = False
        self.said = Said(env, self.name)
        self.costs, self.columns = self.said.costs, self.said.columns
        self._discrete = isinstance(self.action_space, gs.Discrete)
        self._decode = _decoder(self.action_space)
        self._reset_takes = [name for name in ("seed", "options") if _takes(env.reset, name)]
        self._reset_requires = required(env.reset)

    def close(self) -> None:
        self.env.close()

    def rows(self, out: Rows) -> AgentRows:
        """Return the writers of ``out``; they are made once per slot."""
        if out.writer is None or out.writer.team is not self:
            out.writer = AgentRows(self, out)
        return out.writer

    def action_of(self, i: int, action: np.ndarray) -> Any:
        """Return the action of agent ``i`` as the env expects it."""
        most = self.choices[i]
        if most is not None and action[i] >= most:
            raise SpaceError(
                f"action {int(action[i])} is one of others' kinds, it has {most} choices", fix="choose by the action_mask"
            ).of(agent=self.agents[i])
        return action[i] if self._discrete else self._decode(action[i : i + 1])

    def reset_env(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        given = {"seed": seed, "options": options}
        result = self.env.reset(
            **self._reset_requires | {name: given[name] for name in self._reset_takes if given[name] is not None}
        )
        check_anyone(self.env)
        return result

    def row_of(self, agent: Any) -> int:
        if agent not in self.index:
            raise SpaceError(
                f"agent {agent!r} is not in possible_agents={list(self.agents)}", fix="list there every agent that may come"
            )
        return self.index[agent]

    def here(self) -> list[int]:
        """Return the rows of the agents that are there, in the env's own order."""
        return [self.row_of(agent) for agent in self.env.agents]

    def check_left(self, gone: set[int]) -> None:
        """Refuse agents that left without an ending (``gone``): whether to bootstrap from their last state cannot be known."""
        if gone:
            raise SpaceError(
                f"agent {self.agents[min(gone)]!r} is gone from env.agents, but it was never terminated or truncated",
                fix="set one of them on the step in which an agent leaves",
            )


class AgentRows:
    """Writes the rows of one ``Rows``, agent by agent."""

    def __init__(self, team: Team, out: Rows) -> None:
        self.team, self.out = team, out
        self._writers = [row_writer(team.packer, out, i) for i in range(team.num_agents)]
        self._says = bool(team.said)
        self._blank = [False] * team.num_agents
        values = blanks()
        self._small = [(column, values.get(name, False)) for name, column in out.columns.items() if name != "obs"]
        """all columns but observations, each with what it holds where nobody acts"""

    def step(self, i: int, result: tuple[Any, Any, Any, Any, Any], *, first: bool) -> int:
        """Write what the env says of agent ``i``; ``result`` has the order of Gymnasium's step. Returns the writer's bits."""
        try:
            if self.team.narrow[i]:
                result = (self._widened(i, result[0]), *result[1:])
            code = self._writers[i].step(result)
            if code < 0:
                code = RowWriter(self.team.packer, self.out, i).step(result)
            if self._says:
                if first:
                    self.team.said.clear(self.out, i)  # it has not acted yet
                else:
                    self.team.said.write(result[4], self.out, i)
        except SpaceError as error:
            raise error.of(agent=self.team.agents[i]) from None
        if first:
            self.out.first[i] = True
        self._finish(i, result[0], result[4])
        return code

    def start(self, i: int, obs: Any, info: dict[str, Any], *, acting: bool = True) -> None:
        """Write the first row of agent ``i``, which waits for its turn if it is not ``acting``."""
        try:
            if self.team.narrow[i]:
                obs = self._widened(i, obs)
            if not self._writers[i].start(obs):
                RowWriter(self.team.packer, self.out, i).start(obs)
        except SpaceError as error:
            raise error.of(agent=self.team.agents[i]) from None
        self.out.mask[i] = acting
        if self._says:
            self.team.said.clear(self.out, i)
        self._finish(i, obs, info)

    def _widened(self, i: int, obs: Any) -> Any:
        return widened(obs, self.team.observation_spaces[i], self.team.observation_space)

    def pad(self, i: int) -> None:
        """Write that agent ``i`` is not there. Nothing is done where this slot already says so."""
        if self._blank[i]:
            return
        self.out.obs[i] = 0
        for column, value in self._small:
            column[i] = value
        self._blank[i] = True

    def wait(self) -> None:
        """Write that nobody acts; observations stay as they are."""
        for column, value in self._small:
            column[...] = value

    def _finish(self, i: int, obs: Any, info: dict[str, Any]) -> None:
        """Write the action mask of agent ``i``, where the env offers one."""
        self._blank[i] = False
        out, team = self.out, self.team
        if out.action_mask is None:
            return
        choices = team.choices[i]
        if "action_mask" in info:
            team.mask_in_info = True
        elif choices is None and not (team.mask_in_obs or team.mask_in_info):
            return
        offered = obs["action_mask"] if team.mask_in_obs else info.get("action_mask")
        try:
            if choices is not None:
                offered = _with_surplus(offered, choices, out.action_mask.shape[1])
            out.set_action_mask(i, offered, team.action_space)
        except SpaceError as error:
            raise error.of(agent=team.agents[i]) from None


def check_anyone(env: Any) -> None:
    """Refuse a reset that left no agent. Others may come late, but with nobody to act the next step would be a reset again."""
    if not env.agents:
        raise SpaceError("reset() left no agents", fix="set self.agents = self.possible_agents[:] in it")


def _spaces(env: Any, agents: tuple[Any, ...], method: str) -> list[gs.Space]:
    space_of = getattr(env, method, None)
    if not callable(space_of):
        raise ConfigError(
            f"{type(env).__name__}.{method} must be a method, {method}(agent), as in PettingZoo; got {space_of!r:.80}"
        )
    return [convert(space_of(agent)) for agent in agents]


def _common(
    env: Any,
    agents: tuple[Any, ...],
    spaces: list[gs.Space],
    method: str,
    common: Callable[[list[gs.Space]], gs.Space | None],
) -> gs.Space:
    """Return the space all agents share, or one with room for all of theirs."""
    space = common(spaces)
    if space is not None:
        return space
    other = next(i for i, space in enumerate(spaces) if common([spaces[0], space]) is None)
    able = "vectors of one dtype, or Dicts of them" if method == "observation_space" else "Discrete"
    raise ConfigError(
        f"{type(env).__name__}: no {method} has room for both {agents[0]!r} and {agents[other]!r}.\n"
        f"  {agents[0]!r}: {spaces[0]}\n  {agents[other]!r}: {spaces[other]}",
        fix=f"Where they differ they must be {able}; wrap the environment so that they are",
    )


def _with_surplus(offered: Any, choices: int, columns: int) -> np.ndarray:
    """Return the mask the env offers, or one that allows everything, with the choices that only others have masked."""
    mask = np.zeros(columns, bool)
    given = np.ones(choices, bool) if offered is None else flat_mask(offered)
    if given.size not in (choices, columns):
        raise SpaceError(f"expected {choices} choices, got {given.size}", where="action_mask")
    mask[:choices] = given[:choices]
    return mask
