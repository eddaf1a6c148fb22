"""The environments of the compiled core (native/envs/*.h): what they are called, their spaces and settings, and one as an ``Env``.

Stepping thousands of them is the native backend's job (``vector/native.py``), which needs no Python per environment. ``NativeEnv``
is the same engine behind the ``Env`` contract, so that every other backend, and the checks, can take it too.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gs

from fugu.emulation.env import EnvSpec, Infos, Rows
from fugu.errors import CallOrderError, ConfigError, did_you_mean
from fugu.native import native
from fugu.spaces import Layout

RESET, STEP = 1, 2
MAX_STEPS = 2**31 - 1
"""of the setting ``max_steps``, which every environment has; 0 means no limit"""


def names() -> tuple[str, ...]:
    """Return the names of the package's native environments; none without the compiled core."""
    return tuple(name for name in descriptions() if "-" not in name)  # those of ``fugu build`` have a hash after theirs


def is_name(env: Any) -> bool:
    return isinstance(env, str) and env in descriptions()


def native_spec(name: str, settings: Mapping[str, Any]) -> EnvSpec:
    """Check ``settings`` and return the spaces and agents of one world."""
    described = descriptions()[name]
    name = described["name"]
    allowed = {*described["params"], "max_steps"}
    for key, value in settings.items():
        if key not in allowed:
            raise ConfigError(f"{name} has no setting {key!r}.{did_you_mean(key, allowed)}")
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise ConfigError(f"{name}: {key}={value!r} must be a number")
        low, high = described["bounds"].get(key, (0, MAX_STEPS))
        if not low <= value <= high:
            raise ConfigError(f"{name}: {key}={value!r} must lie in [{low:g}, {high:g}]")
        if isinstance(described["params"].get(key, 0), int) and value != int(value):
            raise ConfigError(f"{name}: {key}={value!r} must be a whole number")
    return EnvSpec(
        _space(described["observation"]),
        _space(described["action"]),
        int(described["agents"]),
        {"render_modes": ["rgb_array"] if described["renders"] else [], "render_fps": 30},
        "rgb_array" if described["renders"] else None,
        name,
        costs=described["costs"],
    )


def columns(rows: Rows) -> tuple[Any, ...]:
    """Return the columns that ``Worlds.bind`` takes for one slot of a group."""
    return (rows.obs, rows.reward, rows.terminated, rows.truncated, rows.first, rows.mask, rows.action_mask, rows.cost)


def draw_seeds(seeds: np.ndarray) -> None:
    """Give worlds that were never seeded, and are not now (-1), a seed by chance: they have no random numbers to go on with."""
    unseeded = seeds < 0
    if unseeded.any():
        seeds[unseeded] = np.random.default_rng().integers(0, 2**63 - 1, unseeded.sum())


class NativeEnv:
    """One world of the native environment ``name`` as a ``fugu.Env``; ``settings`` are its parameters."""

    def __init__(self, name: str, **settings: Any) -> None:
        spec = native_spec(name, settings)
        self.name = spec.name
        self.observation_space, self.action_space, self.num_agents = spec.observation_space, spec.action_space, spec.num_agents
        self.metadata, self.render_mode, self.costs = spec.metadata, spec.render_mode, spec.costs
        self._worlds = native.Worlds(name, 1, settings, [0, 1], 1)
        self._rows = Rows.zeros(spec)
        self._seeds = np.full(1, -1, np.int64)
        self._fresh = True
        self._logs: tuple[str, ...] = descriptions()[name]["logs"]
        self._action = Layout(self.action_space).zeros(self.num_agents)
        self._worlds.bind(self._seeds, self._action, [[columns(self._rows)] * 2])

    def reset(self, seed: int | None, out: Rows) -> Infos | None:
        self._seeds[0] = -1 if seed is None else seed
        if self._fresh:
            draw_seeds(self._seeds)
            self._fresh = False
        self._run(RESET, out)
        return None

    def accepts(self, action: np.ndarray) -> bool:
        """Return True if ``action``, one row per agent, is in the action space."""
        self._action[...] = action
        return bool(self._worlds.bad_action(0) < 0)

    def step(self, action: np.ndarray, out: Rows) -> Infos | None:
        if self._fresh:
            raise CallOrderError("step() before reset(): call reset() first")
        self._action[...] = action
        self._run(STEP, out)
        ended = np.flatnonzero(out.terminated | out.truncated) if self._logs else ()
        if not len(ended):
            return None
        episodes, _, _, sums = self._worlds.drain()
        # the same for all that end at once: only their sum is asked for
        means = {log: sums[log] / episodes for log in self._logs}
        return {int(agent): {"episode_log": means} for agent in ended}

    def render(self) -> np.ndarray:
        """Draw the world: ``[height, width, 3]`` uint8."""
        return self._worlds.render(0)

    def close(self) -> None:
        """Do nothing: the world goes with the object."""

    def _run(self, command: int, out: Rows) -> None:
        self._worlds.start(0, command, 0)
        self._worlds.finish(0)
        for target, source in zip(columns(out), columns(self._rows), strict=True):
            if target is not None:
                target[...] = source


@functools.cache
def descriptions() -> dict[str, dict[str, Any]]:
    """Return by name what the compiled core knows of each environment: spaces, agents, settings, logs."""
    return {} if native is None else dict(native.environments())


def forget_descriptions() -> None:
    """Forget the descriptions, because the core has loaded one more environment."""
    descriptions.cache_clear()


def _space(fields: list[dict[str, Any]]) -> gs.Space:
    """Make a space of fields: one without a name is the space itself, named ones are the parts of a Dict."""
    if len(fields) == 1 and not fields[0]["name"]:
        return _leaf(fields[0])
    return gs.Dict({field["name"]: _leaf(field) for field in fields})


def _leaf(field: dict[str, Any]) -> gs.Space:
    dtype, shape = np.dtype(field["type"]), tuple(field["shape"])
    if field["kind"] == "discrete":
        return gs.Discrete(field["choices"])
    if field["kind"] == "multi_discrete":
        return gs.MultiDiscrete(np.full(shape, field["choices"]))
    if field["kind"] == "multi_binary":
        return gs.MultiBinary(shape)
    low, high = (np.array(field[name]).astype(dtype).reshape(shape) for name in ("low", "high"))
    return gs.Box(low, high, shape, dtype.type)
