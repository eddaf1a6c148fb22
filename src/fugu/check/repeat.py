"""Does the same seed give the same episode, and another seed another one?"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from fugu.check.player import Limits, Player
from fugu.check.report import Report
from fugu.check.values import show

TRACE_STEPS = 50
"""steps by which two seeds are told apart"""

Play = Callable[[], AbstractContextManager[Player]]
"""a new player, closed in the end"""


def _seeding(report: Report) -> str:
    """Return how an environment of this kind seeds itself: only Gymnasium's has a parent that does it."""
    if report.facts.get("kind") == "Gymnasium":
        return "super().reset(seed=seed)"
    return "self.np_random = np.random.default_rng(seed) in reset() where a seed is given"


def check_determinism(play: Play, report: Report, limits: Limits, *, known: bool) -> None:
    """Step two instances in lockstep, same seed, same actions. ``known``: the env itself declares that it is not deterministic.

    In lockstep because that is what a vector env does: an env that seeds a global generator repeats itself when it runs alone.
    """
    until = time.perf_counter() + limits.seconds
    with play() as one, play() as two:
        for t in range(limits.steps + 1):
            if one.ended:
                place = "the first reset" if t == 0 else f"the reset after step {t}"
                problem = _both(one, two, "reset", limits.seed if t == 0 else None)
                if problem:
                    break
            if t == limits.steps or time.perf_counter() > until or one.ended:
                return
            place = f"step {t + 1}"
            problem = _both(one, two, "step")
            if problem:
                break
    fix = (
        f"draw all randomness from self.np_random, seeded by {_seeding(report)}; never from np.random, random or the clock, "
        "and share no state between instances"
    )
    report.add("note" if known else "error", "determinism", f"same seed and actions, but at {place} {problem}", fix)


def _both(one: Player, two: Player, call: str, *args: Any) -> str:
    """Make the same call on both; what differs in what they returned, in words, or nothing."""
    getattr(one, call)(*args)
    a, ended = _copied(one), one.ended  # before the other one runs: they might share an array
    getattr(two, call)(*args)
    b = list(two.values())
    if [name for name, _ in a] != [name for name, _ in b]:
        names = sorted({name for name, _ in a} ^ {name for name, _ in b})
        return f"only one of two instances returned {', '.join(names)[:80]}"
    for (name, x), (_, y) in zip(a, b, strict=True):
        if not same(x, y):
            return f"{name} differs between two instances: {_difference(x, y)}"
    return "" if ended == two.ended else "only one of two instances ended"


def check_seeds(play: Play, report: Report, *, seed: int) -> None:
    """Note when different seeds give one and the same episode although the env is random."""
    first, second = _trace(play, seed), _trace(play, seed + 1)
    if not _equal(first, second):
        return
    if _generator_state(first) is not None and _generator_state(first) == _generator_state(second):
        why = "and left the env's random generator in the same state"
    elif not _equal(_trace(play, None), _trace(play, None)):
        why = "though episodes without a seed differ"
    else:
        return  # nothing random in it
    problem = f"seeds {seed} and {seed + 1} gave the same {len(first[0]) - 1} steps, {why}"
    report.add("warning", "reset()", problem, f"pass the seed on as it came: {_seeding(report)}; do not seed with a constant")


def same(x: Any, y: Any) -> bool:
    """Return True if both are equal in type and value; NaN equals NaN."""
    if isinstance(x, np.ndarray) or isinstance(y, np.ndarray):
        a, b = np.asarray(x), np.asarray(y)
        return a.shape == b.shape and a.dtype == b.dtype and bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    try:
        return bool(x == y) or bool(x != x and y != y)
    except Exception:
        return False


Trace = tuple[list[list[tuple[str, Any]]], Any]
"""what each call returned, and the env"""


def _trace(play: Play, seed: int | None) -> Trace:
    with play() as player:
        player.reset(seed)
        calls = [_copied(player)]
        while len(calls) <= TRACE_STEPS:
            player.reset(None) if player.ended else player.step()
            calls.append(_copied(player))
        return calls, getattr(player, "env", None)


def _copied(player: Player) -> list[tuple[str, Any]]:
    return [(name, value.copy() if isinstance(value, np.ndarray) else value) for name, value in player.values()]


def _equal(a: Trace, b: Trace) -> bool:
    flat = ([(name, value) for call in trace[0] for name, value in call] for trace in (a, b))
    one, two = flat
    return len(one) == len(two) and all(n == m and same(x, y) for (n, x), (m, y) in zip(one, two, strict=True))


def _generator_state(trace: Trace) -> Any:
    generator = getattr(getattr(trace[1], "unwrapped", None), "_np_random", None)
    return None if generator is None else str(generator.bit_generator.state)


def _difference(x: Any, y: Any) -> str:
    a, b = np.asarray(x), np.asarray(y)
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{show(x)} and {show(y)}"
    if a.ndim == 0:
        return f"{x} and {y}"
    at = np.argwhere(np.atleast_1d(a != b))[0].tolist()
    return f"{a[tuple(at)]} and {b[tuple(at)]} at index {at}"
