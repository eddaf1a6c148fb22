"""How busy the machine is."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

from fugu.run import system
from fugu.run.metrics import METRICS
from fugu.run.system import System


def test_a_busy_core_and_the_memory_of_a_worker_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "INTERVAL", 0.0)
    here = System()
    alone = here.sample()["system/memory"]
    assert alone == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    code = "import sys; x = bytearray(b'1') * 100_000_000; print(flush=True); sys.stdin.read()"
    worker = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert worker.stdout is not None
    worker.stdout.readline()
    assert here.sample()["system/memory"] > alone + 90_000_000
    worker.communicate()
    end = time.perf_counter() + 0.2
    while time.perf_counter() < end:
        pass
    busy = here.sample()["system/cpu"]
    assert 0.8 / len(here._cores) <= busy <= 1.0
    assert set(here.sample()) <= set(METRICS)


def test_samples_are_reused_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    here = System()
    first = dict(here.sample())
    monkeypatch.setattr(here, "_resident", lambda: pytest.fail("sampled again"))
    assert here.sample() == first


def test_without_a_gpu_nothing_is_said_about_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system._Gpu, "open", classmethod(lambda cls, index: None))
    assert "system/gpu" not in System(gpu=0).sample()


@pytest.mark.gpu
def test_the_gpu_is_seen() -> None:
    import torch

    x = torch.zeros(500_000_000, dtype=torch.uint8, device="cuda")
    sample = System(gpu=0).sample()
    assert 0 <= sample["system/gpu"] <= 1 and sample["system/gpu_memory"] > x.nbytes
