"""Does an environment keep something of every step? Measured right after resets, so that an episode's own history is not
counted, and only called a leak if every part of the run adds to it."""

from __future__ import annotations

import gc
import itertools
import sys
import time

import psutil

from fugu.check.player import Limits, Player
from fugu.check.report import Report

PARTS = 4
BYTES_PER_STEP = 1024
OBJECTS_PER_STEP = 0.5


def check_memory(player: Player, report: Report, limits: Limits) -> None:
    """Check that memory does not grow: play a warm-up and ``PARTS`` equal parts, within the limits."""
    process = psutil.Process()
    part = max(20, limits.steps // PARTS)
    limit = limits.seconds / (PARTS + 1)
    player.reset(limits.seed)
    marks = []
    gc.collect()
    frozen = gc.get_freeze_count()
    gc.freeze()  # the collections below then only look at what is new
    try:
        for _ in range(PARTS + 1):
            done = _play(player, part, limit)
            player.reset(None)
            gc.collect()
            marks.append((done, process.memory_info().rss, sys.getallocatedblocks()))
    finally:
        if not frozen:
            gc.unfreeze()
    pairs = list(itertools.pairwise(marks))
    taken = [max(1, after[0]) for _, after in pairs]
    rss = [(after[1] - before[1]) / n for (before, after), n in zip(pairs, taken, strict=True)]
    blocks = [(after[2] - before[2]) / n for (before, after), n in zip(pairs, taken, strict=True)]
    growth = sum(r * n for r, n in zip(rss, taken, strict=True)) / sum(taken)
    report.facts["memory_growth_per_step"] = max(0.0, growth)
    if min(blocks) >= OBJECTS_PER_STEP or min(rss) >= BYTES_PER_STEP:
        objects = sum(b * n for b, n in zip(blocks, taken, strict=True)) / sum(taken)
        report.add(
            "warning",
            "memory",
            f"about {max(objects, 0):.1f} objects and {max(growth, 0):,.0f} bytes more after every step, also across resets",
            "clear histories in reset(), bound caches (functools.lru_cache(maxsize=...), collections.deque(maxlen=...))",
        )


def _play(player: Player, steps: int, seconds: float) -> int:
    until = time.perf_counter() + seconds
    for done in range(steps):
        if time.perf_counter() > until:
            return done
        player.reset(None) if player.ended else player.step()
    return steps
