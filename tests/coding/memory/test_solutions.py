"""Remembering solutions: what is alike is found, in an order that depends on nothing but what was remembered."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fugu.coding import builtin
from fugu.coding.memory import Eq, ExactIndex, SolutionMemory, TextEmbedding
from fugu.coding.task import Task
from fugu.errors import ConfigError


def task(name, prompt):
    return Task(id=name, prompt=prompt)


def test_texts_that_share_more_are_more_alike():
    embed = TextEmbedding()
    a, b, c, d = embed(
        ["list: sort; add 3 each; sum", "list: sort; add 4 each; sum", "str: upper; reverse", "LIST:  sort; add 3 each;\nsum"]
    )
    assert a @ b > 0.6 > a @ c and a @ d == pytest.approx(1, abs=1e-6)
    assert np.linalg.norm(a) == pytest.approx(1, abs=1e-6)


def test_the_embedding_never_changes():
    vector = TextEmbedding(dim=8)(["sort"])[0]
    assert vector == pytest.approx(VECTOR, abs=1e-6)
    assert not TextEmbedding()(["", " \n"]).any() and np.isfinite(TextEmbedding()(["a", "\ud800", "😀" * 999])).all()


def test_solutions_of_similar_tasks_are_found_and_never_ones_own():
    memory = SolutionMemory()
    tasks = builtin.make_many(80, 2)
    for each in tasks:
        memory.remember(each, each.solution)
    assert memory.count() == 0  # nothing is stored before the batch ends
    memory.flush()
    assert memory.count() == 80
    found = memory.similar(tasks, 3)
    for each, near in zip(tasks, found, strict=True):
        assert len(near) == 3 and all(one.task_id != each.id for one in near)
        assert near[0].likeness >= near[1].likeness >= near[2].likeness
    shares = [
        set(e.prompt.split("; ")[0].split()) & set(n[0].prompt.split("; ")[0].split())
        for e, n in zip(tasks, found, strict=True)
    ]
    assert sum(map(bool, shares)) > 65


def test_the_prompt_shows_the_likest_last():
    memory = SolutionMemory()
    memory.remember(task("1", "sort the list"), "one")
    memory.remember(task("2", "sort the list please"), "two")
    memory.remember(task("3", "something else"), "three", reward=0.0)
    memory.flush()
    asked = task("4", "sort the list now")
    assert memory.prompt(
        asked, 2, min_reward=0.5
    ) == "sort the list please\ntwo\n\nsort the list\none\n\nsort the list now" or (
        memory.prompt(asked, 2, min_reward=0.5) == "sort the list\none\n\nsort the list please\ntwo\n\nsort the list now"
    )
    assert memory.similar([asked], 9, min_reward=0.5)[0][-1].completion != "three"
    assert len(memory.similar([asked], 9)[0]) == 3
    assert SolutionMemory().prompt(asked) == "sort the list now"


def test_the_best_solution_of_a_batch_is_kept_whatever_order_they_came_in():
    solutions = [("aaaa", 1.0), ("bb", 1.0), ("aa", 1.0), ("c", 0.5)]
    for seed in range(6):
        random.Random(seed).shuffle(solutions)
        memory = SolutionMemory()
        for text, reward in solutions:
            memory.remember(task("1", "p"), text, reward)
        memory.flush()
        assert memory.similar([task("2", "p")])[0][0].completion == "bb"
    memory.remember(task("1", "p"), "later", 0.1)
    memory.flush()
    assert memory.count() == 1 and memory.similar([task("2", "p")])[0][0].completion == "later"
    memory.index.delete(where=Eq("task", "1"))
    assert memory.count() == 0


def test_a_memory_is_saved_and_loaded(tmp_path):
    memory = SolutionMemory()
    for each in builtin.make_many(10):
        memory.remember(each, each.solution)
    memory.save(tmp_path / "memory")
    back = SolutionMemory.load(tmp_path / "memory")
    asked = builtin.make_many(5, 2)
    assert back.count() == 10 and back.similar(asked) == memory.similar(asked)


def test_sizes_must_agree():
    with pytest.raises(ConfigError, match="vectors of 3 numbers, the embedding of 4"):
        SolutionMemory(ExactIndex(3), TextEmbedding(4))


VECTOR = [0, 0, -0.408248, 0.57735, 0, -0.57735, 0, -0.408248]
