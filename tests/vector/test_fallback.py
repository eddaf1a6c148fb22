"""Without the compiled core everything still works, on the Python references, and says that it does."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["fugu._native"] = None            # as if it had never been built
import numpy as np
import fugu
import fugu.vector.launch as launch
launch.BOOT = "import sys; sys.modules['fugu._native'] = None\\n" + launch.BOOT
from fugu.vector.control import Control, PollingControl

assert Control is PollingControl
from tests.contract.test_backends import Mixed, record

results = []
for settings in (
    {"backend": "serial"},
    {"backend": "process", "num_workers": 2},
    {"backend": "process", "num_workers": 3, "batch_size": 2},
):
    with fugu.vector.make(Mixed, 6, **settings) as vec:
        results.append(record(vec, 30, seed=5))
assert results[0] == results[1] == results[2]
print(hash(str(results[0])))
"""


def run(*flags: str, program: str = PROGRAM) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *flags, "-c", program], capture_output=True, text=True, timeout=60)


def test_fallback_gives_the_same_rows_and_says_it_is_used(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    slow = run()
    assert slow.returncode == 0, slow.stderr
    assert "pure-Python fallback is used" in slow.stderr
    lines = [line for line in PROGRAM.splitlines() if "_native" not in line and "PollingControl" not in line]
    fast = run(program="\n".join(lines))
    assert fast.returncode == 0, fast.stderr
    assert fast.stdout == slow.stdout
    assert fast.stderr == ""
