"""``fugu new tasks FILE``: write built-in coding tasks to a file, to score completions against or to see what one looks like."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.text import Text

from fugu.cli.options import console, parse
from fugu.coding import builtin
from fugu.coding.task import Task, write_tasks
from fugu.errors import ConfigError, FuguError


@dataclass(frozen=True, kw_only=True)
class Options:
    """Write built-in coding tasks as JSONL, and completions that solve them, for fugu judge."""

    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE")] = "tasks.jsonl"
    """File to write"""
    count: int = 100
    """Number of tasks, no two alike"""
    level: int = 1
    """Operations in a row that a task needs: 1, 2 or 3"""
    seed: int = 0
    """Seed of the tasks; another seed gives other tasks"""
    held_out: bool = False
    """Write tasks that are never shown in training"""
    completions: str = ""
    """File to write a right completion of each task to as well; empty: no such file"""
    force: bool = False
    """Replace files that exist"""


def main(argv: list[str]) -> int:
    options = parse(Options, "new tasks", argv)
    if options.count < 1:
        raise ConfigError(f"--count {options.count} must be at least 1")
    if not options.path:
        raise ConfigError("FILE must be the name of a file; try tasks.jsonl")
    paths = [Path(each) for each in (options.path, options.completions) if each]
    if len({path.resolve() for path in paths}) < len(paths):
        raise ConfigError(f"--completions {options.completions} is where the tasks go; choose another file")
    for path in paths:
        if path.exists() and not options.force:
            raise FuguError(f"{path} exists; --force replaces it")
    tasks = builtin.make_many(options.count, options.level, seed=options.seed, held_out=options.held_out)
    try:
        write_tasks(paths[0], tasks)
        if options.completions:
            paths[1].write_text("".join(map(_line, tasks)), encoding="utf-8")
    except OSError as error:
        raise FuguError(f"{error.filename} cannot be written: {error.strerror}") from None
    out = console()
    first = f"{len(tasks)} tasks of level {options.level} in {paths[0]}; the first asks for: {tasks[0].prompt}"
    out.print(Text(first), soft_wrap=True)
    if options.completions:
        out.print(Text(f"next: fugu judge {shlex.join(map(str, paths))}"), soft_wrap=True)
    return 0


def _line(task: Task) -> str:
    return json.dumps({"task_id": task.id, "completion": task.solution}) + "\n"
