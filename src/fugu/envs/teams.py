"""A PettingZoo parallel environment whose observations hold the state of the whole, for a critic: ``with_state``.

    fugu train fugu.envs.teams:with_state --env.of mpe2.simple_spread_v3:parallel_env --algorithm mappo

Comes in: an environment with ``state()``. Goes out: the same, where each agent observes a Dict with the part ``state`` beside what it
observed before, which is the part ``observation``, or the other parts where it was a Dict.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces as gs

from fugu.emulation.factory import factories
from fugu.errors import ConfigError


def with_state(of: Any, **settings: Any) -> WithState:
    """Make the environment ``of`` (by name, as everywhere) with ``settings``."""
    return WithState(factories(of, 1)[0].make(**settings))


class WithState:
    def __init__(self, env: Any) -> None:
        if not hasattr(env, "possible_agents") or hasattr(env, "agent_iter"):
            raise ConfigError(f"with_state takes a PettingZoo parallel environment, got {type(env).__name__}")
        self.env = env
        self.state_space = _state_space(env)
        self._spaces = {agent: self._with(env.observation_space(agent)) for agent in env.possible_agents}

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # before it is set: while unpickling
            raise AttributeError(name)
        return getattr(self.env, name)

    def observation_space(self, agent: Any) -> gs.Space:
        return self._spaces[agent]

    def action_space(self, agent: Any) -> gs.Space:
        return self.env.action_space(agent)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        obs, infos = self.env.reset(seed=seed, options=options)
        return self._seen(obs), infos

    def step(self, actions: dict[Any, Any]) -> tuple[dict[Any, Any], ...]:
        obs, *rest = self.env.step(actions)
        return self._seen(obs), *rest

    def close(self) -> None:
        self.env.close()

    def _with(self, space: gs.Space) -> gs.Space:
        parts = dict(space.spaces) if isinstance(space, gs.Dict) else {"observation": space}
        if "state" in parts:
            raise ConfigError("the observation has a part 'state' already; leave with_state out")
        return gs.Dict({**parts, "state": self.state_space})

    def _seen(self, obs: dict[Any, Any]) -> dict[Any, Any]:
        state = self.env.state()
        return {
            agent: {**(own if isinstance(own, dict) else {"observation": own}), "state": state} for agent, own in obs.items()
        }


def _state_space(env: Any) -> gs.Space:
    """Return the space of the state: declared, or that of a first state."""
    declared = getattr(env, "state_space", None)
    if isinstance(declared, gs.Space):
        return declared
    try:
        env.reset(seed=0)
        state = np.asarray(env.state())
    except (AttributeError, NotImplementedError) as error:
        raise ConfigError(
            f"{type(env).__name__} has no state(); leave with_state out: a critic then sees all observations"
        ) from error
    return gs.Box(-np.inf, np.inf, state.shape, state.dtype.type)
