"""Players: an environment and a stream of actions for it, stepped the same way whatever its make.

A player resets and steps its env with its own actions, keeps what came back last (``seen`` or ``rows``), and times the env's
own calls. Two players with the same seed take the same actions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces as gs

from fugu.emulation.actions import Actions
from fugu.emulation.env import flat_mask
from fugu.emulation.factory import is_native, is_tensor_env
from fugu.emulation.gymnasium import _takes, required
from fugu.emulation.team import check_anyone
from fugu.emulation.writer import five_values
from fugu.errors import SpaceError
from fugu.spaces import convert


class Seen(NamedTuple):
    """The result of the last call for one agent, as the env returned it. ``reward`` and the flags are None after a reset."""

    agent: str
    obs: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: Any


class Limits(NamedTuple):
    """Limits on how much of an environment is played in each part of the check."""

    steps: int
    seed: int
    seconds: float
    """whatever comes first"""


class Clock:
    """Seconds spent in the env's own methods."""

    def __init__(self) -> None:
        self.reset_seconds = self.step_seconds = 0.0
        self.resets = self.steps = 0

    def reset(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = call(*args, **kwargs)
        self.reset_seconds += time.perf_counter() - start
        self.resets += 1
        return result

    def step(self, call: Callable[..., Any], *args: Any) -> Any:
        start = time.perf_counter()
        result = call(*args)
        self.step_seconds += time.perf_counter() - start
        self.steps += 1
        return result


class Player(Protocol):
    """The members the checks need of a player."""

    clock: Clock
    ended: bool
    """the next call must be ``reset``"""
    action: Any
    """the last one taken"""

    def reset(self, seed: int | None) -> None: ...

    def step(self) -> None: ...

    def values(self) -> Iterator[tuple[str, Any]]:
        """Return everything the last call returned except infos, by name: for comparing two players."""
        ...


class SeeingPlayer(Player, Protocol):
    """A player whose env returns Python values (not rows)."""

    seen: list[Seen]

    def observation_space(self, agent: str) -> gs.Space: ...

    def action_space(self, agent: str) -> gs.Space: ...


class _Seeing:
    seen: list[Seen]

    def values(self) -> Iterator[tuple[str, Any]]:
        for agent, obs, reward, terminated, truncated, _ in self.seen:
            place = f"{agent} " if agent else ""
            for path, leaf in leaves_of(obs):
                yield f"{place}{'/'.join(('obs', *path))}", leaf
            yield f"{place}reward", reward
            yield f"{place}terminated", terminated
            yield f"{place}truncated", truncated


class GymnasiumPlayer(_Seeing):
    """Plays a Gymnasium env, or one in the old form; ``old_step`` and ``old_reset`` say what it met."""

    def __init__(self, env: Any, seed: int) -> None:
        self.env, self.clock = env, Clock()
        self.spaces = convert(env.observation_space), convert(env.action_space)
        self.seeds, self.options = _takes(env.reset, "seed"), _takes(env.reset, "options")
        self.old_step = self.old_reset = False
        self.ended, self.action, self.seen = True, None, []
        self._actions = Actions(self.spaces[1], seed)

    def observation_space(self, agent: str) -> gs.Space:
        return self.spaces[0]

    def action_space(self, agent: str) -> gs.Space:
        return self.spaces[1]

    def reset(self, seed: int | None) -> None:
        kwargs = required(self.env.reset)
        if seed is not None and self.seeds:
            kwargs["seed"] = seed
        elif seed is not None and hasattr(self.env, "seed"):
            self.env.seed(seed)
        result = self.clock.reset(self.env.reset, **kwargs)
        obs, info = self._reset_result(result)
        self.seen = [Seen("", obs, None, None, None, info)]
        self.ended, self.action = False, None

    def step(self) -> None:
        self.action = self._actions.next(self.action_mask())
        result = self.clock.step(self.env.step, self.action)
        self.old_step |= isinstance(result, tuple) and len(result) == 4
        self.seen = [Seen("", *five_values(result))]
        self.ended = truthy(self.seen[0].terminated) or truthy(self.seen[0].truncated)

    def action_mask(self) -> np.ndarray | None:
        mask = mask_in(self.seen[0].obs, self.seen[0].info, self.action_space("")) if self.seen else None
        method = getattr(getattr(self.env, "unwrapped", self.env), "action_masks", None)
        return flat_mask(method(), self.action_space("")) if mask is None and callable(method) else mask

    def _reset_result(self, result: Any) -> tuple[Any, Any]:
        pair = isinstance(result, tuple) and len(result) == 2
        if pair and (isinstance(result[1], dict) or not isinstance(self.spaces[0], gs.Tuple)):
            return result
        self.old_reset = True
        return result, {}


class _Agents(_Seeing):
    """The members that both kinds of PettingZoo envs have."""

    def __init__(self, env: Any, seed: int) -> None:
        self.env, self.clock, self._seed = env, Clock(), seed
        self.ended, self.seen = True, []
        self.action: Any = None
        self._actions: dict[str, Actions] = {}

    def observation_space(self, agent: str) -> gs.Space:
        return convert(self.env.observation_space(agent))

    def action_space(self, agent: str) -> gs.Space:
        return convert(self.env.action_space(agent))

    def _deck(self, agent: str) -> Actions:
        if agent not in self._actions:
            self._actions[agent] = Actions(self.action_space(agent), self._seed + len(self._actions))
        return self._actions[agent]


class ParallelPlayer(_Agents):
    """Plays a PettingZoo ParallelEnv."""

    def reset(self, seed: int | None) -> None:
        result = self.clock.reset(self.env.reset, **required(self.env.reset) | {"seed": seed})
        if not isinstance(result, tuple) or len(result) != 2 or not all(isinstance(part, dict) for part in result):
            raise SpaceError("reset() must return two dicts (observations, infos)", fix="Return self.observations, self.infos")
        check_anyone(self.env)
        obs, infos = result
        self.seen = [Seen(agent, obs[agent], None, None, None, infos.get(agent, {})) for agent in self._order(obs)]
        self.ended, self.action = False, None

    def step(self) -> None:
        masks = {seen.agent: mask_in(seen.obs, seen.info, self.action_space(seen.agent)) for seen in self.seen}
        self.action = {agent: self._deck(agent).next(masks.get(agent)) for agent in self.env.agents}
        result = self.clock.step(self.env.step, self.action)
        if not isinstance(result, tuple) or len(result) != 5 or not all(isinstance(part, dict) for part in result):
            raise SpaceError(
                f"step() must return five dicts keyed by agent, got {type(result).__name__}",
                fix="Return observations, rewards, terminations, truncations, infos",
            )
        obs, rewards, terminations, truncations, infos = result
        self.seen = [
            Seen(
                agent,
                obs[agent],
                rewards.get(agent, 0.0),
                terminations.get(agent),
                truncations.get(agent),
                infos.get(agent, {}),
            )
            for agent in self._order(obs)
        ]
        self.ended = not self.env.agents

    def _order(self, found: dict[str, Any]) -> list[str]:
        possible = list(getattr(self.env, "possible_agents", found))
        return [agent for agent in possible if agent in found]


class TurnPlayer(_Agents):
    """Plays a PettingZoo AECEnv: agents act one at a time."""

    def reset(self, seed: int | None) -> None:
        self.clock.reset(self.env.reset, **required(self.env.reset) | {"seed": seed})
        check_anyone(self.env)
        self._look()
        self.action = None

    def step(self) -> None:
        agent, obs, _, terminated, truncated, info = self.seen[0]
        dead = truthy(terminated) or truthy(truncated)
        self.action = None if dead else self._deck(agent).next(mask_in(obs, info, self.action_space(agent)))
        self.clock.step(self.env.step, self.action)
        self._look()

    def _look(self) -> None:
        self.ended = not self.env.agents
        if not self.ended:
            self.seen = [Seen(self.env.agent_selection, *self.env.last())]


def kind_of(env: Any) -> str:
    """Return what the environment is, in words."""
    if is_native(env):
        return "fugu.Env"
    if is_tensor_env(env):
        return "TensorEnv"
    if isinstance(env, gymnasium.vector.VectorEnv):
        return "Gymnasium vector"
    if hasattr(env, "agent_iter") or (hasattr(env, "agent_selection") and hasattr(env, "last")):
        return "PettingZoo AEC"
    if hasattr(env, "possible_agents") or hasattr(env, "agents"):
        return "PettingZoo parallel"
    return "Gymnasium"


SEEING: dict[str, Callable[[Any, int], SeeingPlayer]] = {
    "Gymnasium": GymnasiumPlayer,
    "PettingZoo parallel": ParallelPlayer,
    "PettingZoo AEC": TurnPlayer,
}
"""how to play each kind whose envs return Python values; the others are played as rows"""


def leaves_of(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (path, leaf) of nested dicts, tuples and lists of anything; a list of numbers is a leaf."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves_of(part, (*path, str(key)))
    elif isinstance(value, tuple):
        for i, part in enumerate(value):
            yield from leaves_of(part, (*path, str(i)))
    else:
        yield path, value


def truthy(value: Any) -> bool:
    """Return True if a flag of whatever type is set."""
    try:
        return bool(value)
    except Exception:
        return bool(np.any(value))


def mask_in(obs: Any, info: Any, space: gs.Space) -> np.ndarray | None:
    for place in (obs, info):
        if isinstance(place, dict) and "action_mask" in place:
            return flat_mask(place["action_mask"], space)
    return None
