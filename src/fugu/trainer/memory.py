"""Checks, before anything is allocated, that batch and network fit in memory; the OOM killer leaves no message."""

from __future__ import annotations

import math
from itertools import pairwise

import psutil
from gymnasium import spaces as gs

from fugu.emulation.env import EnvSpec
from fugu.errors import ConfigError
from fugu.policy.encoder import is_image
from fugu.spaces import Layout
from fugu.trainer.checkpoint_format import show_bytes
from fugu.trainer.config import TrainConfig
from fugu.vector.config import nearest_divisor
from fugu.vector.vecenv import VecEnv

MANY = 2**20
"""number of environments from which one is made first, to see what a row takes"""
BESIDE = 40
"""bytes of a row beside its observation: reward, flags, action, the policy's outputs, advantage"""


def check_memory(config: TrainConfig, vec: VecEnv) -> None:
    """Raise a ConfigError if a batch needs more than is free. ``vec`` may hold fewer environments than the config asks for."""
    envs, horizon = config.vector.num_envs, config.horizon
    row = vec.spec.num_agents * config.passes * (vec.obs_layout.nbytes + BESIDE)
    free = psutil.virtual_memory().available
    if envs * horizon * row <= free:
        return
    asked = f"num_envs={envs} and horizon={horizon} make batches of {show_bytes(envs * horizon * row)}"
    if (fewer := _power_of_two(int(free) // (2 * horizon * row))) >= 1:
        envs, words = fewer, f"--num-envs {fewer}"
    else:
        horizon = max(1, _power_of_two(int(free) // (2 * envs * row)))
        words = f"--horizon {horizon}"
    if config.minibatch is not None:
        words += f" --minibatch {nearest_divisor(config.passes * envs, config.minibatch // horizon) * horizon}"
    raise ConfigError(f"{asked}, and {show_bytes(free)} of memory are free; try {words}")


def check_network(config: TrainConfig, spec: EnvSpec) -> None:
    """Raise a ConfigError if the default network needs more than is free: weights, their gradients, and two numbers for each in
    Adam."""
    if config.policy.net not in ("default", "transformer"):
        return
    free, policy = psutil.virtual_memory().available, config.policy
    inputs = sum(math.prod(leaf.shape) for leaf in Layout(spec.observation_space).leaves if not is_image(leaf))
    outputs = gs.flatdim(spec.action_space)
    weights = sum(i * o for i, o in pairwise([inputs, *config.policy.hidden, outputs]))
    if policy.core != "none":
        weights += 4 * policy.core_size * (policy.hidden[-1:] or (inputs,))[0] + 4 * policy.core_layers * policy.core_size**2
    if policy.net == "transformer":
        weights = 12 * policy.layers * policy.width**2
        if 16 * weights <= free:
            return
        raise ConfigError(
            f"a transformer of {policy.layers:,} layers of width {policy.width:,} takes {show_bytes(16 * weights)} to train, and "
            f"{show_bytes(free)} of memory are free; choose smaller ones (--policy.layers, --policy.width)"
        )
    if 4 * 4 * weights <= free:
        return
    core = "" if policy.core == "none" else f", a core of {policy.core_size:,}"
    raise ConfigError(
        f"a network of {inputs:,} inputs, layers {policy.hidden}{core} and {outputs:,} outputs takes {show_bytes(4 * 4 * weights)} "
        f"to train, and {show_bytes(free)} of memory are free; choose smaller layers (--policy.hidden) or smaller spaces"
    )


def _power_of_two(most: float) -> int:
    """Return the greatest power of two that is at most ``most``; 0 if there is none."""
    return 1 << (int(most).bit_length() - 1) if most >= 1 else 0
