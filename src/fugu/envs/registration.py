"""Native environments of one agent as Gymnasium's own: ids, a ``gymnasium.Env`` and a ``gymnasium.vector.VectorEnv``.

Both take the environment's settings as keyword arguments (``gymnasium.make(id, gravity=5.0, max_steps=200)``). The time limit is
the engine's, so the ids have none of Gymnasium's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from fugu.emulation.env import Rows, spec_of
from fugu.emulation.native import NativeEnv, descriptions, names
from fugu.errors import ConfigError, SpaceError
from fugu.spaces import Layout, Packer

if TYPE_CHECKING:
    from fugu.vector.adapters_gymnasium import GymnasiumVectorFace

SPELLED = {"cartpole": "CartPole"}
"""names that are more words than they have underscores"""


def gymnasium_id(name: str) -> str:
    """Return Gymnasium's id of a native environment: ``mountain_car`` -> ``fugu/MountainCar-v0``."""
    return f"fugu/{SPELLED.get(name) or ''.join(word.capitalize() for word in name.split('_'))}-v0"


def register() -> None:
    """Enter every native environment of one agent into Gymnasium's registry; what is there already stays."""
    for name in names():
        if descriptions()[name]["agents"] == 1 and gymnasium_id(name) not in gymnasium.registry:
            gymnasium.register(
                gymnasium_id(name),
                entry_point="fugu.envs.registration:NativeGymnasiumEnv",
                vector_entry_point="fugu.envs.registration:make_vector",
                kwargs={"name": name},
            )


class NativeGymnasiumEnv(gymnasium.Env[Any, Any]):
    """One world of the native environment ``name``. What it returns is the caller's to keep."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 - as in Gymnasium

    def __init__(self, name: str, render_mode: str | None = None, **settings: Any) -> None:
        self._env = NativeEnv(name, **settings)
        self.metadata = self._env.metadata
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ConfigError(f"{name} has no render_mode={render_mode!r}; it has {self.metadata['render_modes']}")
        self.render_mode = render_mode
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space
        self.costs = self._env.costs
        self._rows = Rows.zeros(spec_of(self._env))
        self._action = Layout(self.action_space).zeros(1)
        self._observations = Packer(Layout(self.observation_space))
        self._actions = Packer(Layout(self.action_space), finite=False, cast=True)  # the engine refuses what is not finite
        self._offers_mask = descriptions()[name]["masks_actions"]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if options:
            raise ConfigError(f"{self._env.name} takes no reset options; its settings are given to gymnasium.make()")
        self._env.reset(None if seed is None else seed % 2**63, self._rows)
        return self._observation(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._actions.pack(action, self._action[0:1].reshape(self._actions.layout.row_shape))
        if not self._env.accepts(self._action):
            raise SpaceError(f"action {action!r:.60} is outside {self.action_space}")
        self._env.step(self._action, self._rows)
        rows, info = self._rows, self._info()
        if rows.cost is not None:
            info.update(zip(self.costs, rows.cost[0].tolist(), strict=True))
        return self._observation(), float(rows.reward[0]), bool(rows.terminated[0]), bool(rows.truncated[0]), info

    def render(self) -> np.ndarray | None:
        return self._env.render() if self.render_mode is not None else None

    def _observation(self) -> Any:
        return self._observations.unpack(self._rows.obs[0])

    def _info(self) -> dict[str, Any]:
        """Return an info with the ``action_mask``, one bool per choice, where the environment offers one."""
        return (
            {"action_mask": self._rows.action_mask[0].copy()}
            if self._offers_mask and self._rows.action_mask is not None
            else {}
        )


def make_vector(
    name: str,
    num_envs: int = 1,
    render_mode: str | None = None,
    max_episode_steps: int | None = None,
    num_workers: int | None = None,
    **settings: Any,
) -> GymnasiumVectorFace:
    """Make ``num_envs`` worlds of ``name`` on the native backend, with ``num_workers`` threads. Pictures are there on demand."""
    from fugu.vector.adapters import as_gymnasium

    if max_episode_steps is not None:
        settings["max_steps"] = max_episode_steps
    vec = as_gymnasium(name, num_envs, backend="native", num_workers=num_workers, env_kwargs=settings)
    modes = vec.metadata["render_modes"]
    if render_mode is not None and render_mode not in modes:
        vec.close()
        raise ConfigError(f"{name} has no render_mode={render_mode!r}; it has {modes}")
    vec.render_mode = render_mode
    return vec
