"""Programs of several processes counted by the kernel, in a control group that was delegated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fugu.coding.sandbox import Limits, Program, Sandbox, SandboxConfig, cgroup, worker
from fugu.coding.sandbox.probe import examine
from fugu.errors import ConfigError, SandboxError


@pytest.fixture
def delegated() -> Iterator[Path]:
    """A group of our own, below the one that this process is in."""
    if not sys.platform.startswith("linux"):
        pytest.skip("control groups are Linux's")
    own = next((line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")), None)
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    mounted = next((fields[1] for fields in mounts if fields[2] == "cgroup2"), None)
    if own is None or mounted is None:
        pytest.skip("there are no control groups of version 2 here")
    group = Path(mounted + own) / f"test-{os.getpid()}"
    try:
        if examine().level < 3:
            pytest.skip(f"level 3 is needed: {examine().missing}")
        group.mkdir()
    except (OSError, SandboxError) as error:
        pytest.skip(f"no control group is delegated to us: {error}")
    yield group
    cgroup.sweep(str(group))
    group.rmdir()


def below(group: Path) -> list[str]:
    return [path.name for path in group.iterdir() if path.is_dir()]


VANISHING = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    try:
        if os.fork() == 0:
            end = time.process_time() + 0.004
            while time.process_time() < end: pass
            os._exit(0)
    except OSError:
        time.sleep(0.001)
"""
GREEDY = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        x = b"x" * (50 << 20)
        time.sleep(9)
time.sleep(9)
"""


@pytest.mark.parametrize("compiled", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_group_counts_what_no_look_could_see_and_nothing_of_it_is_left(delegated, monkeypatch, compiled):
    if not compiled:
        monkeypatch.setattr(worker, "library", lambda: "")
    limits = Limits(cpu_s=0.5, wall_s=10, processes=24, memory_mb=300)
    programs = [
        Program(source=b"print(1)", profile="program"),
        Program(source=VANISHING.encode(), profile="program", limits=limits),
        Program(source=GREEDY.encode(), profile="program", limits=limits),
        Program(source=b"print(1)"),
    ]
    with Sandbox(SandboxConfig(workers=1, cgroup=str(delegated))) as sandbox:
        found = sandbox.run(programs)
        assert below(delegated) == [f"fugu-{sandbox.backend._workers[0].process.pid}"]  # type: ignore[attr-defined]
        assert below(delegated / below(delegated)[0]) == ["zygote"]
    assert [each.status for each in found] == ["ok", "time_limit", "memory_limit", "ok"], found
    assert "CPU" in found[1].detail and found[1].cpu_s > 0.5
    assert below(delegated) == []


def test_the_kernel_ends_a_program_at_its_memory(delegated):
    if "memory" not in (delegated / "cgroup.controllers").read_text().split():
        pytest.skip("the memory controller is not delegated, or belongs to version 1 here")
    limits = Limits(cpu_s=5, wall_s=10, processes=24, memory_mb=300)
    with Sandbox(SandboxConfig(workers=1, cgroup=str(delegated))) as sandbox:
        (outcome,) = sandbox.run([Program(source=GREEDY.encode(), profile="program", limits=limits)])
    assert outcome.status == "memory_limit" and outcome.max_rss_mb <= limits.memory_mb + limits.disk_mb, outcome


KILLED = """
import sys, time
from fugu.coding.sandbox import Sandbox, SandboxConfig
with Sandbox(SandboxConfig(workers=1, cgroup=sys.argv[1])):
    print("open", flush=True)
    time.sleep(60)
"""


def test_what_a_killed_manager_left_is_removed_by_the_next(delegated):
    manager = subprocess.Popen([sys.executable, "-c", KILLED, str(delegated)], stdout=subprocess.PIPE)
    assert manager.stdout is not None and manager.stdout.readline() == b"open\n"
    (left,) = below(delegated)
    manager.send_signal(signal.SIGKILL)
    manager.communicate()
    assert below(delegated) == [left]
    until = time.monotonic() + 10
    while os.path.exists(f"/proc/{left.partition('-')[2]}") and time.monotonic() < until:
        time.sleep(0.02)
    with Sandbox(SandboxConfig(workers=1, cgroup=str(delegated))):
        assert left not in below(delegated)


def test_what_is_no_control_group_is_refused_at_once(tmp_path):
    with pytest.raises(ConfigError, match="is no control group of version 2"):
        SandboxConfig(cgroup=str(tmp_path))
