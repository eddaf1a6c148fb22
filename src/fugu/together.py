"""Ranks over several processes, through torch.distributed: gloo on CPUs, NCCL between GPUs.

In: the variables by which torchrun tells a process who it is. Out: the ``Ranks`` of this process. A rank is a learner with its own
environments and seeds. Usually a process is one rank. In ``exact`` mode there are a fixed number of ranks, which the processes share
out; those of one process are threads, and sums are added in the order of the ranks. So the bits do not depend on the number of
processes.

A process that waits for one that is gone, or that hangs for longer than the timeout, raises ``RankLost``, which names it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from fugu.errors import ConfigError, FuguError
from fugu.ranks import Ranks

OURS = "fugu-"
"""beginning of the names of what ``fugu train --processes`` launches, which are never the same"""
LOST = 75
"""exit code of a process that lost another one"""


class RankLost(FuguError, RuntimeError):
    """Another process of the training is gone, or has not answered in time."""

    exit_code = LOST


def launched() -> int | None:
    """Return how many processes torchrun, or ``fugu train --processes``, has started; None if this is none of them."""
    return int(os.environ["WORLD_SIZE"]) if {"RANK", "WORLD_SIZE"} <= os.environ.keys() else None


def job() -> str | None:
    """Return the name of what was launched, if this process stands for one that ended: then there may be something to go on with."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0 or name.startswith(OURS)
    return name if name and again else None


class World:
    """The processes of a training. Every call is one that all of them make."""

    def __init__(self, *, cuda: bool, timeout: float) -> None:
        import torch.distributed as dist

        if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            raise ConfigError(
                "torchrun cannot restart processes that share its store (pytorch issue 135712); set "
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 where you type torchrun"
            )
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.local = int(os.environ.get("LOCAL_RANK", "0"))
        self._timeout = timeout
        self._peers: list[tuple[str, int]] = []
        with self._explained():
            backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
        atexit.register(self._leave)
        self._peers = self.objects((socket.gethostname(), os.getpid()))

    def _leave(self) -> None:
        import torch.distributed as dist

        with contextlib.suppress(Exception):
            dist.destroy_process_group()

    def reduced(self, x: Any) -> Any:
        """Return the sum of a tensor over all processes, in whatever order is fastest; the same bits on all of them."""
        import torch.distributed as dist

        x = x.clone(memory_format=_contiguous())
        with self._explained():
            dist.all_reduce(x)
        return x

    def most(self, number: int) -> int:
        """Return the largest of the processes' numbers."""
        import torch
        import torch.distributed as dist

        x = torch.tensor(number)
        with self._explained():
            dist.all_reduce(x, dist.ReduceOp.MAX)
        return int(x)

    def gathered(self, x: Any) -> list[Any]:
        """Return the tensors of all processes, which have one shape, in their order."""
        import torch
        import torch.distributed as dist

        x = x.contiguous()
        found = [torch.empty_like(x) for _ in range(self.size)]
        with self._explained():
            dist.all_gather(found, x)
        return found

    def objects(self, x: Any) -> list[Any]:
        """Return what all processes give, in their order."""
        import torch.distributed as dist

        found: list[Any] = [None] * self.size
        with self._explained():
            dist.all_gather_object(found, x)
        return found

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # what gloo and NCCL raise
            if isinstance(error, FuguError):
                raise
            raise RankLost(self._why(str(error))) from error

    def _why(self, text: str) -> str:
        here = socket.gethostname()
        gone = [rank for rank, (host, pid) in enumerate(self._peers) if host == here and rank != self.rank and not _lives(pid)]
        if gone:
            return f"rank {self.rank} goes no further: {_ranks(gone)} of {self.size} on {here} ended"
        others = [rank for rank in range(self.size) if rank != self.rank]
        late = "imed out" in text or "imeout" in text
        what = f"did not answer within {self._timeout:g} s (ranks.timeout)" if late else "closed the connection"
        who = _ranks(others) if len(others) == 1 else "another rank"
        first = text.strip().splitlines()[0][:200] if text.strip() else "no reason given"
        return f"rank {self.rank} goes no further: {who} of {self.size} {what}: {first}"


class _Now(threading.local):
    speaking = False


_now = _Now()


def speaking() -> bool:
    """Return whether this thread is in the middle of something that all ranks do together, which nothing may cut short."""
    return _now.speaking


