"""The threads of the native engine by themselves, many random jobs, also with the compiler's watch over data races."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native"


BUILDS = {"fast": ["-O2"], "races": ["-O1", "-g", "-fsanitize=thread", "-Wno-tsan"]}


@pytest.fixture(scope="module", params=BUILDS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    out = tmp_path_factory.mktemp("pool") / "pool"
    command = [
        compiler,
        "-std=c++20",
        *BUILDS[request.param],
        "-pthread",
        f"-I{NATIVE}",
        str(HERE / "pool.cpp"),
        "-o",
        str(out),
    ]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return out


@pytest.mark.slow
def test_every_chunk_is_run_once_in_every_phase(program: Path) -> None:
    for seed in range(8):
        done = subprocess.run([str(program), str(seed)], capture_output=True, text=True, timeout=60)
        assert (done.stdout, done.stderr, done.returncode) == ("ok\n", "", 0), f"seed {seed}"


@pytest.mark.slow
def test_a_slower_thread_gets_a_smaller_share(program: Path) -> None:
    done = subprocess.run([str(program), "0", "uneven"], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("ok\n", "", 0)
