"""A sandbox that the tests of a file share, and an interpreter for levels that do not bring their own file system."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fugu.coding.sandbox import Limits, Outcome, Program, Sandbox, SandboxConfig, worker
from fugu.coding.sandbox.probe import examine
from fugu.errors import SandboxError

Run = Callable[..., Outcome]


@pytest.fixture(scope="module", params=["compiled", pytest.param("python", marks=pytest.mark.slow)])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """The fork backend at its full level, with either of its loops; skipped where the machine has less to offer."""
    try:
        report = examine()
    except SandboxError as error:
        pytest.skip(str(error))
    if report.level < 3:
        pytest.skip(f"level {report.level} only: {report.missing}")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(worker, "library", lambda: "")
        elif not worker.library():
            pytest.skip("the loop in C was not built")
        with Sandbox(SandboxConfig(workers=1)) as opened:
            yield opened


@pytest.fixture
def run(sandbox: Sandbox) -> Run:
    """The outcome of one program, given as text; limits by name."""

    def one(source: str | bytes, *, stdin: bytes = b"", calls: tuple = (), partner: Program | None = None, **options: object):
        text = source.encode() if isinstance(source, str) else source
        profile, seed = options.pop("profile", "compute"), options.pop("seed", 0)
        limits = Limits(**options)  # type: ignore[arg-type]
        program = Program(source=text, stdin=stdin, calls=calls, partner=partner, limits=limits, profile=profile, seed=seed)  # type: ignore[arg-type]
        (outcome,) = sandbox.run([program])
        return outcome

    return one


@pytest.fixture(scope="session")
def everyones_python() -> str:
    """An interpreter that an unprivileged user can read: without mounts, programs see the machine's own files."""
    for candidate in (sys.executable, "/usr/bin/python3"):
        if Path(candidate).exists() and _for_all(candidate):
            return candidate
    pytest.skip("no Python 3.11 that an unprivileged user can read")


def _for_all(python: str) -> bool:
    command = [python, "-S", "-c", "import os, sys; print(os.path.realpath(os.__file__)); sys.exit(sys.version_info < (3, 11))"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return False
    if os.geteuid() != 0:
        return True
    parents = [Path(done.stdout.strip()), *Path(done.stdout.strip()).parents]
    return all(path.stat().st_mode & (stat.S_IXOTH if path.is_dir() else stat.S_IROTH) for path in parents)
