"""An environment that goes wrong on request, and factories that place one among healthy ones."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np


class Unreadable(Exception):
    """Cannot be pickled, and its text cannot be read."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Panic(BaseException):
    """As libraries in Rust raise it."""


BASE_EXCEPTIONS = {"cancelled": asyncio.CancelledError, "generator_exit": GeneratorExit, "panic": Panic}
"""what is no Exception, and yet an environment's own"""


class Faulty(gymnasium.Env):
    """Counts up to ``length``. Does ``fault`` in ``phase``, on step ``at`` of each episode."""

    observation_space = gymnasium.spaces.Dict(
        position=gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32), count=gymnasium.spaces.Discrete(1000)
    )
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault: str = "", phase: str = "step", at: int = 3, length: int = 10) -> None:
        self.fault, self.phase, self.at, self.length = fault, phase, at, length
        self.count = 0
        self._do("make")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        self._do("reset")
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        self.count += 1
        obs, reward, info = self._obs(), 1.0, {}
        if self.phase == "step" and self.count == self.at:
            if self.fault == "shape":
                obs["position"] = np.zeros(4, np.float32)
            elif self.fault == "dtype":
                obs["position"] = np.zeros(3, np.float64)
            elif self.fault == "nan":
                obs["position"][1] = np.nan
            elif self.fault == "key":
                del obs["count"]
            elif self.fault == "range":
                obs["count"] = 1000
            elif self.fault == "none":
                obs = None
            elif self.fault == "reward_nan":
                reward = float("nan")
            elif self.fault == "reward_array":
                reward = np.ones(1)
            elif self.fault == "flag":
                return obs, reward, None, False, {}
            elif self.fault == "tuple":
                return obs, reward
            elif self.fault == "big_info":
                info = {"blob": b"x" * 5_000_000}
            elif self.fault == "odd_info":
                info = {"lock": threading.Lock(), "fine": 7}
            else:
                self._do("step")
        return obs, reward, self.count >= self.length, False, info

    def close(self) -> None:
        self._do("close")

    def now(self, fault: str, *_: Any) -> str:
        """Do ``fault`` when called."""
        self.fault, self.phase = fault, "call"
        self._do("call")
        return fault

    def _obs(self) -> dict[str, Any]:
        return {"position": self.np_random.random(3, np.float32), "count": self.count}

    def _do(self, phase: str) -> None:
        if phase != self.phase:
            return
        if self.fault == "raise":
            raise ValueError(f"the env broke in {phase}")
        if self.fault == "unreadable":
            raise Unreadable
        if self.fault in BASE_EXCEPTIONS:
            raise BASE_EXCEPTIONS[self.fault](self.fault)
        if self.fault == "forked_exit":
            if os.fork() == 0:
                raise SystemExit(0)
            os.wait()
        if self.fault == "exit":
            raise SystemExit(3)
        if self.fault == "interrupt":
            raise KeyboardInterrupt
        if self.fault == "os_exit":
            os._exit(0)
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.fault == "segfault":
            ctypes.string_at(0)
        if self.fault == "sleep":
            time.sleep(1000)
        if self.fault == "spin":
            while True:
                pass
        if self.fault == "hold_gil":
            ctypes.PyDLL(None).sleep(1000)
        if self.fault == "deaf_for_a_second":  # as native code is, which signals reach only when it returns
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
            time.sleep(1)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        if self.fault == "orphan":
            subprocess.Popen(["sleep", "1000"])
        if self.fault == "fork":
            fork()
        if self.fault == "die_forked":
            fork()
            os.kill(os.getpid(), signal.SIGKILL)


def fork() -> None:
    """Start a process that has all descriptors of this one, and holds them."""
    if os.fork() == 0:
        time.sleep(1000)
        os._exit(0)


def healthy() -> Callable[[], Faulty]:
    return functools.partial(Faulty)


def one_bad(num_envs: int, bad: int, fault: str, **kwargs: Any) -> list[Callable[[], Faulty]]:
    """``num_envs`` factories, the one with index ``bad`` of an env with that fault."""
    return [functools.partial(Faulty, fault=fault, **kwargs) if i == bad else healthy() for i in range(num_envs)]
