"""PettingZoo environments, parallel and turn-based (AEC), as a ``fugu.Env`` with one row per possible agent.

Comes in: what ``step`` or ``last`` says of the agents that are there. Goes out: ``len(possible_agents)`` rows in that order, on
every step, by the convention of ``env.py``:

- An agent that is not there (dead, not yet there, never comes) has a zero row: no reward, no flags, ``mask=False``.
- An agent's first row of an episode has ``first=True``, whenever it joins.
- The row after an agent's ending holds its final observation, its last reward and its flags with ``mask=False``; from then on
  it is padding. When no agent is left, the next step resets the environment and every agent that is there starts anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fugu.emulation.env import Autoreset, Env, Infos, Rows
from fugu.emulation.team import Team
from fugu.emulation.writer import ENDED
from fugu.errors import SpaceError


def adapt(env: Any, *, autoreset: Autoreset = "next_step", check_finite: bool = True, cast: bool = False) -> Env:
    """Adapt ``env`` to a ``fugu.Env``: turn-based if it offers ``agent_iter`` and ``last``, parallel otherwise."""
    turns = callable(getattr(env, "agent_iter", None)) and callable(getattr(env, "last", None))
    kind = TurnBasedEnv if turns else ParallelEnv
    return kind(env, autoreset=autoreset, check_finite=check_finite, cast=cast)


class ParallelEnv(Team):
    """A PettingZoo ``ParallelEnv``: every agent that is there acts on every step."""

    def __init__(self, env: Any, **settings: Any) -> None:
        super().__init__(env, **settings)
        self._acting: list[int] = []
        self._started: set[int] = set()
        self._over: set[int] = set()

    def reset(self, seed: int | None, out: Rows, options: dict[str, Any] | None = None) -> Infos | None:
        obs, infos = _dicts(self.reset_env(seed, options), ("observations", "infos"), "reset")
        rows, found = self.rows(out), {}
        self._acting = self.here()
        self._started = {i for i in self._acting if self.agents[i] in obs}
        self._over = set()
        for i, agent in enumerate(self.agents):
            if i not in self._started:
                rows.pad(i)
                continue
            info = infos.get(agent) or {}
            rows.start(i, obs[agent], info)
            if info:
                found[i] = info
        return found or None

    def step(self, action: np.ndarray, out: Rows) -> Infos | None:
        if not self._acting:
            return self.reset(None, out)
        result = self.env.step({self.agents[i]: self.action_of(i, action) for i in self._acting})
        obs, rewards, terminated, truncated, infos = _dicts(result, _STEP, "step")
        acting = self.here()
        rows, here, found = self.rows(out), set(acting), {}
        for i, agent in enumerate(self.agents):
            new = i not in self._started
            if agent not in obs or i in self._over or (new and i not in here):  # some envs go on reporting their dead
                rows.pad(i)
                continue
            try:
                outcome = (obs[agent], rewards[agent], terminated[agent], truncated[agent], infos.get(agent) or {})
            except KeyError:
                lacking = next(name for name, part in zip(_STEP, result, strict=True) if agent not in part)
                raise SpaceError(f"step() returned observations for agent {agent!r}, but no {lacking}") from None
            if rows.step(i, outcome, first=new) & ENDED:
                self._over.add(i)
            self._started.add(i)
            if outcome[4]:
                found[i] = outcome[4]
        self.check_left(self._started - self._over - here)
        self._acting = [i for i in acting if i not in self._over]
        return found or None


class TurnBasedEnv(Team):
    """A PettingZoo ``AECEnv``: one agent acts per step, ``agent_selection``; its row alone has ``mask=True``.

    An agent is told what ``last()`` says when the env selects it: its fresh observation and all reward since it last acted,
    its own move's and what others' moves brought it. That row carries it, so every reward stands in exactly one row. Rows of
    agents that wait have reward 0 and the observation they last saw. Agents that ended are stepped with None at once, so that
    all whom one move ends have their endings in the same step; one that the env selects only later has its ending then.
    ``first`` is True on the first row an agent is there, even if it waits on it: recurrent state is reset exactly once.
    """

    def __init__(self, env: Any, **settings: Any) -> None:
        super().__init__(env, **settings)
        self._turn: int | None = None
        self._known: set[int] = set()
        self._final: list[int] = []
        self._shown: Rows | None = None

    def reset(self, seed: int | None, out: Rows, options: dict[str, Any] | None = None) -> Infos | None:
        self.reset_env(seed, options)
        out.obs[...] = 0
        self._known = set()
        return self._present(out)

    def step(self, action: np.ndarray, out: Rows) -> Infos | None:
        if self._turn is None:
            return self.reset(None, out)
        self.env.step(self.action_of(self._turn, action))
        if self._shown is not None and self._shown is not out:
            out.obs[...] = self._shown.obs
        if self._final:
            out.obs[self._final] = 0
        return self._present(out)

    def _present(self, out: Rows) -> Infos | None:
        """Write the endings that are due and the agent whose turn it is; all others wait."""
        self._shown, self._turn, self._final = out, None, []
        env, rows, found = self.env, self.rows(out), {}
        rows.wait()
        while env.agents and self._turn is None:
            agent = env.agent_selection
            i, result = self.row_of(agent), env.last()
            ended = rows.step(i, result, first=i not in self._known) & ENDED
            self._known.add(i)
            if result[4]:
                found[i] = result[4]
            if not ended:
                self._turn = i
                continue
            env.step(None)
            if agent in env.agents:
                raise SpaceError(f"agent {agent!r} has ended, but step(None), which must remove it, left it in env.agents")
            self._final.append(i)
            self._known.discard(i)
        here = set(self.here())
        self.check_left(self._known - here)
        for i in here - self._known:  # new, and not yet to act
            obs = env.observe(self.agents[i])
            if obs is not None:
                rows.start(i, obs, {}, acting=False)
            out.first[i] = True
        self._known = here
        return found or None


_STEP = ("observations", "rewards", "terminations", "truncations", "infos")


def _dicts(result: Any, names: tuple[str, ...], method: str) -> tuple[dict[Any, Any], ...]:
    """Return ``result`` if it is one dict by agent for each of ``names``; refuse all else."""
    if isinstance(result, tuple) and len(result) == len(names) and all(isinstance(part, dict) for part in result):
        return result
    got = [type(part).__name__ for part in result] if isinstance(result, tuple) else type(result).__name__
    raise SpaceError(f"{method}() must return a dict by agent for each of {', '.join(names)}; got {got}")
