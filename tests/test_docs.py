"""Every code block of the README and the docs runs.

Python blocks run as scripts. Of shell blocks, the lines that start with ``fugu`` run, one after the other, in one empty folder per
page; the others (``make``, ``pip``) set up what is running these tests. Blocks that begin with ```` ```sh gpu ```` or
```` ```python gpu ```` need a GPU: they run with the marker gpu, and are skipped where there is none. Those that begin with
```` ```python extras ```` need optional packages and run with the marker extras, those with ``cluster`` Ray.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fugu
from fugu.cli.main import COMMANDS
from fugu.coding.sandbox.config import FEATURES
from fugu.coding.sandbox.protections import PROTECTIONS, without
from fugu.config import find_field
from fugu.run.metrics import METRICS, OPEN
from fugu.trainer.config import member

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
# in one process, so that torch is imported once
ONE_AFTER_THE_OTHER = """
import shlex, sys
from fugu.cli.main import main
for command in sys.argv[1:]:
    code = main(shlex.split(command))
    if code:
        sys.exit(f"fugu {command} ended with {code}")
"""
BLOCK = re.compile(r"^```([\w ]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MARKS = {"": (), " gpu": pytest.mark.gpu, " extras": pytest.mark.extras, " cluster": pytest.mark.cluster}
KNOWN = {"text", *(f"{language}{needs}" for language in ("python", "sh") for needs in MARKS)}
# runs each script that is named on its input, in a fork with a folder of its own, so that torch is imported once
WARM = """
import os, runpy, sys
import fugu, fugu.run.train, fugu.run.policy, fugu.check, gymnasium, numpy, torch
for line in sys.stdin:
    script = line.rstrip("\\n")
    if not (child := os.fork()):
        code = 1
        try:
            os.chdir(os.path.dirname(script))
            output = os.open("output.txt", os.O_WRONLY | os.O_CREAT)
            os.dup2(output, 1), os.dup2(output, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.argv, sys.path[0] = [script], os.path.dirname(script)
            runpy.run_path(script, run_name="__main__")
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def blocks(page: Path, language: str) -> list[str]:
    return [code for named, code in BLOCK.findall(page.read_text()) if named == language]


def python_blocks() -> list[object]:
    return [
        pytest.param(code, id=f"{page.stem}{needs}-{i}".replace(" ", "-"), marks=marks)
        for needs, marks in MARKS.items()
        for page in PAGES
        for i, code in enumerate(blocks(page, f"python{needs}"))
    ]


def pages_with_commands() -> list[object]:
    return [
        pytest.param(page, f"sh{needs}", id=f"{page.stem}{needs}".replace(" ", "-"), marks=marks)
        for needs, marks in MARKS.items()
        for page in PAGES
        if blocks(page, f"sh{needs}")
    ]


@pytest.fixture(scope="module")
def warm():
    """A process that has imported everything."""
    with subprocess.Popen([sys.executable, "-c", WARM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()


@pytest.mark.parametrize("code", python_blocks())
def test_python_block_runs(code, tmp_path, warm):
    script = tmp_path / "block.py"
    script.write_text(code)
    warm.stdin.write(f"{script}\n")
    warm.stdin.flush()
    assert warm.stdout.readline() == "0\n", f"{code}\n{(tmp_path / 'output.txt').read_text()}"


@pytest.mark.slow
@pytest.mark.parametrize(("page", "language"), pages_with_commands())
def test_commands_of_page_run(page, language, tmp_path):
    lines = [line.split("  #")[0] for code in blocks(page, language) for line in code.splitlines()]
    commands = [line for line in lines if line.startswith("fugu ")]
    assert commands or page.name != "README.md"
    run([sys.executable, "-c", ONE_AFTER_THE_OTHER, *(command.removeprefix("fugu ") for command in commands)], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("column", [1, 2], ids=["sb3", "fugu"])
def test_the_tasks_of_both_columns_run(column, tmp_path):
    cells = [re.findall("`([^`]+)`", row[column]) for row in task_rows()]
    assert len(cells) == 12
    script = tmp_path / "tasks.py"
    script.write_text("\n".join(["import torch", "torch.set_num_threads(1)", *(line for cell in cells for line in cell)]))
    run([sys.executable, script], tmp_path)


def test_the_settings_in_the_tasks_exist():
    calls = [node for row in task_rows() for text in re.findall("`([^`]+)`", row[2]) for node in ast.walk(ast.parse(text))]
    names = [
        word.arg
        for call in calls
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "fugu.train"
        for word in call.keywords
    ]
    assert "steps" in names
    arguments = inspect.signature(fugu.train).parameters
    for name in names:
        if name not in arguments:
            find_field(member("ppo"), name)


def task_rows() -> list[list[str]]:
    """Return the cells of the first table: task, Stable-Baselines3, fugu."""
    lines = (ROOT / "docs" / "coming_from_sb3.md").read_text().partition("## ")[0].splitlines()
    return [line.split(" | ") for line in lines if line.startswith("| ") and "`" in line]


def test_every_block_names_a_known_language():
    for page in PAGES:
        for language, code in BLOCK.findall(page.read_text()):
            assert language in KNOWN, f"{page.name}: {language!r} in\n{code}"


def test_every_command_has_an_example():
    text = (ROOT / "docs" / "cli.md").read_text()
    for name in COMMANDS:
        assert f"\nfugu {name}" in text, f"docs/cli.md does not show fugu {name}"


def test_the_table_of_metrics_is_that_of_the_code():
    assert metrics_table() in (ROOT / "docs" / "training.md").read_text(), f"docs/training.md should have\n{metrics_table()}"


def metrics_table() -> str:
    lines = ["| metric | unit | meaning |", "|---|---|---|"]
    named = {**METRICS, **{f"{prefix}NAME": metric for prefix, metric in OPEN.items()}}
    lines += [
        f"| `{name}` | {metric.unit} | {metric.definition.replace('|', chr(92) + '|')} |" for name, metric in named.items()
    ]
    return "\n".join(lines)


def test_the_table_of_protections_is_that_of_the_code():
    assert protections_table() in (ROOT / "docs" / "sandbox.md").read_text(), (
        f"docs/sandbox.md should have\n{protections_table()}"
    )


def protections_table() -> str:
    lines = ["| a program | 3 | 2 | 1 | 0 |", "|---|---|---|---|---|"]
    missing = {level: without([name for name, at in FEATURES.items() if at > level]) for level in (3, 2, 1, 0)}
    for name, meaning in PROTECTIONS.items():
        given = " | ".join("" if name in missing[level] else "yes" for level in missing)
        lines.append(f"| {meaning} | {given} |".replace("|  |", "| |").replace("|  |", "| |"))
    return "\n".join(lines)


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]*)(?:#[\w-]*)?\)", page.read_text()):
            if target and "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def run(command: list[object], folder: Path) -> None:
    out = subprocess.run([str(c) for c in command], cwd=folder, capture_output=True, text=True, timeout=100)
    assert out.returncode == 0, f"{command}\n{out.stdout}\n{out.stderr}"
