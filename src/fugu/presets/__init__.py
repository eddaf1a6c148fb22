"""Settings that are known to work, by environment. ``preset(env)`` gives a whole config for any environment.

An environment with a line in a table here gets settings tuned for it, any other Atari game those of Atari; the rest get general ones
chosen from their spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fugu.presets import (
    arcade,
    atari,
    classic,
    coding,
    dreamer,
    gpu,
    grpo,
    minigrid,
    mujoco,
    offline,
    pettingzoo,
    sac,
    safe,
    sanity,
    teams,
)
from fugu.presets.general import general
from fugu.trainer.config import TrainConfig, with_algorithm
from fugu.vector.config import VectorConfig

PRESETS: Mapping[str, Callable[[], TrainConfig]] = {
    **sanity.PRESETS,
    **classic.PRESETS,
    **arcade.PRESETS,
    **mujoco.PRESETS,
    **minigrid.PRESETS,
    **pettingzoo.PRESETS,
    **atari.PRESETS,
    **safe.FREE,
    **coding.GRPO,
}
"""environment -> its config"""

BY_ALGORITHM: Mapping[str, Mapping[str, Callable[[], TrainConfig]]] = {
    "safe_ppo": safe.PRESETS,
    "mappo": teams.PRESETS,
    "grpo": {**grpo.PRESETS, **coding.GRPO},
    "token_ppo": {**grpo.TOKEN_PPO, **coding.TOKEN_PPO},
    "self_play": arcade.SELF_PLAY,
    "sac": sac.PRESETS,
    "dreamer": dreamer.PRESETS,
}
"""algorithm -> environment -> its config"""

GENERAL: Mapping[str, Callable[[str, Mapping[str, Any] | None], TrainConfig]] = {
    "sac": sac.general,
    "dreamer": dreamer.dreamer,
    **offline.GENERAL,
}
"""algorithm -> settings for any environment, where those of PPO would not do"""


def preset(
    env: Any,
    env_kwargs: Mapping[str, Any] | None = None,
    device: str = "cpu",
    algorithm: str | None = None,
    *,
    start_timeout: float = VectorConfig.start_timeout,
) -> TrainConfig:
    """Return the config that ``fugu train ENV --device DEVICE --algorithm ALGORITHM`` starts from. ``start_timeout``: seconds to
    build an environment that has to be inspected."""
    if algorithm is not None and isinstance(env, str) and env in BY_ALGORITHM.get(algorithm, {}):
        return BY_ALGORITHM[algorithm][env]()
    if algorithm is not None and algorithm in offline.GENERAL and isinstance(env, str):
        return offline.GENERAL[algorithm](env, env_kwargs)
    config = _by_env(env, env_kwargs or {}, device, start_timeout)
    if algorithm is not None and algorithm in GENERAL:
        return GENERAL[algorithm](config.env, config.env_kwargs)
    return config if algorithm is None else with_algorithm(config, algorithm)


def _by_env(env: Any, env_kwargs: Mapping[str, Any], device: str, start_timeout: float) -> TrainConfig:
    if device.startswith("cuda") and isinstance(env, str) and env in gpu.PRESETS:
        return gpu.PRESETS[env]()
    if isinstance(env, str) and env in PRESETS:
        return PRESETS[env]()
    if isinstance(env, str) and env.startswith("ALE/"):
        return atari.game(env)
    return general(env, env_kwargs, start_timeout)
