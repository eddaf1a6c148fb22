"""Settings of a vector env, checked before anything starts."""

from __future__ import annotations

import math
import operator
import os
import re
from dataclasses import dataclass
from typing import Any, Literal

from fugu.config import fixed
from fugu.errors import ConfigError, did_you_mean

Backend = Literal["auto", "serial", "process", "native", "device", "ray"]
Order = Literal["pipelined", "first_finished"]
InfoMode = Literal["all", "episode", "none"]
OnError = Literal["raise", "restart"]

_CHOICES = {
    "backend": ("auto", "serial", "process", "native", "device", "ray"),
    "order": ("pipelined", "first_finished"),
    "infos": (None, "all", "episode", "none"),
    "on_error": ("raise", "restart"),
}


@dataclass(frozen=True, kw_only=True)
class VectorConfig:
    """Settings of a vector env: the number of environments, and the workers that step them."""

    num_envs: int = fixed(1)
    """Number of environments"""
    num_workers: int | None = None
    """Processes or threads that step the environments, the calling one included unless isolated; none: one per usable core"""
    batch_size: int | None = None
    """Environments that get actions at a time while the others step; must divide num_envs; none: all of them"""
    backend: Backend = "auto"
    """Backend: serial (this process), process (shared memory), native (threads, for C++ environments), device (a GPU, for C++
    environments and TensorEnvs), ray (machines of a Ray cluster) or auto, which chooses among the first three"""
    nodes: int | None = None
    """Nodes that share the environments, with backend=ray; the machines get them in turn, and num_workers is for each; none: one per
    machine"""
    address: str | None = None
    """Address of the Ray cluster, with backend=ray: HOST:PORT, or auto for the one that this machine is in; none: Ray is started on
    this machine alone"""
    device: str | None = None
    """Device of the environments with backend=device: cuda, cuda:1, or cpu (C++ environments are emulated there, for tests)"""
    compile: bool | None = None
    """Let torch.compile turn a step of environments in torch into a few kernels, which takes some seconds; none: on a GPU"""
    order: Order = "pipelined"
    """Order of batches: pipelined (each in its turn, deterministic) or first_finished"""
    max_lag: int = 64
    """Batches that one may fall behind the one most often received before it is waited for; only with order=first_finished"""
    seed: int = 0
    """Seed from which every environment's own seed is derived"""
    infos: InfoMode | None = None
    """Infos to keep: all (that are not empty), episode (those of steps that end an episode) or none; if not given: all, but none
    for native environments and in training"""
    episode_infos: tuple[str, ...] = ()
    """Numbers in the info of an episode's last step whose means are kept, beside is_success; training has log.infos for it"""
    cast: bool = False
    """Accept observations of another dtype of the same kind than their space declares (float64 for float32) and convert them"""
    isolate: bool | None = None
    """Keep environments out of the calling process, so that none can hang or crash it; none: only where needed"""
    on_error: OnError = "raise"
    """Treatment of a crash: raise, or restart the environments and mark their episodes truncated"""
    max_restarts: int = 16
    """Restarts before the error is raised after all, with on_error=restart"""
    start_timeout: float = 120.0
    """Longest time to build the environments, in seconds"""
    reset_timeout: float = 120.0
    """Longest time for a reset, in seconds"""
    step_timeout: float = 60.0
    """Longest time for a step of a batch, in seconds"""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise ConfigError(
                    f"{name}={value!r} must be one of {', '.join(map(str, choices))}.{did_you_mean(str(value), map(str, choices))}"
                )
        for name in ("num_envs", "num_workers", "batch_size", "nodes", "max_lag", "seed", "max_restarts"):
            value = getattr(self, name)
            if value is None and name in ("num_workers", "batch_size", "nodes"):
                continue
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise ConfigError(f"{name}={value!r} must be a whole number")
            object.__setattr__(self, name, operator.index(value))
            if name not in ("seed", "max_restarts") and value < 1:
                raise ConfigError(f"{name}={value!r} must be at least 1")
        object.__setattr__(self, "episode_infos", info_names("episode_infos", self.episode_infos))
        for name in ("start_timeout", "reset_timeout", "step_timeout"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ConfigError(f"{name}={value!r} must be a positive number of seconds")
        if self.compile not in (None, True, False):
            raise ConfigError(f"compile={self.compile!r} must be true, false or left out")
        if self.max_restarts < 0:
            raise ConfigError(f"max_restarts={self.max_restarts} must not be negative")
        if self.batch_size is not None and self.num_envs % self.batch_size:
            near = nearest_divisor(self.num_envs, self.batch_size)
            raise ConfigError(
                f"batch_size={self.batch_size} (environments that step together; rows of a gradient step are minibatch) "
                f"must divide num_envs={self.num_envs}; try batch_size={near} "
                f"or num_envs={_nearest_multiple(self.num_envs, self.batch_size)}"
            )
        if self.backend == "serial" and ((self.num_workers or 1) > 1 or self.isolate):
            what = "isolate=True" if self.isolate else f"num_workers={self.num_workers}"
            raise ConfigError(f"{what} needs other processes, which backend='serial' has none of; use backend='process'")
        self._check_device()
        self._check_nodes()
        if self.isolate is False and self.num_batches > 1:
            raise ConfigError(
                f"isolate=False lets the caller step environments, but batch_size={self.batch_size} leaves it free"
            )
        if self.num_workers is not None and self.num_workers > self.num_envs:
            raise ConfigError(
                f"num_workers={self.num_workers} is more than num_envs={self.num_envs}; try num_workers={self.num_envs}"
            )
        if self.num_workers is not None and self.backend == "process" and self.num_workers % self.num_batches:
            valid = list(range(self.num_batches, self.num_envs + 1, self.num_batches))
            raise ConfigError(
                f"num_workers={self.num_workers} must be a multiple of the {self.num_batches} batches "
                f"(num_envs={self.num_envs} / batch_size={self.batch_size}); try num_workers={_nearest(self.num_workers, valid)}"
            )

    def _check_device(self) -> None:
        if self.device is not None and not (isinstance(self.device, str) and re.fullmatch(r"cpu|cuda(:\d+)?", self.device)):
            raise ConfigError(f"device={self.device!r} must be cuda, cuda:N or cpu")
        if self.resolved_backend != "device":
            if self.device is not None:
                raise ConfigError(f"device={self.device!r} is for backend='device'; got backend={self.backend!r}")
            return
        if self.device is None:
            raise ConfigError(
                "backend='device' needs a device; try device='cuda'. Training needs no backend for that: --device cuda alone"
            )
        refused = {
            "num_workers": self.num_workers is not None,
            "batch_size": self.num_batches > 1,
            "isolate": self.isolate is not None,
            "on_error": self.on_error == "restart",
            "infos": self.infos in ("all", "episode"),
        }
        for name in (name for name, given in refused.items() if given):
            raise ConfigError(
                f"{name}={getattr(self, name)!r} is of no use with backend='device', which steps all environments at once; leave it out"
            )

    def _check_nodes(self) -> None:
        for name in ("nodes", "address"):
            if getattr(self, name) is not None and self.backend != "ray":
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} is for backend='ray'; got backend={self.backend!r}. Nodes that act themselves are "
                    "rollout.nodes"
                )
        if self.nodes is not None and self.nodes > self.num_envs:
            raise ConfigError(f"nodes={self.nodes} is more than num_envs={self.num_envs}; try nodes={self.num_envs}")
        if self.nodes is not None and self.nodes % self.num_batches:
            raise ConfigError(
                f"nodes={self.nodes} must be a multiple of the {self.num_batches} batches (num_envs={self.num_envs} / "
                f"batch_size={self.batch_size}); try nodes={self.num_batches}"
            )

    @property
    def num_batches(self) -> int:
        return self.num_envs // (self.batch_size or self.num_envs)

    @property
    def resolved_backend(self) -> Literal["serial", "process", "native", "device", "ray"]:
        if self.backend != "auto":
            return self.backend
        if self.device is not None:
            return "device"
        if self.num_workers is not None or self.num_batches > 1:
            return "process"
        return "process" if self.num_envs > 1 and usable_cores() > 1 else "serial"

    @property
    def resolved_isolate(self) -> bool:
        """Return True if all environments run in workers. Otherwise the caller, which would only wait, steps a share itself."""
        if self.num_batches > 1:
            return True
        return self.on_error == "restart" if self.isolate is None else self.isolate

    @property
    def resolved_workers(self) -> int:
        """Return the number of shards, the caller's own included."""
        if self.resolved_backend == "serial":
            return 1
        if self.num_workers is not None:
            return self.num_workers
        per_batch = max(1, usable_cores() // self.num_batches)
        return min(per_batch, self.num_envs // self.num_batches) * self.num_batches


def info_names(field: str, names: Any) -> tuple[str, ...]:
    """Return the names of infos that ``field`` lists, checked."""
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{field}={names!r} must be a list of names, such as {field}=('distance',)")
    return tuple(dict.fromkeys(names))


def usable_cores() -> int:
    """Return the number of cores this process may run on (affinity and container limits, not what the machine has). Processes that
    learn together on this machine share them out."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota()
    usable = max(1, min(cores, quota)) if quota else cores
    return max(1, usable // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _cgroup_quota() -> int | None:
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            limit, period = file.read().split()
        return None if limit == "max" else max(1, round(int(limit) / int(period)))
    except (OSError, ValueError):
        return None


def nearest_divisor(number: int, wanted: float) -> int:
    """Return the divisor of ``number`` that is closest to ``wanted``; of an absurd number, one of those that are soon found."""
    small = [n for n in range(1, min(math.isqrt(number), 1 << 20) + 1) if number % n == 0]
    return min(small + [number // n for n in small], key=lambda n: (abs(n - wanted), n))


def _nearest(value: int, valid: list[int]) -> int:
    return min(valid, key=lambda v: (abs(v - value), v))


def _nearest_multiple(value: int, of: int) -> int:
    return max(of, round(value / of) * of)
