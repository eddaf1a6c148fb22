"""Shared by all tests: what needs a GPU is skipped without one; a guard against anything left behind."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.timing import in_time


def pytest_runtest_setup(item: pytest.Item) -> None:
    """``-m gpu`` where there is none says so, instead of failing."""
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


def pytest_collection_finish() -> None:
    """What was imported and collected by now stays: looking for garbage among it takes half a second, a thousand times."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the key that seals runs out of the home of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


def descriptors() -> set[str]:
    out = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if not target.startswith(("/dev/", "anon_inode:[event")):
            out.add(f"{fd} -> {target}")
    return out


def mappings() -> list[str]:
    with open("/proc/self/maps") as file:
        return [line.split()[-1] for line in file if "fugu-" in line]


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fails a test after which a process, thread, descriptor or shared mapping is left that was not there before."""
    gc.collect()
    before = descriptors(), set(threading.enumerate()), len(mappings()), children(), set(os.listdir("/dev/shm"))
    yield
    gc.collect()
    began = time.monotonic()
    while children() - before[3] and time.monotonic() < began + 10:
        time.sleep(0.02)
    took = time.monotonic() - began
    assert not children() - before[3], "processes left behind"
    assert not set(threading.enumerate()) - before[1], "threads left behind"
    assert not descriptors() - before[0], "descriptors left behind"
    assert len(mappings()) <= before[2], "shared mappings left behind"
    assert not set(os.listdir("/dev/shm")) - before[4], "files in /dev/shm left behind"
    in_time(took, 2)
