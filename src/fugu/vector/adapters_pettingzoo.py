"""One environment of several agents as a ``pettingzoo.ParallelEnv``. Import it through ``as_pettingzoo``.

Comes in: rows of a ``VecEnv`` with one environment. Goes out: dicts by agent. An agent is in ``agents`` from its first row to its
ending; when the last has ended the episode is over and ``reset`` must follow. Agents that wait for their turn stay in ``agents``,
and need no action. What may be chosen stands in ``infos[agent]["action_mask"]``, unless the observation says it already.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces as gs
from pettingzoo import ParallelEnv

from fugu.emulation.env import Rows
from fugu.emulation.gymnasium import _takes
from fugu.errors import CallOrderError, ConfigError, EnvError, SpaceError
from fugu.spaces import Packer
from fugu.vector.vecenv import VecEnv

Told = tuple[dict[Any, Any], dict[Any, float], dict[Any, bool], dict[Any, bool], dict[Any, dict[str, Any]]]


class PettingZooFace(ParallelEnv[Any, Any, Any]):
    """``vec`` with one environment. ``seeded``: a first reset without seed uses that of ``vec``."""

    def __init__(self, vec: VecEnv, *, seeded: bool) -> None:
        self.vec = vec
        self.metadata = {"is_parallelizable": True, "name": vec.spec.name, **vec.spec.metadata}
        self.render_mode = vec.spec.render_mode
        names, self._takes_options = _known(vec)
        self.possible_agents = names or [f"agent_{i}" for i in range(vec.num_agents)]
        self.agents: list[Any] = []
        self._row = {agent: i for i, agent in enumerate(self.possible_agents)}
        self.observation_spaces = {agent: deepcopy(vec.observation_space) for agent in self.possible_agents}
        self.action_spaces = {agent: deepcopy(vec.action_space) for agent in self.possible_agents}
        self._obs = Packer(vec.obs_layout, finite=False)
        self._action = Packer(vec.action_layout, finite=False, cast=True)
        self._mask_in_obs = isinstance(vec.observation_space, gs.Dict) and "action_mask" in vec.observation_space.spaces
        self._over: set[Any] = set()
        """agents whose episode is over while others go on"""
        self._seeded = seeded

    def observation_space(self, agent: Any) -> gs.Space:
        return self.observation_spaces[agent]

    def action_space(self, agent: Any) -> gs.Space:
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[Any, Any], dict[Any, dict[str, Any]]]:
        """Begin an episode. ``options`` reach environments that take any."""
        if seed is not None and seed < 0:
            raise ConfigError(f"seed={seed!r} must not be negative")
        chosen = None if seed is None and self._seeded else [seed]
        self._seeded = False
        self.vec.reset(chosen, options if options and self._takes_options else None)
        rows = self.vec.rows
        self._over = set()
        self.agents = [agent for agent, i in self._row.items() if rows.first[i]]
        told = self._tell(rows, self.agents)
        return told[0], told[4]

    def step(self, actions: dict[Any, Any]) -> Told:
        if not self.agents:
            raise CallOrderError("step() without agents: the episode is over, or there was none; call reset() first")
        self.vec.send(self._rows_of(actions))
        rows = self.vec.recv()
        old = self.agents
        joined = [agent for agent, i in self._row.items() if rows.first[i] and agent not in old and agent not in self._over]
        told = self._tell(rows, [*old, *joined])
        self._over |= {agent for agent in old if told[2][agent] or told[3][agent]}
        here = {*old, *joined} - self._over
        self.agents = [agent for agent in self.possible_agents if agent in here]
        return told

    def render(self) -> Any:
        return self.vec.render()[0]

    def close(self) -> None:
        self.vec.close()

    def _rows_of(self, actions: dict[Any, Any]) -> np.ndarray:
        rows, layout = self.vec.rows, self.vec.action_layout
        packed = layout.zeros(self.vec.num_agents)
        for view, leaf in zip(layout.leaf_views(packed), layout.leaves, strict=True):
            if (choices := leaf.choice_range()) is not None:
                view[...] = choices[0]  # of those nobody asks
        for agent in actions:
            if agent not in self._row:
                raise ConfigError(f"an action for {agent!r}, which is not in possible_agents={self.possible_agents}")
        for agent in self.agents:
            i = self._row[agent]
            if agent in actions and actions[agent] is not None:
                try:
                    self._action.pack(actions[agent], packed[i : i + 1].reshape(layout.row_shape))
                except SpaceError as error:
                    raise error.of(agent=agent) from None
            elif rows.mask[i]:
                raise ConfigError(f"no action for {agent!r}: expected one for each of agents={self.agents}")
        return packed

    def _tell(self, rows: Rows, agents: list[Any]) -> Told:
        told: Told = ({}, {}, {}, {}, {})
        for agent in agents:
            i = self._row[agent]
            info = dict(rows.infos.get(i, {}))
            if rows.action_mask is not None and self.vec.masks_actions and not self._mask_in_obs:
                info["action_mask"] = rows.action_mask[i].astype(np.int8)
            if rows.cost is not None:
                info |= {name: float(rows.cost[i, k]) for k, name in enumerate(self.vec.spec.costs)}
            values = (
                self._obs.unpack(rows.obs[i]),
                float(rows.reward[i]),
                bool(rows.terminated[i]),
                bool(rows.truncated[i]),
                info,
            )
            parts: tuple[dict[Any, Any], ...] = told
            for part, value in zip(parts, values, strict=True):
                part[agent] = value
        return told


def _known(vec: VecEnv) -> tuple[list[Any], bool]:
    """Return the agents' own names, if they have any, and whether the environment takes options at a reset."""
    try:
        return vec.access("apply", "names", (_names_and_options,), {}, None)[0]
    except (ConfigError, EnvError):  # native worlds, of which nobody can ask anything
        return [], False


def _names_and_options(env: Any) -> tuple[list[Any], bool]:
    return list(getattr(env, "possible_agents", ())), _takes(env.reset, "options")
