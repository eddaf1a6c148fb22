"""Tasks as JSONL: what is written comes back, and what is wrong is named with its file and line."""

from __future__ import annotations

import gzip
import json

import pytest

from fugu.coding import builtin
from fugu.coding.sandbox.contract import Limits
from fugu.coding.task import AssertTest, CallTest, StdioTest, Task, TaskError, read_tasks, write_tasks

ALL = Task(
    id="all",
    prompt="Zeilen\nund ünïcode \u2028 \ud83d",
    entry_point="f",
    visible=(
        CallTest(function="f", args=((1, {2}), b"\x00", {1: "a", (2,): frozenset({3})}), expected=1 + 2j, tolerance=0.1),
        CallTest(
            function="f", args=([float("inf"), None, True],), expected=(1, 2.0), alternatives=([1], {"__x": 1}), types="json"
        ),
    ),
    hidden=(StdioTest(stdin="1\n", stdout="2\n", match="numbers"), AssertTest(code="assert candidate(1) == 2")),
    before="def f(x):",
    after="\n",
    limits=Limits(cpu_s=0.5),
    solution="\n return x",
)


def test_tasks_come_back_as_they_were_written(tmp_path):
    tasks = [ALL, *builtin.make_many(5, 3)]
    write_tasks(tmp_path / "tasks.jsonl", tasks)
    back = read_tasks(tmp_path / "tasks.jsonl")
    assert back == tasks
    assert [type(value) for value in back[0].visible[0].args] == [tuple, bytes, dict]
    assert len((tmp_path / "tasks.jsonl").read_bytes().splitlines()) == 6
    with gzip.open(tmp_path / "tasks.jsonl.gz", "wb") as file:
        file.write((tmp_path / "tasks.jsonl").read_bytes() + b"\n\n")
    assert read_tasks(tmp_path / "tasks.jsonl.gz") == tasks


def test_what_stands_at_its_default_is_not_written(tmp_path):
    write_tasks(tmp_path / "tasks.jsonl", [Task(id="a", prompt="b", hidden=(StdioTest(stdin="", stdout="1"),))])
    line = json.loads((tmp_path / "tasks.jsonl").read_text())
    assert line == {"id": "a", "prompt": "b", "hidden": [{"style": "stdio", "stdin": "", "stdout": "1"}]}


GOOD = {"id": "a", "prompt": "b"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2: not JSON"),
        ("[" * 100_000, "line 2: not JSON"),
        (b"\xff", "line 2: not JSON"),
        ("[]", "line 2: a task must be a JSON object, not []"),
        ({"prompt": "x"}, "line 2: a task needs the field 'id'"),
        ({**GOOD, "promt": "x"}, "line 2: a task has no field 'promt'. Did you mean 'prompt'?"),
        ({**GOOD, "entry_point": 3}, "entry_point must be text, not 3"),
        ({**GOOD, "entry_point": "a b"}, "entry_point 'a b' is no name of a function"),
        ({**GOOD, "limits": {"cpu": 1}}, "limits has no field 'cpu'. Did you mean 'cpu_s'"),
        ({**GOOD, "limits": {"cpu_s": -1}}, "cpu_s"),
        ({**GOOD, "limits": {"cpu_s": "1"}}, "limits: "),
        ({**GOOD, "hidden": {}}, "hidden must be a list of tests"),
        ({**GOOD, "hidden": [{"style": "calls"}]}, "hidden test 0: needs style 'stdio' or 'call' or 'assert'"),
        ({**GOOD, "hidden": [{"style": "stdio", "stdin": ""}]}, "hidden test 0: the field 'stdout' is missing"),
        ({**GOOD, "hidden": [{"style": "stdio", "stdin": "", "stdout": 3}]}, "stdout must be text, not 3"),
        ({**GOOD, "hidden": [{"style": "stdio", "stdin": "", "stdout": "", "match": "exakt"}]}, "Did you mean 'exact'"),
        ({**GOOD, "hidden": [{"style": "call", "function": "f", "args": 1, "expected": 1}]}, "args must be a list"),
        ({**GOOD, "hidden": [{"style": "call", "function": "f", "args": [], "expected": {"__odd__": 1}}]}, "expected: "),
        ({**GOOD, "hidden": [{"style": "call", "function": "f", "args": [], "expected": 1, "types": "x"}]}, "types='x'"),
        ({**GOOD, "hidden": [{"style": "call", "function": "f", "args": [], "expected": 1, "tolerance": 2}]}, "tolerance=2"),
        ({**GOOD, "hidden": [{"style": "assert", "code": "assert 1"}]}, "entry_point is empty"),
        (
            {**GOOD, "entry_point": "f", "hidden": [{"style": "assert", "code": "assert f("}]},
            "hidden test 0: code is not Python",
        ),
        (GOOD | {"id": "first"}, "line 2: a second task with the id 'first'"),
    ],
)
def test_errors_name_file_and_line(tmp_path, line, says):
    path = tmp_path / "tasks.jsonl"
    raw = line if isinstance(line, bytes) else line.encode() if isinstance(line, str) else json.dumps(line).encode()
    path.write_bytes(b'{"id": "first", "prompt": "p"}\n' + raw + b"\n")
    with pytest.raises(TaskError) as error:
        read_tasks(path)
    assert says in str(error.value) and "tasks.jsonl" in str(error.value)


def test_a_file_that_is_not_there_or_cut_off_says_so(tmp_path):
    with pytest.raises(TaskError, match="none.jsonl cannot be read: No such file"):
        read_tasks(tmp_path / "none.jsonl")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"id": "a", "prompt": "b"}\n')[:-9])
    with pytest.raises(TaskError, match="cut.jsonl.gz cannot be read"):
        read_tasks(tmp_path / "cut.jsonl.gz")


def test_values_that_no_json_can_hold_are_refused_when_written(tmp_path):
    test = CallTest(function="f", args=(object(),), expected=1)
    with pytest.raises(TaskError, match="object"):
        write_tasks(tmp_path / "t.jsonl", [Task(id="a", prompt="b", hidden=(test,))])
