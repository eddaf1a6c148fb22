"""What the agents of a PettingZoo environment have in common: their fixed order, their spaces, and how their rows are written.

Comes in: what the env says of one agent, by its name. Goes out: that agent's row, checked, with its action mask; errors name the
agent. ``action_mask`` comes from ``obs["action_mask"]`` or ``info["action_mask"]``. Rows that do not act have all choices
open, whatever the env says: a row without any choice has no distribution. The observation keeps what the env said.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces as gs

from fugu.emulation.costs import cost_names, write_costs
from fugu.emulation.env import Rows, offers_mask
from fugu.emulation.gymnasium import Autoreset, _decoder, _takes
from fugu.emulation.writer import RowWriter, row_writer
from fugu.errors import ConfigError, SpaceError
from fugu.spaces import Layout, Packer, convert


class Team:
    """The agents of ``env``, one row each in the order of ``possible_agents``. Parent of both PettingZoo adapters."""

    def __init__(self, env: Any, *, autoreset: Autoreset, check_finite: bool, cast: bool) -> None:
        if autoreset != "next_step":
            raise ConfigError(
                f"autoreset={autoreset!r} has no meaning where agents end one by one: a team starts anew together, on the "
                'step after its last agent ended. Leave it out, or use autoreset="next_step"'
            )
        self.env = env
        self.agents: tuple[Any, ...] = tuple(getattr(env, "possible_agents", ()))
        """who may come, in the order of their rows"""
        if not self.agents:
            raise ConfigError(
                f"{type(env).__name__} has agents but no possible_agents, and every agent that may come needs a row. "
                "Set possible_agents to the list of their names"
            )
        self.num_agents = len(self.agents)
        self.index = {agent: i for i, agent in enumerate(self.agents)}
        self.observation_space = _common_space(env, self.agents, "observation_space", "pad_observations_v0")
        self.action_space = _common_space(env, self.agents, "action_space", "pad_action_space_v0")
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self.render_mode = getattr(env, "render_mode", None)
        self.name = str(self.metadata.get("name") or type(getattr(env, "unwrapped", env)).__name__)
        self.packer = Packer(Layout(self.observation_space), finite=check_finite, cast=cast)
        self.mask_in_obs = offers_mask(self.observation_space, self.action_space)
        self.mask_in_info = False
        self.costs = cost_names(env)
        self._discrete = isinstance(self.action_space, gs.Discrete)
        self._decode = _decoder(self.action_space)
        self._reset_takes = [name for name in ("seed", "options") if _takes(env.reset, name)]

    def close(self) -> None:
        self.env.close()

    def rows(self, out: Rows) -> AgentRows:
        """The writers of ``out``; made once per slot."""
        if out.writer is None or out.writer.team is not self:
            out.writer = AgentRows(self, out)
        return out.writer

    def action_of(self, i: int, action: np.ndarray) -> Any:
        """The action of agent ``i`` as the env expects it."""
        return action[i] if self._discrete else self._decode(action[i : i + 1])

    def reset_env(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        given = {"seed": seed, "options": options}
        return self.env.reset(**{name: given[name] for name in self._reset_takes if given[name] is not None})

    def row_of(self, agent: Any) -> int:
        if agent not in self.index:
            raise SpaceError(
                f"agent {agent!r} is not in possible_agents={list(self.agents)}; list there every agent that may come"
            )
        return self.index[agent]

    def here(self) -> list[int]:
        """The agents that are there, in the env's own order."""
        return [self.row_of(agent) for agent in self.env.agents]

    def check_left(self, gone: set[int]) -> None:
        """``gone`` are agents that left without an ending: whether to bootstrap from their last state cannot be known."""
        if gone:
            raise SpaceError(
                f"agent {self.agents[min(gone)]!r} is gone from env.agents, but it was never terminated or truncated; "
                "set one of them on the step in which an agent leaves"
            )


class AgentRows:
    """Writes the rows of one ``Rows``, agent by agent."""

    def __init__(self, team: Team, out: Rows) -> None:
        self.team, self.out = team, out
        self._writers = [row_writer(team.packer, out, i) for i in range(team.num_agents)]
        self._blank = [False] * team.num_agents

    def step(self, i: int, result: tuple[Any, Any, Any, Any, Any], *, first: bool) -> int:
        """``result`` is what the env says of agent ``i``, in the order of Gymnasium's step. Returns the writer's bits."""
        try:
            code = self._writers[i].step(result)
            if code < 0:
                code = RowWriter(self.team.packer, self.out, i).step(result)
            if self.out.cost is not None:
                if first:
                    self.out.cost[i] = 0  # it has not acted yet
                else:
                    write_costs(self.team.costs, result[4], self.out.cost[i])
        except SpaceError as error:
            raise SpaceError(f"agent {self.team.agents[i]!r}: {error}") from None
        if first:
            self.out.first[i] = True
        self._finish(i, result[0], result[4])
        return code

    def start(self, i: int, obs: Any, info: dict[str, Any], *, acting: bool = True) -> None:
        """The first row of agent ``i``; not ``acting``: it waits for its turn."""
        try:
            if not self._writers[i].start(obs):
                RowWriter(self.team.packer, self.out, i).start(obs)
        except SpaceError as error:
            raise SpaceError(f"agent {self.team.agents[i]!r}: {error}") from None
        self.out.mask[i] = acting
        if self.out.cost is not None:
            self.out.cost[i] = 0
        self._finish(i, obs, info)

    def pad(self, i: int) -> None:
        """Agent ``i`` is not there. Nothing is done where this slot already says so."""
        if self._blank[i]:
            return
        out = self.out
        out.obs[i] = 0
        for column in (out.reward, out.terminated, out.truncated, out.first, out.mask):
            column[i] = 0
        if out.action_mask is not None:
            out.action_mask[i] = True
        if out.cost is not None:
            out.cost[i] = 0
        self._blank[i] = True

    def _finish(self, i: int, obs: Any, info: dict[str, Any]) -> None:
        """Write the action mask of agent ``i``, where the env offers one."""
        self._blank[i] = False
        out, team = self.out, self.team
        if out.action_mask is None:
            return
        if "action_mask" in info:
            team.mask_in_info = True
        elif not (team.mask_in_obs or team.mask_in_info):
            return
        offered = obs["action_mask"] if team.mask_in_obs else info.get("action_mask")
        try:
            out.set_action_mask(i, offered)
        except SpaceError as error:
            raise SpaceError(f"agent {team.agents[i]!r}: {error}") from None


def _common_space(env: Any, agents: tuple[Any, ...], method: str, remedy: str) -> gs.Space:
    """The space all agents share."""
    space_of = getattr(env, method, None)
    if not callable(space_of):
        raise ConfigError(
            f"{type(env).__name__}.{method} must be a method, {method}(agent), as in PettingZoo; got {space_of!r:.80}"
        )
    first = convert(space_of(agents[0]))
    for agent in agents[1:]:
        space = convert(space_of(agent))
        if space != first:
            raise ConfigError(
                f"all agents need the same {method}, but two differ.\n  {agents[0]!r}: {first}\n  {agent!r}: {space}\n"
                f"Pad them to one: supersuit.{remedy}(env)"
            )
    return first
