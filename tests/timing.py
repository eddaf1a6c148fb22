"""Limits on how long something may take. Whatever else the machine does can only add to it, so a test that misses one is run again,
three times in all (``--only-rerun TooSlow`` in pyproject.toml); one that fails for any other reason is not."""

from __future__ import annotations


class TooSlow(AssertionError):
    """A limit was missed, and nothing else."""


def in_time(took: float, at_most: float) -> None:
    if took > at_most:
        raise TooSlow(f"took {took:.3g} s where {at_most:g} s are the limit")
