"""Make a fleet node: its share of a run's environments, and a replica of the run's algorithm with the source it asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from fugu.algorithm.contract import Algorithm
from fugu.native import keep_freed_memory
from fugu.rollout.config import RolloutConfig
from fugu.rollout.envs import Envs
from fugu.rollout.fleet import NodeRank
from fugu.rollout.fleet_node import Order
from fugu.rollout.source import Source
from fugu.trainer.build import make_algorithm, make_ready, make_vec
from fugu.trainer.config import EvalConfig, TrainConfig
from fugu.trainer.fuse import fuse
from fugu.vector.config import usable_cores
from fugu.vector.vecenv import VecEnv

CPU = torch.device("cpu")


def orders(config: TrainConfig, first: int) -> Callable[[int, range, int], Order]:
    """Return what each node makes. ``first``: number of the first node among those of all ranks."""

    def order(number: int, envs: range, sharing: int) -> Order:
        part = part_of(config, len(envs))
        return Order(partial(_envs, part, envs.start, sharing), partial(_player, part, first + number, sharing))

    return order


def part_of(config: TrainConfig, envs: int) -> TrainConfig:
    """Return the config of a node with that many environments. Its weights are sent to it."""
    vector, workers = config.vector, config.vector.num_workers
    return replace(
        config.from_checkpoint(),
        vector=replace(vector, num_envs=envs, num_workers=None if workers is None else min(workers, envs)),
        rollout=RolloutConfig(),
        eval=EvalConfig(),
        minibatch=None,
        device="cpu",
        precision="auto" if config.precision == "tf32" else config.precision,
    )


def _envs(config: TrainConfig, first: int, sharing: int) -> VecEnv:
    """Make a node's environments, with its share of the machine's cores."""
    vector = config.vector
    if sharing > 1 and vector.num_workers is None and vector.num_batches == 1 and vector.backend != "serial":
        workers = min(max(1, usable_cores() // sharing), vector.num_envs)
        config = replace(config, vector=replace(vector, num_workers=workers))
    return make_vec(config, first)


def _player(config: TrainConfig, number: int, sharing: int, vec: VecEnv) -> tuple[Algorithm, Source]:
    """Make a node's algorithm and its source. It draws other numbers than other nodes; the first draws what one process would."""
    if config.threads is None and sharing > 1:
        config = replace(config, threads=max(1, usable_cores() // sharing))
    keep_freed_memory()
    torch.set_num_threads(1)  # as in the learner
    algorithm = make_algorithm(config, vec, CPU, NodeRank(number), lambda policy: make_ready(policy, vec, config))
    fuse(algorithm, config, vec)
    envs = Envs(vec=vec, horizon=config.horizon, passes=config.passes, device=CPU, name=config.algorithm)
    return algorithm, algorithm.source(envs)