class Hall:
    """Lets the ranks of one process, each a thread, meet."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size = size
        self._timeout = timeout
        self._places: list[Any] = [None] * size
        self._found: Any = None
        self._arrived = self._meetings = 0
        self._left = False
        self._changed = threading.Condition()

    def meet(self, place: int, value: Any, join: Callable[[list[Any]], Any]) -> Any:
        """Wait until all are there, and return ``join`` of what they brought, which the last of them calls."""
        with self._changed:
            self._places[place] = value
            self._arrived += 1
            number = self._meetings
            if self._arrived == self.size and not self._left:
                try:
                    self._found = join(list(self._places))
                except BaseException:
                    self._leave()
                    raise
                self._arrived, self._meetings = 0, number + 1
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._left or self._meetings > number, self._timeout)
            if self._meetings == number:
                raise RankLost("another rank of this process ended")
            return self._found

    def leave(self) -> None:
        """Let the others know that a rank has ended too early."""
        with self._changed:
            self._leave()

    def _leave(self) -> None:
        self._left = True
        self._changed.notify_all()


class Together(Ranks):
    """One of several ranks. ``world`` joins processes, ``hall`` the ranks of this one; either may be None."""

    def __init__(self, place: int, world: World | None, hall: Hall | None, *, exact: bool) -> None:
        here = 1 if hall is None else hall.size
        self.size = here * (1 if world is None else world.size)
        self.rank = place + here * (0 if world is None else world.rank)
        self._place, self._world, self._hall = place, world, hall
        self._reduces = world is not None and hall is None and not exact

    def sum(self, x: Any) -> Any:
        x = x.detach()
        if self._reduces:
            _now.speaking = True
            try:
                return self._world.reduced(x)  # type: ignore[union-attr]
            finally:
                _now.speaking = False
        first, *others = self._met(x, self._tensors)
        total = first.clone()
        for other in others:
            total += other
        return total

    def any(self, flag: bool) -> bool:
        return bool(self._met(int(flag), lambda flags: self._most(max(flags))))

    def least(self, number: int) -> int:
        return -int(self._met(-number, lambda numbers: self._most(max(numbers))))

    def gather(self, x: Any) -> list[Any]:
        return list(self._met(x, self._objects))

    def broadcast(self, x: Any) -> Any:
        return self.gather(x if self.rank == 0 else None)[0]

    def leave(self) -> None:
        """Let the ranks beside this one in its process know that it ends too early."""
        if self._hall is not None:
            self._hall.leave()

    def _met(self, value: Any, join: Callable[[list[Any]], Any]) -> Any:
        _now.speaking = True
        try:
            return join([value]) if self._hall is None else self._hall.meet(self._place, value, join)
        finally:
            _now.speaking = False

    def _tensors(self, mine: list[Any]) -> list[Any]:
        import torch

        if self._world is None:
            return mine
        return [each for block in self._world.gathered(torch.stack(mine)) for each in block.unbind()]

    def _objects(self, mine: list[Any]) -> list[Any]:
        return mine if self._world is None else [each for block in self._world.objects(mine) for each in block]

    def _most(self, number: int) -> int:
        return number if self._world is None else self._world.most(number)


_worlds: list[World] = []
"""the processes that this one has joined; it does so once"""


def join(*, mode: str, shards: int | None, timeout: float, cuda: bool) -> list[Ranks]:
    """Return the ranks of this process. ``shards``: how many there are in all, in ``exact`` mode; None: one per process."""
    several = (launched() or 1) > 1
    if several and not _worlds:
        _worlds.append(World(cuda=cuda, timeout=timeout))
    world = _worlds[0] if several else None
    size = 1 if world is None else world.size
    if shards is not None and shards % size:
        raise ConfigError(
            f"ranks.shards={shards} cannot be shared out to {size} processes; try --ranks.shards {-(-shards // size) * size}"
        )
    here = 1 if shards is None else shards // size
    if size == here == 1:
        return [Ranks()]
    hall = Hall(here, timeout) if here > 1 else None
    return [Together(place, world, hall, exact=mode == "exact") for place in range(here)]


def first_says(x: Any) -> Any:
    """Return what the first process gives."""
    return _worlds[0].objects(x)[0] if _worlds else x


def _contiguous() -> Any:
    import torch

    return torch.contiguous_format


def _lives(pid: int) -> bool:
    """Return whether a process runs; one that has ended and waits for its parent does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _ranks(numbers: list[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else "ranks " + ", ".join(map(str, numbers))
