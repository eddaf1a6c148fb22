"""Every code block of the README and the docs runs.

Python blocks run as scripts. Of shell blocks, the lines that start with ``fugu`` run, one after the other, in one empty folder per
page; the others (``make``, ``pip``) set up what is running these tests.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> list[str]:
    return [code for language, code in BLOCK.findall(page.read_text()) if language in languages]


def python_blocks() -> list[object]:
    return [pytest.param(code, id=f"{page.stem}-{i}") for page in PAGES for i, code in enumerate(blocks(page, "python"))]


@pytest.mark.parametrize("code", python_blocks())
def test_python_block_runs(code, tmp_path):
    script = tmp_path / "block.py"
    script.write_text(code)
    run([sys.executable, script], tmp_path)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "sh")], ids=lambda page: page.stem)
def test_commands_of_page_run(page, tmp_path):
    lines = [line.split("  #")[0] for code in blocks(page, "sh") for line in code.splitlines()]
    commands = [line for line in lines if line.startswith("fugu ")]
    assert commands or page.name != "README.md"
    for command in commands:
        run([sys.executable, "-m", *shlex.split(command)], tmp_path)


def test_every_block_names_a_known_language():
    for page in PAGES:
        for language, code in BLOCK.findall(page.read_text()):
            assert language in ("python", "sh", "text"), f"{page.name}: {language!r} in\n{code}"


def run(command: list[object], folder: Path) -> None:
    out = subprocess.run([str(c) for c in command], cwd=folder, capture_output=True, text=True, timeout=100)
    assert out.returncode == 0, f"{command}\n{out.stdout}\n{out.stderr}"
