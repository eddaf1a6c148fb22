"""Limits on how long something may take. Whatever else the machine does can only add to it, so a test that misses one is run again,
three times in all (``--only-rerun TooSlow`` in pyproject.toml); one that fails for any other reason is not."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil


class TooSlow(AssertionError):
    """A limit was missed, and nothing else."""


def in_time(took: float, at_most: float) -> None:
    if took > at_most:
        raise TooSlow(f"took {took:.3g} s where {at_most:g} s are the limit")


def gone_in(processes: Iterable[psutil.Process], seconds: float) -> None:
    """They end by themselves; whether somebody has asked for their exit codes is not their business."""
    began = time.monotonic()
    while alive := [each for each in processes if _alive(each)]:
        assert time.monotonic() < began + seconds + 10, f"live on: {alive}"
        time.sleep(0.01)
    in_time(time.monotonic() - began, seconds)


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
