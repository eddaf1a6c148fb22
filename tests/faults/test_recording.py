"""A recording that is killed, or whose disk is full: every episode that was complete can be read, and the recording can go on."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import fugu
from fugu.data import DataError, Writer
from tests.data.cases import episode, spec_of

ENDLESS = """
import fugu, resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, 1 << 28))
fugu.record("cartpole", {path!r}, random=True, steps=10**9, num_envs=16)
"""


def killed(path: Path, episodes: int) -> int:
    """Record without end, kill that when there are so many episodes, and return how many were read before."""
    process = subprocess.Popen([sys.executable, "-c", ENDLESS.format(path=str(path))])
    try:
        deadline = time.monotonic() + 60
        found = 0
        while found < episodes and time.monotonic() < deadline:
            if (path / "DATA.json").exists():
                found = fugu.data.open(path).episodes
            time.sleep(0.003)
        return found
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_a_recording_that_is_killed_keeps_every_complete_episode(tmp_path: Path) -> None:
    before = killed(tmp_path / "d", 3000)
    data = fugu.data.open(tmp_path / "d")
    assert before >= 3000 and data.episodes >= before and data.check() == [], "read while it ran, and afterwards"
    assert data.about["closed"] is None
    again = fugu.record("cartpole", tmp_path / "again", random=True, steps=3000, num_envs=16)
    for number in range(40):  # the same command writes the same
        for name, column in again.episode(number).items():
            assert column.tobytes() == data.episode(number)[name].tobytes()
    count = data.episodes
    more = fugu.record("cartpole", tmp_path / "d", random=True, episodes=7, seed=5, append=True)
    assert more.episodes == count + 7 and more.check() == [] and more.about["closed"] == count + 7


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO], ids=errno.errorcode.get)
def test_a_disk_that_refuses_at_any_write_loses_nothing_that_was_complete(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, real = spec_of("plain"), os.pwrite
    for at in range(1, 15):
        path = tmp_path / f"{at}"
        left = at

        def refuse(descriptor: int, data: Any, offset: int) -> int:
            nonlocal left
            left -= 1
            if left > 0:
                return real(descriptor, data, offset)
            real(descriptor, bytes(data)[:5], offset)
            raise OSError(code, os.strerror(code))

        writer = Writer(path, spec)
        source = writer.source({})
        writer.add(episode(spec, 3, 0), terminated=True, truncated=False, source=source)
        complete = 1
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", refuse)
            with pytest.raises(DataError, match=rf"cannot be written: .*the {1 + (at - 1) // 7} complete episodes in it stay"):
                for number in range(1, 4):
                    writer.add(episode(spec, 4, number), terminated=True, truncated=False, source=source)
                    complete += 1
        data = fugu.data.open(path)
        assert data.episodes == complete and data.check() == [] and not data.missing
        writer.add(episode(spec, 5, 9), terminated=True, truncated=False, source=source)  # there is room again
        writer.close()
        data = fugu.data.open(path)
        assert data.lengths.tolist() == [3, *[4] * (complete - 1), 5] and data.check() == []


FULL = """
import resource, fugu
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
fugu.record("cartpole", {path!r}, random=True, episodes=5000, num_envs=16)
"""


def test_a_file_that_may_not_grow_ends_the_recording_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL.format(path=str(tmp_path / "d"))], capture_output=True, text=True)
    assert done.returncode and "cannot be written: File too large; the " in done.stderr and "--append" in done.stderr
    data = fugu.data.open(tmp_path / "d")
    assert data.episodes > 50 and data.check() == [] and f"the {data.episodes} complete episodes" in done.stderr
