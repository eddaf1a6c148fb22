"""What callbacks and infos cost a training that uses neither: python benchmarks/unused.py [--out FILE] [case ...]

The functions that are there for them are timed in the training itself, by the CPU clock of the thread, and their sum is divided by
all CPU time of the training. Most of them take less than reading that clock, so the share is an upper bound; unlike the ratio of two
trainings it does not drown in what else the machine does.

``updates``    many small updates of the native cartpole, without callbacks
``episodes``   many short episodes of CartPole-v1 in this process, whose infos are empty
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import fugu
from callbacks import INFOS, UPDATES
from fugu.emulation.stats import EpisodeInfos, EpisodeStats
from fugu.trainer.callbacks import Callbacks
from harness import Result, main

TIMED = [
    (Callbacks, "__bool__"),
    (Callbacks, "_call"),
    (EpisodeInfos, "add"),
    (EpisodeInfos, "drain"),
    (EpisodeStats, "drain_by_agent"),
]
TRAININGS: dict[str, tuple[str, dict[str, Any]]] = {"updates": ("cartpole", UPDATES), "episodes": ("CartPole-v1", INFOS)}


class Timed:
    """Adds up the time that some functions take, while it is open."""

    def __enter__(self) -> Timed:
        self.seconds, self.calls = 0.0, 0
        self._before = [(kind, name, getattr(kind, name)) for kind, name in TIMED]
        for kind, name, function in self._before:
            setattr(kind, name, self._timed(function))
        return self

    def __exit__(self, *_: object) -> None:
        for kind, name, function in self._before:
            setattr(kind, name, function)

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **more: Any) -> Any:
            start = time.thread_time()
            try:
                return function(*arguments, **more)
            finally:
                self.seconds += time.thread_time() - start
                self.calls += 1

        return timed


def case(name: str, repeats: int) -> dict[str, Any]:
    shares, calls = Result(), 0
    for repeat in range(repeats + 1):  # the first one imports
        share, calls = trained(*TRAININGS[name])
        if repeat:
            shares.values.append(share)
    return {"share": shares.summary(), "calls": calls}


def trained(env: str, settings: dict[str, Any]) -> tuple[float, int]:
    """Train, and return the share of the CPU time that the functions took, and how often they were called."""
    with tempfile.TemporaryDirectory() as runs, warnings.catch_warnings(), Timed() as timed:
        warnings.simplefilter("ignore")
        start = time.process_time()
        fugu.train(env, **settings, runs=runs, threads=1, hidden=(64, 64), **{"log.board": "off"})
        return timed.seconds / (time.process_time() - start), timed.calls


if __name__ == "__main__":
    main("unused", __doc__, {name: partial(case, name) for name in TRAININGS}, repeats=5)
