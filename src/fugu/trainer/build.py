"""From a config to the objects of a run: vector env, policy, algorithm, source, trainer."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import nn

from fugu import vector
from fugu.algorithm.contract import Algorithm
from fugu.algorithm.make import make_algorithm
from fugu.emulation.build import is_compiled
from fugu.emulation.factory import tensor_env_class
from fugu.errors import ConfigError, GpuError
from fugu.native import keep_freed_memory, set_threads
from fugu.rollout.device import DeviceRollout
from fugu.rollout.episodes import Episodes
from fugu.rollout.feed import Feed
from fugu.rollout.onpolicy import Clock, OnPolicy
from fugu.rollout.source import Source
from fugu.trainer.config import TrainConfig
from fugu.trainer.imitation import learn_examples
from fugu.trainer.loop import Trainer
from fugu.trainer.memory import MANY, check_memory, check_network
from fugu.trainer.precision import check_policy, check_precision
from fugu.vector.config import VectorConfig, usable_cores
from fugu.vector.device import DeviceVec
from fugu.vector.vecenv import VecEnv

SMALL = 100_000
"""weights up to which torch gets one thread"""


def make_trainer(
    config: TrainConfig, folder: Path | None = None, clock: Callable[[str], AbstractContextManager[None]] | None = None
) -> Trainer:
    """Everything a run needs, checked; ``folder`` is where checkpoints go. Close it with ``trainer.source.vec.close()``."""
    device = find_device(config.device)
    check_precision(config.precision, device)
    keep_freed_memory()
    torch.set_num_threads(1)  # weights then start alike on any number of cores, and without waiting for threads to start
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if config.precision == "float32" else "high")
    vec = _vec_on_device(config, device) or make_vec(config)
    try:
        config.minibatches(vec.num_agents * config.passes)  # refuses impossible sizes
        if isinstance(vec, VecEnv) and device.type == "cpu":  # else batches are in the memory of the GPU
            check_memory(config, vec)
            check_network(config, vec.spec)
        algorithm = make_algorithm(config, vec, device)
        check_policy(config.precision, algorithm.modules["policy"])
        _share_out(config.threads or usable_cores(), algorithm.modules["policy"])
        if config.imitation.examples:
            learn_examples(algorithm.modules["policy"], vec, config.imitation, seed=config.seed)
            algorithm.begin()
        algorithm.fuse(config)
        source = make_source(config, vec, algorithm, device, clock)
        return Trainer(config, source, algorithm, folder=folder, clock=clock)
    except BaseException:
        vec.close()
        raise


def lives_on_device(config: TrainConfig, device: torch.device) -> bool:
    """Whether the environments are where the policy is: on a GPU those in C++ and those written as torch functions."""
    if config.vector.backend != "auto":
        return config.vector.backend == "device"
    return device.type == "cuda" and (is_compiled(config.env) or tensor_env_class(config.env) is not None)


def _vec_on_device(config: TrainConfig, device: torch.device) -> DeviceVec | None:
    """None if the environments are to be on the CPU, or have to: that is said, and the policy is fed from there."""
    if not lives_on_device(config, device):
        return None
    try:
        return make_device_vec(config, device)
    except GpuError as error:
        if config.vector.backend == "device":  # asked for by name
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
        settings = dataclasses.replace(config.vector, device=str(device), infos=None)
    else:  # chosen here: what was said of threads and batches was meant for a CPU
        settings = VectorConfig(
            num_envs=config.vector.num_envs, backend="device", device=str(device), compile=config.vector.compile
        )
    vec = vector.make(config.env, env_kwargs=config.env_kwargs, config=settings)
    assert isinstance(vec, DeviceVec)
    return vec


def make_source(
    config: TrainConfig, vec: VecEnv | DeviceVec, algorithm: Algorithm, device: torch.device, clock: Clock | None
) -> Source:
    """Where batches come from: environments on the device, on the CPU for a policy on a GPU, or both on the CPU."""
    size = algorithm.state_size
    if algorithm.groups is not None:
        if isinstance(vec, DeviceVec):
            raise ConfigError(
                f"{config.algorithm} starts episodes together, which environments on {device} do not; keep them on the CPU: "
                f"--vector.backend {'native' if is_compiled(config.env) else 'serial'}"
            )
        return Episodes(vec, config.horizon, algorithm.groups, state_size=size, device=device, clock=clock)
    if isinstance(vec, DeviceVec):
        return DeviceRollout(vec, config.horizon, algorithm.columns, state_size=size, whole=algorithm.whole(vec))
    if device.type == "cuda" and config.passes == 1:
        return Feed(vec, config.horizon, algorithm.columns, state_size=size, device=device, clock=clock)
    return OnPolicy(vec, config.horizon, passes=config.passes, state_size=size, device=device, clock=clock)


def _share_out(threads: int, policy: nn.Module) -> None:
    """A network that our kernels compute, or a small one, leaves torch only small things to do: its threads would get in each
    other's way, by a factor of ten where the machine has anything else to do."""
    set_threads(threads)
    small = sum(p.numel() for p in policy.parameters()) < SMALL and not any(isinstance(m, nn.Conv2d) for m in policy.modules())
    torch.set_num_threads(1 if small or getattr(policy, "computed_natively", False) else threads)


def make_vec(config: TrainConfig) -> VecEnv:
    """The environments of a run. Their infos are not looked at, so they need not travel."""
    settings = dataclasses.replace(config.vector, infos=config.vector.infos or "none")
    if settings.backend == "device":
        settings = dataclasses.replace(settings, backend="auto", device=None)
    if settings.num_envs > MANY and config.device == "cpu":
        with vector.make(config.env, env_kwargs=config.env_kwargs, config=VectorConfig(num_envs=1)) as one:
            check_memory(config, one)
    return vector.make(config.env, env_kwargs=config.env_kwargs, config=settings)


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
