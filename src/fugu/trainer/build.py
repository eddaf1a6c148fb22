"""From a config to the objects of a run: vector env, policy, algorithm, source, trainer."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fugu import vector
from fugu.algorithm.contract import Algorithm
from fugu.algorithm.find import algorithm_class
from fugu.algorithm.setup import Agents, Seeds, Setup
from fugu.algorithm.trial import built, source_of, try_algorithm
from fugu.emulation.build import is_compiled
from fugu.emulation.factory import tensor_env_class
from fugu.emulation.place import meaning
from fugu.emulation.spec_json import spec_to_json
from fugu.errors import ConfigError, GpuError
from fugu.native import keep_freed_memory, set_threads
from fugu.policy.normalize import RunningMoments
from fugu.ranks import ALONE, Ranks
from fugu.rollout.ahead import Ahead
from fugu.rollout.envs import Envs, OneEnv
from fugu.rollout.source import Source
from fugu.trainer import checkpoint
from fugu.trainer.config import TrainConfig
from fugu.trainer.evaluate import Evaluator
from fugu.trainer.fuse import fuse
from fugu.trainer.imitation import learn_examples
from fugu.trainer.loop import Trainer
from fugu.trainer.memory import MANY, check_memory, check_network
from fugu.trainer.precision import check_policy, check_precision
from fugu.trainer.recordings import recordings, refuse_other_env, unknown
from fugu.vector.config import VectorConfig, usable_cores
from fugu.vector.device import DeviceVec
from fugu.vector.vecenv import VecEnv

SMALL = 100_000
"""weights up to which torch gets one thread"""


def make_trainer(
    config: TrainConfig,
    folder: Path | None = None,
    clock: Callable[[str], AbstractContextManager[None]] | None = None,
    ranks: Ranks = ALONE,
) -> Trainer:
    """Make and check everything a run needs; ``folder`` is where checkpoints go. Close it with ``trainer.close()``."""
    device = find_device(config.device)
    check_precision(config.precision, device)
    keep_freed_memory()
    torch.set_num_threads(1)  # weights then start alike on any number of cores, and without waiting for threads to start
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if config.precision == "float32" else "high")
    data = recordings(config)
    if data is not None:
        vec: Any = OneEnv(data.spec)
    else:
        vec = _vec_on_nodes(config, ranks) or _vec_on_device(config, device) or make_vec(config)
    evaluator = None
    try:
        if not isinstance(vec, DeviceVec | OneEnv) and device.type == "cpu":  # otherwise batches are in the memory of the GPU
            check_memory(config, vec)
        algorithm = make_algorithm(config, vec, device, ranks, lambda policy: make_ready(policy, vec, config))
        whole = fuse(algorithm, config, vec)
        envs = Envs(
            vec=vec,
            data=data,
            horizon=config.horizon,
            passes=config.passes,
            minibatch=config.minibatch,
            device=device,
            clock=clock,
            name=config.algorithm,
            whole=whole,
            overlap=config.overlap,
            fleet=_fleet(config, vec, ranks, clock) if config.rollout.nodes is not None else None,
        )
        try_algorithm(algorithm, config.algorithm, envs)
        source = source_of(algorithm, config.algorithm, envs)
        if config.overlap and not isinstance(source, Ahead) and not isinstance(getattr(source, "inner", None), Ahead):
            raise ConfigError(
                f"--overlap: {config.algorithm} brings a source of its own, which plays as it likes; leave it out"
            )
        alone = config.eval.every is None or ranks.rank > 0  # one of them evaluates
        evaluator = None if alone else Evaluator(config, algorithm, lambda small: make_vec(small))
        if data is not None and evaluator is not None:
            refuse_other_env(data, evaluator.open().spec)
        elif data is not None:
            source.note = unknown(config)
        env = spec_to_json(vec.spec)
        return Trainer(config, source, algorithm, folder=folder, clock=clock, ranks=ranks, evaluate=evaluator, env=env)
    except BaseException:
        vec.close()
        if evaluator is not None:
            evaluator.close()
        raise


def _vec_on_nodes(config: TrainConfig, ranks: Ranks) -> Any:
    """Return the environments on the nodes of a cluster; None if there is to be none."""
    if config.rollout.nodes is None:
        return None
    from fugu.rollout.fleet_vec import FleetVec
    from fugu.trainer.node import orders

    rollout = config.rollout
    return FleetVec(config.vector, config.rollout.nodes, rollout.address, orders(config, ranks.rank * config.rollout.nodes))


def _fleet(config: TrainConfig, vec: Any, ranks: Ranks, clock: Any) -> Callable[[Any], Source]:
    from fugu.rollout.fleet import Fleet

    return lambda algorithm: Fleet(vec, algorithm, lag=config.rollout.lag, passes=config.passes, ranks=ranks, clock=clock)


def make_algorithm(
    config: TrainConfig,
    agents: Agents,
    device: torch.device,
    ranks: Ranks = ALONE,
    ready: Callable[[nn.Module], None] = lambda policy: None,
) -> Algorithm:
    """Make the algorithm of a run. ``ready`` is called with its policy before anything is copied from it."""
    if device.type == "cpu":
        check_network(config, agents.spec)
    setup = Setup(
        envs=agents,
        settings=config.settings,
        net=config.policy,
        device=device,
        seeds=Seeds(run=config.seed, ranks=ranks),
        ranks=ranks,
        horizon=config.horizon,
        half=config.precision == "bf16",
        weights_of=checkpoint.newest_policy,
        ready=ready,
    )
    algorithm = built(algorithm_class(config.algorithm), config.algorithm, setup)
    for part in algorithm.modules():
        if isinstance(part, RunningMoments):
            part.ranks = ranks
    return algorithm


def make_ready(policy: nn.Module, vec: VecEnv | DeviceVec | OneEnv, config: TrainConfig) -> None:
    """Check a new policy, give it its threads, and teach it from examples."""
    check_policy(config.precision, policy)
    _share_out(config.threads or usable_cores(), policy)
    if config.imitation.examples and not isinstance(vec, OneEnv):
        learn_examples(policy, vec, config.imitation, seed=config.seed)


def lives_on_device(config: TrainConfig, device: torch.device) -> bool:
    """Return whether the environments run on the policy's device: on a GPU those in C++ and those written as torch functions do."""
    if config.vector.backend != "auto":
        return config.vector.backend == "device"
    return device.type == "cuda" and (is_compiled(config.env) or tensor_env_class(config.env) is not None)


