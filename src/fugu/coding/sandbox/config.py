"""The settings of a sandbox, checked before anything starts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

from fugu.errors import ConfigError, did_you_mean

BackendName = Literal["fork", "subprocess", "bubblewrap", "docker", "podman", "http"]

FEATURES: dict[str, int] = {"namespaces": 3, "mounts": 3, "process_limit": 3, "landlock": 2, "seccomp": 1}
"""features that isolate a program, by the name that ``allow`` and ``Isolation.missing`` use, and the level at which each is
required"""

MOST_WORKERS = 1024


@dataclass(frozen=True, kw_only=True)
class SandboxConfig:
    """Settings of the sandbox: the backend that runs the programs, and how well it must keep them apart."""

    backend: BackendName = "fork"
    """fork (Linux; the fastest), subprocess, bubblewrap, docker, podman, http"""
    min_level: int = 3
    """refuse to start below this: 3 namespaces, 2 Landlock, 1 seccomp, 0 nothing but limits"""
    allow: tuple[str, ...] = ()
    """what may be missing nevertheless, by name: namespaces, mounts, process_limit, landlock, seccomp"""
    workers: int | None = None
    """zygotes of the fork backend, or processes at once of the others; default: one per usable core"""
    in_flight: int = 32
    """executions at once per zygote: sleepers and slow programs occupy a place each, so that the others are not held up"""
    queue: int = 65536
    """programs that may wait for a place; more is an error"""
    retries: int = 2
    """how often an internal error is tried again, on a fresh worker, before it is reported"""
    cache: int = 0
    """outcomes kept of programs seen before; only for programs without randomness or time, since the first outcome counts for all"""
    recycle: int = 5000
    """executions after which a zygote is replaced"""
    grow_mb: int = 64
    """growth of a zygote's memory after which it is replaced"""
    start_timeout: float = 30.0
    """seconds for a worker to start"""
    silence_s: float = 5.0
    """seconds a worker may leave a question unanswered before it is killed and replaced"""
    python: str | None = None
    """of fork, subprocess and bubblewrap: the interpreter that runs the programs; default: this one"""
    preload: tuple[str, ...] = (
        *("bisect", "collections", "contextlib", "copy", "functools", "heapq", "io", "itertools", "json", "math", "operator"),
        *("random", "re", "string", "struct", "threading", "time", "traceback", "types", "typing"),
    )
    """of fork: modules of the standard library that every program finds imported; the others cost those that import them"""
    cgroup: str | None = None
    """of fork: the path of a control group (version 2) that was delegated to this user; the kernel then counts by itself what all
    processes of a program take in profile=program, CPU time always and memory where that controller is delegated, too"""
    image: str = "python:3.11-slim"
    """of docker and podman: a local image with python3"""
    runtime: str | None = None
    """of docker and podman: runsc for gVisor"""
    url: str | None = None
    """of http: where the service is"""
    pretend_missing: tuple[str, ...] = ()
    """for tests: behave as if the machine did not offer these features"""

    def __post_init__(self) -> None:
        if self.backend not in get_args(BackendName):
            raise ConfigError(f"there is no backend {self.backend!r}.{did_you_mean(self.backend, get_args(BackendName))}")
        if self.min_level not in (0, 1, 2, 3):
            raise ConfigError(f"min_level={self.min_level} must be 3, 2, 1 or 0")
        for name in ("allow", "pretend_missing"):
            for feature in getattr(self, name):
                if feature not in FEATURES:
                    raise ConfigError(f"{name}: there is no feature {feature!r}.{did_you_mean(feature, FEATURES)}")
        for name in ("in_flight", "queue", "recycle", "grow_mb", "start_timeout", "silence_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be above 0")
        for name in ("retries", "cache"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name}={getattr(self, name)} must not be negative")
        if self.cgroup is not None and not os.path.exists(os.path.join(self.cgroup, "cgroup.subtree_control")):
            raise ConfigError(
                f"cgroup={self.cgroup!r} is no control group of version 2; systemd-run --user --scope -p Delegate=yes makes one"
            )
        if self.workers is not None and not 1 <= self.workers <= MOST_WORKERS:
            raise ConfigError(f"workers={self.workers} must be from 1 to {MOST_WORKERS}")

    @property
    def worker_count(self) -> int:
        return self.workers or len(os.sched_getaffinity(0))
