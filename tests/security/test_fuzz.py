"""Thousands of runs, checkpoints, flags and messages that are not as they should be: one line each, soon, and nothing of them is
executed."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.security.fuzz import make_runs

CASES = {"checkpoint": 900, "folder": 800, "flags": 600, "messages": 300}
PATIENCE_S = 60.0
"""seconds for one case, on a machine that is busy otherwise"""
ROOT = Path(__file__).parents[2]


class Doer:
    """A process that does cases, one after the other; a case that ends or holds it up costs no other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.security.fuzz", str(self.folder)]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
        )

    def begin(self, kind: str, number: int) -> None:
        assert self.process.stdin is not None
        self.case, self.since = f"{kind} {number}", time.monotonic()
        self.process.stdin.write(f"{self.case}\n")
        self.process.stdin.flush()

    def wrong(self) -> str:
        """Return what went wrong with the case that has ended, or did not."""
        line = self.process.stdout.readline() if self.readable(0) else ""  # type: ignore[union-attr]
        if line:
            return str(json.loads(line)["wrong"])
        how = f"it ended the process ({self.process.poll()})" if self.readable(0) else f"it takes more than {PATIENCE_S:g} s"
        self.close()
        self.process = self._start()
        return how

    def readable(self, wait: float) -> bool:
        return bool(select.select([self.process.stdout], [], [], wait)[0])

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", CASES)
def test_whatever_a_run_a_checkpoint_a_flag_or_a_message_holds_is_answered_in_a_few_words(kind, made):
    cases = iter(range(CASES[kind]))
    doers = [Doer(made / str(i)) for i in range(min(2, len(os.sched_getaffinity(0))))]
    found: dict[str, str] = {}
    try:
        for doer, number in zip(doers, cases, strict=False):
            doer.begin(kind, number)
        busy = set(doers)
        while busy:
            ready = select.select([doer.process.stdout for doer in busy], [], [], 1.0)[0]
            for doer in list(busy):
                if doer.process.stdout not in ready and time.monotonic() < doer.since + PATIENCE_S:
                    continue
                if wrong := doer.wrong():
                    found[doer.case] = wrong
                busy.discard(doer)
                if (number := next(cases, None)) is not None:
                    doer.begin(kind, number)
                    busy.add(doer)
    finally:
        for doer in doers:
            doer.close()
    assert not found, "\n\n".join(f"{case}: {wrong}" for case, wrong in list(found.items())[:10])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    for number in range(2):
        (folder / str(number)).mkdir()
    make_runs(folder / "0" / "runs")
    (folder / "1" / "runs").symlink_to(folder / "0" / "runs")
    return folder
