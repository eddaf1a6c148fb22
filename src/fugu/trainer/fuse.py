"""Parts of algorithms that can be swapped for faster ones, and when. An algorithm that is unknown here stays as it is."""

from __future__ import annotations

import contextlib

from fugu.algorithm.contract import Algorithm
from fugu.algorithm.parts.soft import soft_losses
from fugu.errors import ConfigError
from fugu.rollout.device import Whole
from fugu.rollout.envs import OneEnv
from fugu.trainer.config import TrainConfig
from fugu.vector.device import DeviceVec
from fugu.vector.device_native import NativeDevice
from fugu.vector.vecenv import VecEnv


def fuse(algorithm: Algorithm, config: TrainConfig, vec: VecEnv | DeviceVec | OneEnv) -> Whole | None:
    """Let PPO and SAC of a small network learn in a few kernels. Returns a function that plays a whole horizon in one kernel, if there
    is one."""
    from fugu.algorithm.sac import SAC

    if isinstance(algorithm, SAC):
        algorithm.native = soft_losses(algorithm.policy, algorithm.critic, algorithm.slow)
        return None
    if config.precision == "bf16" or algorithm.ranks.size > 1:  # kernels weigh rows of one rank
        return None
    from fugu.algorithm.parts.fused import Fused, FusedSurrogate
    from fugu.algorithm.ppo import PPO
    from fugu.algorithm.safe_ppo import SafePPO

    if not isinstance(algorithm, PPO | SafePPO):
        return None
    c = algorithm.config
    if c.vtrace or c.priority > 0 or c.value_huber is not None:
        return None
    with contextlib.suppress(ConfigError):  # it says why not: then torch does it
        passes = 3 if config.precision == "float32" else 1
        fused = Fused(algorithm.policy, algorithm.value_scale, passes=passes)
        algorithm.surrogate = FusedSurrogate(algorithm.surrogate, fused)  # type: ignore[assignment]
        if isinstance(algorithm, PPO) and isinstance(vec, DeviceVec) and isinstance(vec.worlds, NativeDevice):
            return fused.rollout(vec, algorithm.generator)
    return None
