"""Make known to all ranks, at one point, what one runs into alone (an environment that fails, a signal), so that none waits for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from fugu.errors import FuguError
from fugu.ranks import Ranks
from fugu.rollout.source import Stopped

Found = TypeVar("Found")


class RankFailed(FuguError, RuntimeError):
    """Another rank raised an error, which it reports itself."""

    agreed = True


def agreed(ranks: Ranks, work: Callable[[], Found]) -> Found:
    """Do ``work``, in which ranks do not speak to each other. If it fails on one of them it fails on all: there with its own error, on
    the others with ``Stopped``, or with ``RankFailed``, which says where. An error that all know of has
    ``agreed``."""
    if ranks.size == 1:
        return work()
    failed: BaseException | None = None
    try:
        found = work()
    except (Exception, Stopped) as error:  # a KeyboardInterrupt of another kind is for now
        failed = error
    if not ranks.any(failed is not None):
        return found
    said = ranks.gather(None if failed is None else (isinstance(failed, Stopped), _line(failed)))
    if failed is not None:
        with suppress(AttributeError):
            failed.agreed = True  # type: ignore[attr-defined]
        raise failed
    errors = [(rank, each[1]) for rank, each in enumerate(said) if each is not None and not each[0]]
    if not errors:
        raise Stopped
    rank, text = errors[0]
    raise RankFailed(f"rank {rank} of {ranks.size} raised {text}")


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:1000]
