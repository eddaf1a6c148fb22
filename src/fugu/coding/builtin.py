"""Built-in tasks: short functions to write, composed of one to three primitive operations; as many as wanted, offline.

A prompt such as ``list: sort; add 3 each; sum`` says what ``f`` takes and what it does, in order. The level is the number of
operations. A task follows from its seed and level alone. Its tests are chosen so that they tell it apart from tasks that are nearly the
same: another constant, another operation, two that have changed places, one that is missing.

About a fifth of all compositions is held out: which operations follow each other decides, whatever their constants; of single
operations, the constant. What was held out is never shown unless asked for.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Iterator
from typing import Any

from fugu.coding.operations import OPERATIONS, Kind, Operation, Step
from fugu.coding.sandbox.contract import Limits
from fugu.coding.task import CallTest, Task
from fugu.coding.tokens import PairTokenizer, train_pairs
from fugu.errors import ConfigError

LEVELS = (1, 2, 3)
VISIBLE, HIDDEN = 2, 6
"""tests of a task"""
LIMITS = Limits(cpu_s=1.0, wall_s=2.0, memory_mb=256)

_POOL = 24  # inputs that tests are chosen from
_EMPTY: dict[Kind, Any] = {"int": 0, "list": [], "str": ""}


@functools.lru_cache(maxsize=1 << 13)
def make(seed: int, level: int = 1, *, held_out: bool = False) -> Task:
    """Make the task of this seed and level."""
    if level not in LEVELS:
        raise ConfigError(f"level={level} must be one of {', '.join(map(str, LEVELS))}")
    chance = random.Random(f"{seed} {level} {held_out}")
    while True:
        steps = _compose(chance, level)
        if is_held_out(steps) != held_out:
            continue
        tests = _tests(steps, chance)
        if tests is not None:
            return _task(steps, tests)


def make_many(count: int, level: int = 1, *, seed: int = 0, held_out: bool = False) -> list[Task]:
    """Make ``count`` tasks, no two alike."""
    found: dict[str, Task] = {}
    in_vain = 0
    while len(found) < count and in_vain < 1000:
        task = make(seed, level, held_out=held_out)
        in_vain = in_vain + 1 if task.id in found else 0
        found.setdefault(task.id, task)
        seed += 1
    if len(found) < count:
        which = "held-out " if held_out else ""
        raise ConfigError(f"level {level} has not as many as {count} {which}tasks; {len(found)} were found")
    return list(found.values())


def tokenizer(size: int = 420) -> PairTokenizer:
    """Train a tokenizer on the prompts and solutions of all levels, without held-out ones. With 420 ids prompts have at most 9
    tokens, solutions 17; with fewer, more."""
    chance = random.Random(0)
    made = [_compose(chance, level) for level in LEVELS for _ in range(2000)]
    shown = [steps for steps in made if not is_held_out(steps)]
    return train_pairs([text(steps) for steps in shown for text in (_prompt, _solution)], size)


def is_held_out(steps: tuple[Step, ...]) -> bool:
    if len(steps) > 1:
        key = [step.operation.words for step in steps]
    elif steps[0].constant is None:
        return False  # how else should it be learned
    else:
        key = [steps[0].words]
    digest = hashlib.blake2b("; ".join([steps[0].operation.takes, *key]).encode(), digest_size=8).digest()
    return int.from_bytes(digest) % 5 == 0


def _task(steps: tuple[Step, ...], inputs: list[Any]) -> Task:
    tests = [CallTest(function="f", args=(value,), expected=_run(steps, value)) for value in inputs]
    prompt = _prompt(steps)
    return Task(
        id=f"builtin {prompt}",
        prompt=prompt,
        entry_point="f",
        visible=tuple(tests[:VISIBLE]),
        hidden=tuple(tests[VISIBLE:]),
        limits=LIMITS,
        solution=_solution(steps),
    )


def _prompt(steps: tuple[Step, ...]) -> str:
    return f"{steps[0].operation.takes}: {'; '.join(step.words for step in steps)}"


def _solution(steps: tuple[Step, ...]) -> str:
    return "".join(["def f(x):", *(f"\n x={step.source}" for step in steps), "\n return x"])


def _run(steps: tuple[Step, ...], value: Any) -> Any:
    for step in steps:
        value = step(value)
    return value


def _compose(chance: random.Random, level: int) -> tuple[Step, ...]:
    kind: Kind = chance.choice(("int", "list", "str"))
    steps: list[Step] = []
    for _ in range(level):
        operation = chance.choice(_taking(kind))
        steps.append(Step(operation, chance.choice(operation.constants)))
        kind = operation.gives
    return tuple(steps)


def _tests(steps: tuple[Step, ...], chance: random.Random) -> list[Any] | None:
    """Return inputs of the visible, then of the hidden tests; None where a step makes no difference, or hardly any test would."""
    kind = steps[0].operation.takes
    pool = [_EMPTY[kind], *(_value(kind, chance) for _ in range(_POOL))]
    right = [_run(steps, value) for value in pool]
    if any(all(_run(less, v) == r for v, r in zip(pool, right, strict=True)) for less in _shorter(steps)):
        return None
    others = [[_run(other, value) != r for value, r in zip(pool, right, strict=True)] for other in _nearly(steps)]
    chosen = [0]  # what is empty is always tested
    alive = [told for told in others if not told[0]]
    alive += [[r != constant for r in right] for constant in right if right[0] == constant]  # answers without a question
    while len(chosen) < HIDDEN:
        left = [k for k in range(len(pool)) if k not in chosen and pool[k] not in [pool[c] for c in chosen]]
        if not left:
            return None
        best = max(left, key=lambda k: sum(told[k] for told in alive))
        chosen.append(best)
        alive = [told for told in alive if not told[best]]
    seen = [value for value in pool if value not in [pool[c] for c in chosen]][:VISIBLE]
    if len(seen) < VISIBLE or len({repr(right[c]) for c in chosen}) < 3:
        return None
    return seen + [pool[c] for c in chosen]


def _shorter(steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    """Yield the steps without one of them, where the others still fit each other."""
    for k, step in enumerate(steps):
        if step.operation.takes == step.operation.gives:
            yield steps[:k] + steps[k + 1 :]


def _nearly(steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    yield from _shorter(steps)
    for k in range(len(steps) - 1):
        first, second = steps[k : k + 2]
        if first.operation.takes == first.operation.gives == second.operation.takes == second.operation.gives:
            yield (*steps[:k], second, first, *steps[k + 2 :])
    for k, step in enumerate(steps):
        for constant in step.operation.constants:
            if constant != step.constant:
                yield (*steps[:k], Step(step.operation, constant), *steps[k + 1 :])
        for other in _taking(step.operation.takes):
            if other.gives == step.operation.gives and other is not step.operation:
                constant = step.constant if step.constant in other.constants else other.constants[0]
                yield (*steps[:k], Step(other, constant), *steps[k + 1 :])


@functools.cache
def _taking(kind: Kind) -> tuple[Operation, ...]:
    return tuple(operation for operation in OPERATIONS if operation.takes == kind)


def _value(kind: Kind, chance: random.Random) -> Any:
    if kind == "int":
        return chance.randint(-12, 40)
    if kind == "list":
        return [chance.randint(-4, 12) for _ in range(chance.randint(1, 9))]
    return "".join(chance.choices("aabbccddeeABCDE -", k=chance.randint(1, 9)))
