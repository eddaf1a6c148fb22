"""From a config to the algorithm of a run, by its name. Each one's module says how it is made; only that one is imported."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch

from fugu.algorithm.contract import Algorithm
from fugu.policy.actor_critic import ActorCritic, make_policy
from fugu.vector.device import DeviceVec
from fugu.vector.vecenv import VecEnv

if TYPE_CHECKING:
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
    policy = seeded(config.seed, lambda: make_policy(vec.observation_space, vec.action_space, config.policy)).to(device)
    policy.in_bf16 = config.precision == "bf16"
    policy.eval()  # nothing random or running inside a network: what it does must be repeatable in every minibatch
    return policy
