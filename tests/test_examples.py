"""Every file in examples/ runs, with a few steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example, tmp_path):
    command = [sys.executable, str(example), "--steps", "4096", "--runs", str(tmp_path / "runs")]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert out.returncode == 0, f"{out.stdout}\n{out.stderr}"
    assert "mean return" in out.stdout
    assert list((tmp_path / "runs").glob("*/checkpoints/step_*"))


def test_examples_are_short():
    assert len(EXAMPLES) >= 4
    for example in EXAMPLES:
        assert len(example.read_text().splitlines()) < 60, example.name
