"""From a config to the algorithm of a run, by its name. Each one's module says how it is made; only that one is imported."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from fugu.algorithm.contract import Algorithm
from fugu.errors import ConfigError
from fugu.policy.actor_critic import ActorCritic, make_policy
from fugu.vector.device import DeviceVec
from fugu.vector.vecenv import VecEnv

if TYPE_CHECKING:
    from fugu.policy.transformer import Transformer
    from fugu.trainer.config import TrainConfig

Made = TypeVar("Made")


def make_algorithm(config: TrainConfig, vec: VecEnv | DeviceVec, device: torch.device) -> Algorithm:
    """``make(config, vec, device)`` of the module that has the algorithm's name."""
    module = importlib.import_module(f"fugu.algorithm.{config.algorithm}")
    algorithm: Algorithm = module.make(config, vec, device)
    return algorithm


def seeded(seed: int, make: Callable[[], Made]) -> Made:
    """What ``make`` makes with weights that depend on the seed alone; nothing else that is random depends on them."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)  # or the last bits of orthogonal weights depend on how many there happen to be
        try:
            return make()
        finally:
            torch.set_num_threads(threads)


def default_policy(config: TrainConfig, vec: VecEnv | DeviceVec, device: torch.device) -> ActorCritic:
    """The network that the config describes, for these environments."""
    policy = seeded(config.seed, lambda: make_policy(vec.observation_space, vec.action_space, config.policy))
    return _ready(policy, config, device)


def choosing_policy(config: TrainConfig, vec: VecEnv | DeviceVec, device: torch.device) -> ActorCritic | Transformer:
    """The same for an algorithm that needs no values: it may also be a transformer."""
    if config.policy.net != "transformer":
        return default_policy(config, vec, device)
    from fugu.policy.transformer import Transformer

    policy = seeded(config.seed, lambda: Transformer(vec.observation_space, vec.action_space, config.policy))
    return _ready(policy, config, device)


Policy = TypeVar("Policy", "ActorCritic", "Transformer")


def _ready(policy: Policy, config: TrainConfig, device: torch.device) -> Policy:
    if config.policy.start is not None:
        load_weights(policy, config.policy.start)
    policy.in_bf16 = config.precision == "bf16"
    policy.eval()  # nothing random or running inside a network: what it does must be repeatable in every minibatch
    return policy.to(device)


def load_weights(policy: nn.Module, path: str) -> None:
    """Give ``policy`` the weights in a safetensors file; a ConfigError says what does not fit."""
    try:
        weights = load_file(path)
    except FileNotFoundError:
        raise ConfigError(f"policy.start={path!r}: there is no such file") from None
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"policy.start={path!r} is not a safetensors file: {error}") from None
    own = policy.state_dict()
    for name in {**own, **weights}:
        if name not in own or name not in weights or own[name].shape != weights[name].shape:
            here, there = (tuple(part[name].shape) if name in part else "none" for part in (own, weights))
            raise ConfigError(
                f"policy.start={path!r} is of another network: {name} has shape {there} there and {here} here; give the policy's "
                "settings it was made with"
            )
    policy.load_state_dict(weights)