def _vec_on_device(config: TrainConfig, device: torch.device) -> DeviceVec | None:
    """Return the environments on the device; None, with a notice, if they are to be on the CPU or have to be."""
    if not lives_on_device(config, device):
        return None
    try:
        return make_device_vec(config, device)
    except GpuError as error:
        if config.vector.backend == "device":  # requested by name
            raise
        warnings.warn(f"the environments stay on the CPU, which is slower: {error}", RuntimeWarning, stacklevel=3)
        return None


def make_device_vec(config: TrainConfig, device: torch.device) -> DeviceVec:
    if config.passes > 1:
        raise ConfigError(
            f"passes={config.passes}: environments on {device} have one segment each in a batch; "
            f"use --horizon {config.passes * config.horizon} or more environments"
        )
    if config.vector.backend == "device":
        settings = dataclasses.replace(config.vector, device=str(device), infos=None, episode_infos=config.log.infos)
    else:  # chosen here: settings of threads and batches were meant for a CPU
        settings = VectorConfig(
            num_envs=config.vector.num_envs,
            backend="device",
            device=str(device),
            compile=config.vector.compile,
            episode_infos=config.log.infos,
        )
    vec = vector.make(config.env, env_kwargs=config.env_kwargs, config=settings)
    assert isinstance(vec, DeviceVec)
    return vec


def _share_out(threads: int, policy: nn.Module) -> None:
    """Set torch's threads. A network that our kernels compute, or a small one, leaves torch only small work, for which several
    threads get in each other's way, by a factor of ten on a machine that is otherwise busy."""
    set_threads(threads)
    small = sum(p.numel() for p in policy.parameters()) < SMALL and not any(isinstance(m, nn.Conv2d) for m in policy.modules())
    torch.set_num_threads(1 if small or getattr(policy, "computed_natively", False) else threads)


def make_vec(config: TrainConfig, first: int = 0) -> VecEnv:
    """Make the environments of a run on the CPU. Of their infos only some numbers of last steps are read, so no others travel.
    ``first``: counted over all nodes, if they are those of one."""
    settings = dataclasses.replace(config.vector, infos=config.vector.infos or "none", episode_infos=config.log.infos)
    if settings.backend == "device":
        settings = dataclasses.replace(settings, backend="auto", device=None)
    if settings.num_envs > MANY and config.device == "cpu":
        with vector.make(_envs(config, 1), env_kwargs=config.env_kwargs, config=VectorConfig(num_envs=1)) as one:
            check_memory(config, one)
    return vector.make(_envs(config, settings.num_envs, first), env_kwargs=config.env_kwargs, config=settings)


def _envs(config: TrainConfig, count: int, first: int = 0) -> Any:
    """Return the environments of a run, or ``count`` of them in turn if it has a list."""
    env = meaning(config.env)
    return [env[(first + i) % len(env)] for i in range(count)] if isinstance(env, list | tuple) else env


def find_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device={name!r} is not a device; use cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device={name!r}: training runs on cpu or cuda")
    if device.type == "cpu" and device.index:
        raise ConfigError(f"device={name!r}, but there is one CPU; use --device cpu, and --threads for how many of its cores")
    if device.type == "cuda" and not torch.cuda.is_available():
        why = "is built for the CPU only" if torch.version.cuda is None else "finds no GPU here"
        raise ConfigError(
            f"device={name!r}, but torch {torch.__version__} {why}; `fugu doctor` says what is missing. A new run with --device cpu "
            "needs no GPU"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device={name!r}, but there are {torch.cuda.device_count()} CUDA devices; use --device cuda:0")
    return device
