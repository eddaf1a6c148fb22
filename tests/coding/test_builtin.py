"""Built-in tasks: right about themselves, hard to pass by accident, the same every time, and held out where they should be."""

from __future__ import annotations

import random

import pytest

from fugu.coding import builtin
from fugu.coding.operations import OPERATIONS, Step
from fugu.errors import ConfigError


def function(source):
    """The reference solutions are ours, so they may run here."""
    namespace = {}
    exec(source, namespace)
    return namespace["f"]


def passes(f, tests):
    try:
        got = [f(*test.args) for test in tests]
    except Exception:
        return False
    return all(type(g) is type(test.expected) and g == test.expected for g, test in zip(got, tests, strict=True))


@pytest.mark.parametrize("level", builtin.LEVELS)
def test_reference_solutions_pass_and_those_of_other_tasks_hardly_ever_do(level):
    tasks = builtin.make_many(100, level)
    functions = [function(task.solution) for task in tasks]
    for f, task in zip(functions, tasks, strict=True):
        assert passes(f, task.visible + task.hidden), task
    by_accident = [passes(f, b.hidden) for f, a in zip(functions, tasks, strict=True) for b in tasks if a is not b]
    # what remains means the same: "repeat 3" of a text and "times 3" of a number are both x*3
    assert sum(by_accident) / len(by_accident) < {1: 0.006, 2: 0.002, 3: 0.001}[level]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: f"{o.takes}-{o.words}")
def test_source_and_reference_of_an_operation_agree(operation):
    chance = random.Random(0)
    for constant in operation.constants:
        step = Step(operation, constant)
        f = function(f"def f(x):\n return {step.source}")
        for value in [builtin._EMPTY[operation.takes], *(builtin._value(operation.takes, chance) for _ in range(50))]:
            assert type(f(value)) is type(step(value)) is {"int": int, "list": list, "str": str}[operation.gives]
            assert f(value) == step(value), (step.source, value)


def test_a_task_with_a_step_missing_or_another_constant_fails():
    """Tests that do not notice are no tests: of all slightly wrong solutions nearly all fail."""
    survived = total = 0
    for seed in range(60):
        task = builtin.make(seed, 2)
        for line in task.solution.splitlines()[1:-1]:
            wrong = task.solution.replace(line + "\n", "", 1)
            assert not passes(function(wrong), task.hidden), (task.prompt, wrong)
        for digit in "3456":
            changed = task.solution.replace("2", digit)
            if changed != task.solution:
                total += 1
                survived += passes(function(changed), task.hidden)
    assert total > 30 and survived / total < 0.05


def test_no_constant_answer_passes_and_the_empty_value_is_tested():
    for level in builtin.LEVELS:
        for seed in range(50):
            task = builtin.make(seed, level)
            assert len({repr(test.expected) for test in task.hidden}) >= 3
            assert any(test.args[0] in ([], "", 0) for test in task.hidden)
            assert len(task.hidden) == builtin.HIDDEN and len(task.visible) == builtin.VISIBLE
            assert not any(test in task.hidden for test in task.visible)


def test_a_task_follows_from_seed_and_level():
    def made():
        builtin.make.cache_clear()
        return [builtin.make(seed, level, held_out=h) for seed in range(10) for level in builtin.LEVELS for h in (False, True)]

    assert made() == made()
    assert len({task.id for task in made()}) > 40
    known = builtin.make(0, 3)  # of another machine, too: expected literally
    assert (known.prompt, known.hidden[1].args) == EXPECTED


@pytest.mark.parametrize("level", builtin.LEVELS)
def test_held_out_tasks_are_never_shown(level):
    def sequence(task):
        return "".join(c for c in task.prompt if not c.isdigit()) if level > 1 else task.prompt

    shown = {sequence(builtin.make(seed, level)) for seed in range(150)}
    held_out = {sequence(builtin.make(seed, level, held_out=True)) for seed in range(60)}
    assert not shown & held_out and len(held_out) > 8


def test_about_a_fifth_is_held_out():
    chance = random.Random(0)
    share = [builtin.is_held_out(builtin._compose(chance, 3)) for _ in range(4000)]
    assert sum(share) / len(share) == pytest.approx(0.2, abs=0.04)


def test_prompts_and_solutions_are_short_in_tokens():
    tokenizer = builtin.tokenizer()
    assert tokenizer.size <= 420
    for level in builtin.LEVELS:
        for seed in range(80):
            task = builtin.make(seed, level, held_out=seed % 2 == 0)
            assert len(tokenizer.encode(task.prompt)) <= 9 and len(tokenizer.encode(task.solution)) <= 17
            assert tokenizer.decode(tokenizer.encode(task.solution)) == task.solution


def test_many_tasks_are_distinct_and_too_many_are_refused():
    assert len({task.id for task in builtin.make_many(80, 1)}) == 80
    with pytest.raises(ConfigError, match="not as many as 500 held-out tasks"):
        builtin.make_many(500, 1, held_out=True)
    with pytest.raises(ConfigError, match="level=4 must be one of 1, 2, 3"):
        builtin.make(0, 4)


EXPECTED = ("int: add 9; minus 5; abs", (-6,))
