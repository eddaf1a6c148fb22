"""Tasks in the formats that others publish: HumanEval, MBPP and APPS as JSONL (also ``.gz``), from a local file; and completions.

Every line becomes a ``Task``. Tests that only compare the result of a call become call tests (``lift``); other test code runs in a
sandbox of its own, apart from the program. Errors name the file and the line.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fugu.coding import task as own
from fugu.coding.lift import free_names, lift
from fugu.coding.sandbox.contract import Limits
from fugu.coding.task import AssertTest, CallTest, StdioTest, Task, TaskError, Test, read_lines
from fugu.errors import ConfigError, did_you_mean

Format = Literal["auto", "fugu", "humaneval", "mbpp", "apps"]
LIMITS = Limits(cpu_s=4.0, wall_s=10.0)
"""of tasks in formats that have none; some of their own solutions take seconds"""


@dataclass(frozen=True)
class Completion:
    task_id: str
    text: str
    line: int


def load_tasks(path: str | os.PathLike[str], format: Format = "auto", *, limits: Limits | None = None) -> list[Task]:
    """Read the tasks of a file. ``auto`` tells the format by the fields of each line; ``limits`` replaces those of the tasks."""
    if format not in get_args(Format):
        raise ConfigError(f"there is no format {format!r}.{did_you_mean(format, get_args(Format))}")
    tasks: dict[str, Task] = {}
    for line, data in read_lines(path):
        try:
            task = _read(data, format)
        except TaskError as error:
            raise TaskError(f"{path}, line {line}: {error}") from None
        if task.id in tasks:
            raise TaskError(f"{path}, line {line}: a second task with the id {task.id!r}")
        tasks[task.id] = task if limits is None else dataclasses.replace(task, limits=limits)
    if not tasks:
        raise TaskError(f"{path} has no tasks")
    return list(tasks.values())


def load_completions(path: str | os.PathLike[str], known: set[str]) -> list[Completion]:
    """Read lines ``{"task_id": ..., "completion": ...}``; a task may have any number of them."""
    out: list[Completion] = []
    for line, data in read_lines(path):
        where = f"{path}, line {line}"
        if not isinstance(data, dict) or "task_id" not in data or not isinstance(data.get("completion"), str):
            raise TaskError(f'{where}: expected {{"task_id": ..., "completion": "..."}}, got {own.short(data)}')
        name = str(data["task_id"])
        if name not in known:
            raise TaskError(f"{where}: there is no task {name!r}.{did_you_mean(name, known)}")
        out.append(Completion(name, data["completion"], line))
    if not out:
        raise TaskError(f"{path} has no completions")
    return out


def humaneval(data: dict[str, Any]) -> Task:
    """Read ``task_id, prompt, entry_point, test``: a completion continues the prompt; ``test`` defines ``check(candidate)``."""
    fields = _texts(data, "task_id", "prompt", "entry_point", "test")
    name = fields["entry_point"]
    tests = lift(f"{fields['test']}\ncheck({name})\n", name)
    if isinstance(tests[0], AssertTest):
        # Helpers that the prompt defines are the tester's too: were the agent's used, it could change what is tested.
        tests = (AssertTest(code=f"{_whole(fields['prompt'])}\n{fields['test']}\n{name} = candidate\ncheck(candidate)\n"),)
    return Task(
        id=fields["task_id"],
        prompt=fields["prompt"],
        entry_point=name,
        before=fields["prompt"],
        hidden=tests,
        limits=LIMITS,
        solution=str(data.get("canonical_solution") or ""),
    )


def mbpp(data: dict[str, Any]) -> Task:
    """Read ``task_id, text (or prompt), code, test_list``: the first test is visible, as it tells the name of the function."""
    text = data.get("text", data.get("prompt"))
    if not isinstance(text, str):
        raise TaskError("needs the field 'text' (or 'prompt')")
    asserts = [*_list(data, "test_list"), *(data.get("challenge_test_list") or [])]
    if not all(isinstance(line, str) for line in asserts):
        raise TaskError("test_list must be a list of texts")
    name = _function(str(data.get("code") or ""), asserts)
    setup = data.get("test_setup_code") or "\n".join(data.get("test_imports") or [])
    # the tests use modules that the solution imports; here they are the tester's own
    used = {each for line in asserts for each in free_names(f"{setup}\n{line}") if each != name}
    setup = "\n".join([*(f"import {each}" for each in sorted(used & sys.stdlib_module_names)), setup]).strip()
    hidden = tuple(test for line in asserts for test in _with_setup(line, name, setup))
    return Task(
        id=str(data.get("task_id", "")),
        prompt=f"{text}\n{asserts[0]}\n" if asserts else text,
        entry_point=name,
        visible=hidden[:1],
        hidden=hidden,
        limits=LIMITS,
        solution=str(data.get("code") or ""),
    )


def apps(data: dict[str, Any]) -> Task:
    """Read ``question, input_output, starter_code``: programs that read and print, or, where ``fn_name`` is given, functions."""
    fields = _texts(data, "question")
    name = next((str(data[key]) for key in ("task_id", "problem_id", "id") if key in data), "")
    if not name:
        raise TaskError("needs one of the fields 'task_id', 'problem_id' or 'id'")
    pairs = data.get("input_output")
    try:
        pairs = json.loads(pairs) if isinstance(pairs, str) else pairs
    except (ValueError, RecursionError) as error:
        raise TaskError(f"input_output is not JSON: {error}") from None
    if not isinstance(pairs, dict):
        raise TaskError("input_output must be an object with inputs and outputs")
    inputs, outputs = _list(pairs, "inputs"), _list(pairs, "outputs")
    if len(inputs) != len(outputs):
        raise TaskError(f"input_output has {len(inputs)} inputs, but {len(outputs)} outputs")
    function, starter = pairs.get("fn_name") or "", str(data.get("starter_code") or "")
    if function:
        tests: tuple[Test, ...] = tuple(_apps_call(function, i, o) for i, o in zip(inputs, outputs, strict=True))
    else:
        tests = tuple(
            StdioTest(stdin=_lines(i), stdout=_lines(o), match="numbers") for i, o in zip(inputs, outputs, strict=True)
        )
    room = max(
        [64, *(len(test.stdout) // 512 for test in tests if isinstance(test, StdioTest))]
    )  # twice as much as is expected
    return Task(
        id=name,
        prompt=fields["question"] + (f"\n{starter}" if starter else ""),
        entry_point=function,
        hidden=tests,
        # in the manner of LeetCode: the function is a method
        after=f"\n{function} = Solution().{function}\n" if function and "class Solution" in starter else "",
        limits=dataclasses.replace(LIMITS, output_kb=room, flood_kb=max(1024, 2 * room)),
        solution=_first(data.get("solutions")),
    )


_READERS: dict[str, Callable[[dict[str, Any]], Task]] = {
    "fugu": own.from_json,
    "humaneval": humaneval,
    "mbpp": mbpp,
    "apps": apps,
}


def _read(data: Any, format: Format) -> Task:
    if not isinstance(data, dict):
        raise TaskError(f"a task must be a JSON object, not {own.short(data)}")
    if format == "auto":
        marks: dict[str, Format] = {"test_list": "mbpp", "input_output": "apps", "test": "humaneval"}
        format = next((known for mark, known in marks.items() if mark in data), "fugu")
    task = _READERS[format](data)
    if not task.id:
        raise TaskError("needs the field 'task_id'")
    if not task.hidden:
        raise TaskError(f"task {task.id!r} has no tests")
    return task


def _whole(prompt: str) -> str:
    """Turn a prompt into a program of its own: its last function may lack a body. What cannot be one is left out."""
    for code in (prompt, f"{prompt.rstrip()}\n    pass\n"):
        try:
            free_names(code)
            return code
        except TaskError:
            continue
    return ""


def _function(code: str, asserts: list[str]) -> str:
    """Return the function that tests call: one that the solution defines, or else the first that nothing else defines."""
    defined = set(re.findall(r"^def (\w+)", code, re.MULTILINE))  # some have the name of one of Python's own
    called = [name for line in asserts for name in re.findall(r"\w+", line) if name in defined]
    called += [name for line in asserts for name in free_names(line)]
    name = called[0] if called else ""
    if not name:
        raise TaskError("test_list calls no function of the program's")
    return name


def _with_setup(line: str, name: str, setup: str) -> tuple[Test, ...]:
    tests = lift(line, name)
    if setup and isinstance(tests[0], AssertTest):
        return (AssertTest(code=f"{setup}\n{line}"),)
    return tests


def _apps_call(function: str, inputs: Any, output: Any) -> CallTest:
    if not isinstance(inputs, list):
        raise TaskError(f"the inputs of {function} must be a list of arguments, not {own.short(inputs)}")
    # results stand in a list of one in part of the data
    one = (output[0],) if isinstance(output, list) and output else ()
    return CallTest(function=function, args=tuple(inputs), expected=output, alternatives=one, types="json")


def _lines(value: Any) -> str:
    return "\n".join(map(str, value)) + "\n" if isinstance(value, list) else str(value)


def _first(solutions: Any) -> str:
    try:
        solutions = json.loads(solutions) if isinstance(solutions, str) else solutions
    except ValueError:
        return ""
    return str(solutions[0]) if isinstance(solutions, list) and solutions else ""


def _texts(data: dict[str, Any], *names: str) -> dict[str, str]:
    for name in names:
        if not isinstance(data.get(name), str):
            raise TaskError(f"needs the field {name!r}, a text" + (f", not {own.short(data[name])}" if name in data else ""))
    return {name: data[name] for name in names}


def _list(data: dict[str, Any], name: str) -> list[Any]:
    if not isinstance(data.get(name), list):
        raise TaskError(f"needs the field {name!r}, a list" + (f", not {own.short(data[name])}" if name in data else ""))
    return data[name]
