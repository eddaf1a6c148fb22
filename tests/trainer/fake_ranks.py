"""Several ranks in one process, each a thread: what they say to each other waits until all have said it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from fugu.ranks import Ranks


class Together:
    """What ranks share: places to put things, and a barrier."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.places: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=60)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """Return what all ranks give, in their order."""
        self.places[rank] = value
        self.barrier.wait()
        found = list(self.places)
        self.barrier.wait()
        return found


class FakeRanks(Ranks):
    def __init__(self, rank: int, together: Together) -> None:
        self.rank, self.size, self._together = rank, together.size, together

    def sum(self, x: Any) -> Any:
        parts = self._together.exchange(self.rank, x.detach().clone())
        return torch.stack(parts).sum(0).to(x.dtype)

    def any(self, flag: bool) -> bool:
        return any(self._together.exchange(self.rank, flag))

    def least(self, number: int) -> int:
        return min(self._together.exchange(self.rank, number))

    def gather(self, x: Any) -> list[Any]:
        return self._together.exchange(self.rank, x)

    def broadcast(self, x: Any) -> Any:
        return self._together.exchange(self.rank, x)[0]


def run_together(size: int, work: Callable[[FakeRanks], Any], prepare: Callable[[FakeRanks], Any] = bool) -> list[Any]:
    """Do ``work`` on ``size`` ranks at once, after ``prepare`` on one after the other. Returns what each returned; raises what one
    raised."""
    together = Together(size)
    for rank in range(size):
        prepare(FakeRanks(rank, together))
    found: list[Any] = [None] * size
    errors: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            found[rank] = work(FakeRanks(rank, together))
        except BaseException as error:
            errors.append(error)
            together.barrier.abort()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
    return found
