"""What is run again and what is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

TESTS = """
from tests.timing import in_time

calls = {"slow": 0, "slower": 0, "wrong": 0}

def test_slow_at_first():
    calls["slow"] += 1
    in_time(2.0 if calls["slow"] < 3 else 0.5, 1.0)

def test_always_slow():
    calls["slower"] += 1
    in_time(2.0, 1.0)

def test_wrong_at_first():
    calls["wrong"] += 1
    assert calls["wrong"] > 1

def test_how_often():
    assert calls == {"slow": 3, "slower": 3, "wrong": 1}
"""


def test_a_missed_limit_is_tried_three_times_and_nothing_else_is(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", "no:cacheprovider", str(tmp_path / "test_it.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "2 failed, 2 passed, 4 rerun" in done.stdout, done.stdout + done.stderr
    assert "took 2 s where 1 s are the limit" in done.stdout
