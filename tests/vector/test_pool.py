"""The threads of the native engine by themselves, many random jobs, also with the compiler's watch over data races."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native"


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["-O2"], ["-O1", "-g", "-fsanitize=thread", "-Wno-tsan"]], ids=["fast", "races"])
def test_every_chunk_is_run_once_in_every_phase(flags: list[str], tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    program = tmp_path / "pool"
    command = [compiler, "-std=c++20", *flags, "-pthread", f"-I{NATIVE}", str(HERE / "pool.cpp"), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    for seed in range(8):
        done = subprocess.run([str(program), str(seed)], capture_output=True, text=True, timeout=60)
        assert (done.stdout, done.stderr, done.returncode) == ("ok\n", "", 0), f"seed {seed}"
