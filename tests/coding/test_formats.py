"""Formats of others: their tests decide as they were meant to, and errors name file and line."""

from __future__ import annotations

import json

import pytest

from fugu.coding import builtin
from fugu.coding.formats import load_completions, load_tasks
from fugu.coding.judge import Judge
from fugu.coding.sandbox.contract import Limits
from fugu.coding.task import AssertTest, CallTest, StdioTest, TaskError, write_tasks
from fugu.errors import ConfigError

from .lines import APPS, HUMANEVAL, MBPP, SWAP, WRONG


def written(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_solutions_pass_and_wrong_ones_do_not(tmp_path, sandbox):
    tasks = load_tasks(written(tmp_path / "all.jsonl", HUMANEVAL + MBPP + APPS))
    assert [task.id for task in tasks] == list(WRONG)
    judge = Judge(sandbox)
    right = judge.score([(task, task.source(task.solution or SWAP)) for task in tasks])
    assert [v.status for v in right] == ["ok"] * 7, right
    wrong = judge.score([(task, task.source(WRONG[task.id])) for task in tasks])
    assert [v.status for v in wrong] == ["wrong_answer"] * 7, wrong
    assert {v.status for v in judge.score([(task, task.source("")) for task in tasks])} <= {"wrong_answer", "runtime_error"}


def test_asserts_become_call_tests_where_they_can(tmp_path):
    first, second = load_tasks(written(tmp_path / "h.jsonl", HUMANEVAL), "humaneval")
    assert first.hidden == (
        CallTest(function="longest", args=(["a", "bbb", "cc"],), expected="bbb", types="python"),
        CallTest(function="longest", args=([],), expected="", types="python"),
    )
    assert first.before == first.prompt and first.entry_point == "longest" and not first.visible
    assert [type(test) for test in second.hidden] == [AssertTest]
    first, second, third = load_tasks(written(tmp_path / "m.jsonl", MBPP), "mbpp")
    assert [type(test) for test in first.hidden] == [AssertTest, CallTest, CallTest] and first.entry_point == "common"
    assert first.visible == first.hidden[:1] and first.prompt.endswith("assert set(common((3, 4), (4, 5))) == set((4,))\n")
    assert second.hidden[1] == AssertTest(code="import math\nassert math.isclose(half(0.2), 0.1)")
    assert third.entry_point == "sum" and third.hidden[0].code.startswith("import math\n")
    first, second = load_tasks(written(tmp_path / "a.jsonl", APPS), "apps")
    assert first.hidden[1] == StdioTest(stdin="4\n5 0.5\n", stdout="4\n5.5\n", match="numbers") and not first.entry_point
    assert second.hidden[0].alternatives == ([2, 1],) and second.after == "\nswap = Solution().swap\n"


def test_our_own_format_is_told_apart_and_limits_can_be_replaced(tmp_path):
    tasks = builtin.make_many(3, 2)
    write_tasks(tmp_path / "t.jsonl", tasks)
    assert load_tasks(tmp_path / "t.jsonl") == tasks
    assert {task.limits.cpu_s for task in load_tasks(tmp_path / "t.jsonl", limits=Limits(cpu_s=0.25))} == {0.25}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ([], "must be a JSON object"),
        (HUMANEVAL[0] | {"prompt": 3}, "needs the field 'prompt', a text, not 3"),
        (HUMANEVAL[0] | {"test": "def check("}, "not Python"),
        (HUMANEVAL[0] | {"entry_point": "a b"}, "not Python"),
        (MBPP[0] | {"test_list": "x"}, "needs the field 'test_list', a list, not 'x'"),
        (MBPP[0] | {"test_list": [1]}, "test_list must be a list of texts"),
        (MBPP[0] | {"test_list": ["assert 1"], "challenge_test_list": []}, "calls no function"),
        (MBPP[0] | {"text": None}, "needs the field 'text'"),
        ({k: v for k, v in MBPP[0].items() if k != "task_id"}, "needs the field 'task_id'"),
        (APPS[0] | {"input_output": "{"}, "input_output is not JSON"),
        (APPS[0] | {"input_output": "[]"}, "must be an object"),
        (APPS[0] | {"input_output": {"inputs": [], "outputs": []}}, "task '7' has no tests"),
        (APPS[0] | {"input_output": {"inputs": ["1"], "outputs": []}}, "1 inputs, but 0 outputs"),
        (APPS[1] | {"input_output": {"fn_name": "f", "inputs": [1], "outputs": [1]}}, "must be a list of arguments"),
        ({"input_output": {}, "question": "?"}, "needs one of the fields 'task_id', 'problem_id' or 'id'"),
        ({"id": "a", "prompt": "b"}, "task 'a' has no tests"),
        (HUMANEVAL[0], "a second task with the id 'Mine/0'"),
    ],
)
def test_errors_name_file_and_line(tmp_path, line, says):
    with pytest.raises(TaskError) as error:
        load_tasks(written(tmp_path / "t.jsonl", [HUMANEVAL[0], line]))
    assert f"t.jsonl, line 2: {says}" in str(error.value) or (
        says in str(error.value) and "t.jsonl, line 2: " in str(error.value)
    )


def test_an_empty_file_and_an_unknown_format_are_refused(tmp_path):
    with pytest.raises(TaskError, match="has no tasks"):
        load_tasks(written(tmp_path / "t.jsonl", []))
    with pytest.raises(ConfigError, match="Did you mean 'humaneval'"):
        load_tasks(tmp_path / "t.jsonl", "human")


def test_completions(tmp_path):
    lines = [{"task_id": 2, "completion": "x"}, {"task_id": "Mine/0", "completion": "y", "model": "z"}]
    first, second = load_completions(written(tmp_path / "c.jsonl", lines), {"2", "Mine/0"})
    assert (first.task_id, first.text, first.line, second.task_id) == ("2", "x", 1, "Mine/0")
    for line, says in [
        ({"task_id": "Mine/1", "completion": "x"}, "line 1: there is no task 'Mine/1'. Did you mean 'Mine/0'"),
        ({"task_id": "2"}, 'line 1: expected {"task_id": ..., "completion": "..."}'),
        ({"task_id": "2", "completion": 3}, "line 1: expected"),
        (3, "line 1: expected"),
    ]:
        with pytest.raises(TaskError) as error:
            load_completions(written(tmp_path / "c.jsonl", [line]), {"2", "Mine/0"})
        assert says in str(error.value)
    with pytest.raises(TaskError, match="has no completions"):
        load_completions(written(tmp_path / "c.jsonl", []), set())
