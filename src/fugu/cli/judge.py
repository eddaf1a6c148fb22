"""``fugu judge TASKS COMPLETIONS``: count how many of these completions are right, and estimate pass@k."""

from __future__ import annotations

import collections
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table
from rich.text import Text

from fugu.cli.options import console, json_alone, parse
from fugu.coding.formats import Completion, Format, load_completions, load_tasks
from fugu.coding.judge import Judge, Verdict
from fugu.coding.sandbox import Sandbox, SandboxConfig
from fugu.coding.sandbox.config import BackendName
from fugu.coding.sandbox.contract import STATUSES, printable
from fugu.coding.score import mean_pass_at_k
from fugu.coding.task import Task
from fugu.errors import ConfigError, FuguError

SHOWN = 40
"""tasks up to which each has a line of its own"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Run completions against the hidden tests of their tasks, each in a sandbox, in parallel; print pass@k.

    TASKS is JSONL in our own format, or in that of HumanEval, MBPP or APPS; COMPLETIONS has lines {"task_id": ..., "completion": ...},
    any number per task. Completions that the sandbox failed on are not scored.
    """

    tasks: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASKS")]
    """File of tasks: JSONL, or .gz of it"""
    completions: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="COMPLETIONS")]
    """File of completions: JSONL, or .gz of it"""
    k: str = "1"
    """Numbers k of pass@k, separated by commas: 1,10"""
    format: Format = "auto"
    """Format of the tasks"""
    partial: bool = False
    """Go on if tasks have no completions, and leave those tasks out"""
    workers: int | None = None
    """Processes that run programs; none: one per core"""
    backend: BackendName = "fork"
    """Backend of the sandbox that runs the programs"""
    min_level: int = 3
    """Level of isolation below which nothing is run: 3 namespaces, 2 Landlock, 1 seccomp, 0 none"""
    allow: tuple[str, ...] = ()
    """Names of isolation features that may be missing nevertheless"""
    share_process: bool = False
    """Run all call tests of a program in one process: faster, but it can tell the second call from the first"""
    json: str = ""
    """File to write all results to; - or nothing: print them instead of anything else; empty: no file"""


def main(argv: list[str]) -> int:
    options = parse(Options, "judge", json_alone(argv))
    ks = _ks(options.k)
    tasks = {task.id: task for task in load_tasks(options.tasks, options.format)}
    completions = load_completions(options.completions, set(tasks))
    _check_counts(options, ks, tasks, completions)
    config = SandboxConfig(backend=options.backend, workers=options.workers, min_level=options.min_level, allow=options.allow)
    start = time.monotonic()
    with Sandbox(config) as sandbox:
        judge = Judge(sandbox, share_process=options.share_process)
        verdicts = judge.score([(tasks[each.task_id], tasks[each.task_id].source(each.text)) for each in completions])
    report = {
        "tasks": options.tasks,
        "completions": options.completions,
        "backend": options.backend,
        "seconds": round(time.monotonic() - start, 3),
        **_figures(ks, completions, verdicts),
    }
    text = json.dumps(report, indent=1)
    if options.json not in ("", "-"):
        _write(Path(options.json), text)
    if options.json == "-":
        print(text)
    else:
        _print(report)
    if not any(verdict.scored for verdict in verdicts):
        raise FuguError(f"no completion could be scored: {verdicts[0].detail}")
    return 0


def _ks(text: str) -> list[int]:
    try:
        ks = sorted({int(part) for part in text.split(",")})
    except ValueError:
        ks = [0]
    if ks[0] < 1:
        raise ConfigError(f"--k {text} must be whole numbers from 1 on, with commas between them, such as --k 1,10")
    return ks


def _check_counts(options: Options, ks: list[int], tasks: dict[str, Task], completions: list[Completion]) -> None:
    counts = collections.Counter(each.task_id for each in completions)
    without = [name for name in tasks if not counts[name]]
    if without and not options.partial:
        raise ConfigError(
            f"{options.completions} has no completion for {len(without)} of {len(tasks)} tasks, the first is {without[0]!r};"
            " --partial leaves them out"
        )
    fewest = min(counts, key=lambda name: counts[name])
    if ks[-1] > counts[fewest]:
        raise ConfigError(f"pass@{ks[-1]} needs at least {ks[-1]} completions of every task; {fewest!r} has {counts[fewest]}")


def _figures(ks: list[int], completions: list[Completion], verdicts: list[Verdict]) -> dict[str, Any]:
    results: dict[str, dict[str, Any]] = {}
    for each, verdict in zip(completions, verdicts, strict=True):
        of = results.setdefault(each.task_id, {"tries": 0, "passed": 0, "unscored": 0, "completions": []})
        of["tries"] += verdict.scored
        of["passed"] += verdict.status == "ok"
        of["unscored"] += not verdict.scored
        of["completions"].append(
            {
                "line": each.line,
                "status": verdict.status,
                "passed": verdict.passed,
                "total": verdict.total,
                "detail": verdict.detail,
                "cpu_s": round(verdict.cpu_s, 4),
                "wall_s": round(verdict.wall_s, 4),
            }
        )
    statuses = collections.Counter(verdict.status for verdict in verdicts)
    means = mean_pass_at_k({name: (of["tries"], of["passed"]) for name, of in results.items()}, ks)
    return {
        "pass_at": {str(k): None if math.isnan(mean) else mean for k, mean in means.items()},
        "left_out": {str(k): sum(of["tries"] < k for of in results.values()) for k in ks},
        "statuses": {status: statuses[status] for status in STATUSES if statuses[status]},
        "results": results,
    }


def _print(report: dict[str, Any]) -> None:
    out = console()
    results = report["results"]
    count, tasks = sum(report["statuses"].values()), len(results)
    what = f"{count} completion{'s' * (count > 1)} of {tasks} task{'s' * (tasks > 1)}"
    out.print(Text(f"{report['completions']}: {what}, {report['seconds']:.1f} s"), soft_wrap=True)
    for k, mean in report["pass_at"].items():
        out.print(f"  {'pass@' + k:<15} {'nothing was scored' if mean is None else f'{mean:.4f}'}")
    for status, number in report["statuses"].items():
        out.print(f"  {status:<15} {number}")
    unscored = report["statuses"].get("internal_error", 0)
    if unscored:
        out.print(f"  {unscored} completions are not scored, because the sandbox failed: they are in no figure", style="yellow")
    if len(results) > SHOWN:
        out.print(f"  --json FILE writes the results of all {len(results)} tasks")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("task", "passed", "first failure"):
        table.add_column(name, justify="right" if name == "passed" else "left", overflow="fold")
    for name, of in results.items():
        failed = next((each for each in of["completions"] if each["status"] != "ok"), None)
        what = f"line {failed['line']}: {failed['status']}: {printable(failed['detail'], 100)}" if failed else ""
        table.add_row(Text(printable(name)), f"{of['passed']}/{of['tries']}", Text(what))
    out.print(table)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise FuguError(f"{path} cannot be written: {error.strerror}") from None
