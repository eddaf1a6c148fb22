"""The backends that start a process per program: who is refused, what is asked of the tools, what is cleared up."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fugu.coding.sandbox import bubblewrap, container, folder
from fugu.coding.sandbox.config import FEATURES, SandboxConfig
from fugu.coding.sandbox.container import ContainerLauncher, open_container
from fugu.coding.sandbox.contract import Call, Limits, Program
from fugu.coding.sandbox.plain import PlainLauncher, open_plain
from fugu.coding.sandbox.protections import PROTECTIONS, gaps
from fugu.coding.sandbox.sandbox import Sandbox
from fugu.errors import SandboxError
from tests.timing import in_time

PLAIN = SandboxConfig(backend="subprocess", min_level=0, workers=2)


def test_plain_processes_are_refused_unless_asked_for() -> None:
    with pytest.raises(SandboxError, match="level 0 here, not at 3.*min_level=0 or allow="):
        Sandbox(SandboxConfig(backend="subprocess"))
    with pytest.raises(SandboxError, match="level 0"):
        Sandbox(SandboxConfig(backend="subprocess", min_level=1))
    for config in (PLAIN, SandboxConfig(backend="subprocess", allow=tuple(FEATURES))):
        with Sandbox(config) as sandbox:
            assert sandbox.isolation.level == 0
            assert sandbox.run([Program(source=b"print(1)")])[0].stdout == b"1\n"


def test_a_backend_declares_what_it_does_not_give() -> None:
    backend = open_plain(PLAIN)
    backend.close()
    assert set(gaps(backend)) == set(PROTECTIONS) - {"secrets"}


def test_test_code_and_candidate_are_in_processes_of_their_own(no_leaks: None) -> None:
    tests = b"import os\nassert candidate(2) == 3\nassert add(1, 2) == 3\nprint(candidate(4), os.getpid() != pid())"
    agent = b"import os\ndef f(x):\n    return x + 1\ndef add(x, y):\n    return x + y\ndef pid():\n    return os.getpid()"
    partner = Program(source=agent, calls=(Call("f"), Call("add"), Call("pid")))
    slow = Program(source=b"def f(x):\n    while True:\n        pass", calls=(Call("f"),), limits=Limits(cpu_s=0.3, wall_s=0.4))
    with Sandbox(PLAIN) as sandbox:
        right, late, gone = sandbox.run(
            [
                Program(source=tests, partner=partner),
                Program(source=b"candidate(1)", partner=slow),
                Program(source=b"candidate(1)\n", partner=Program(source=b"1 / 0", calls=(Call("f"),))),
            ]
        )
    assert (right.status, right.stdout) == ("ok", b"5 True\n")
    assert late.status == "time_limit"
    assert gone.status == "runtime_error"


def test_waiting_on_the_descriptor_sees_deadlines_too() -> None:
    """Also of a runner that does not answer: here it is stopped, as a hostile program could do."""
    backend = open_plain(PLAIN)
    try:
        backend.submit(0, Program(source=b"import time\ntime.sleep(9)", limits=Limits(cpu_s=0.2, wall_s=0.3)))
        start = time.monotonic()
        outcomes: list = []
        stopped = False
        while not outcomes and time.monotonic() - start < 10:
            select.select([backend], [], [], 5.0)
            outcomes = backend.collect(0)
            (job,) = backend.running.values() or [None]
            if job is not None and job.boxes[0].begun and not stopped:
                stopped = True
                os.kill(job.boxes[0].process.pid, signal.SIGSTOP)
        assert stopped and outcomes[0][1].status == "time_limit"
        in_time(time.monotonic() - start, 3)
    finally:
        backend.close()


def test_close_ends_what_runs(no_leaks: None) -> None:
    backend = open_plain(PLAIN)
    for ticket in range(2):
        backend.submit(ticket, Program(source=b"import time\ntime.sleep(30)"))
    assert backend.room == 0
    time.sleep(0.2)
    assert len(psutil.Process().children(recursive=True)) >= 2
    backend.close()
    backend.close()
    assert not backend.alive()


def test_a_box_that_does_not_start_is_not_the_programs_fault(no_leaks: None) -> None:
    backend = open_plain(PLAIN)
    backend.launcher.command = ["/bin/false"]  # type: ignore[attr-defined]
    backend.submit(0, Program(source=b"print(1)"))
    backend.launcher.command = ["/no/such/program"]  # type: ignore[attr-defined]
    backend.submit(1, Program(source=b"print(1)"))
    outcomes: dict = {}
    while len(outcomes) < 2:
        outcomes.update(backend.collect(2.0))
    assert {each.status for each in outcomes.values()} == {"internal_error"}
    backend.close()


@pytest.mark.slow
def test_folders_are_removed_whatever_is_in_them(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("stays")
    place = Path(folder.make())
    (place / "link").symlink_to(outside)
    (place / "locked" / "inner").mkdir(parents=True)
    (place / "locked" / "inner" / "file").write_text("x")
    (place / "locked" / "loop").symlink_to("..")
    os.mkfifo(place / "fifo")
    os.link(outside / "file", place / "hard")
    (place / "locked").chmod(0)
    top = os.open(place, os.O_RDONLY)
    here = os.dup(top)
    for _ in range(1200):  # deeper than Python's recursion
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    os.close(top)
    assert folder.remove(str(place)) and not place.exists()
    assert folder.remove(str(place))  # again
    assert (outside / "file").read_text() == "stays"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.symlink_to(outside)
    assert not folder.remove(str(elsewhere)) and (outside / "file").exists()


def test_containers_are_made_without_network_rights_or_room() -> None:
    config = SandboxConfig(backend="docker", image="some/image:1", runtime="runsc")
    launcher = ContainerLauncher(config, "/usr/bin/docker")
    limits = Limits(memory_mb=100, disk_mb=8, processes=5)
    start = launcher.start(Program(source=b"", limits=limits, profile="program"))
    words = " ".join(start.command)
    for expected in (
        "/usr/bin/docker run --rm --interactive --read-only --runtime runsc --name fugu-",
        "--network none --cap-drop ALL --security-opt no-new-privileges --pids-limit 6 --memory 172m --memory-swap 172m",
        "--user 65534:65534 --tmpfs /tmp:rw,nosuid,nodev,mode=1777,size=8m,nr_inodes=256",
        "--pull never",
        "some/image:1 python3 -s -S -P -B -X utf8 -c ",
    ):
        assert expected in words
    assert "FUGU_CANARY" not in start.environment
    podman = ContainerLauncher(SandboxConfig(backend="podman", runtime="runsc"), "/usr/bin/podman").start(Program(source=b""))
    assert podman.command[:4] == ["/usr/bin/podman", "--runtime", "runsc", "run"]
    assert "--http-proxy=false" in podman.command and "--read-only-tmpfs=false" in podman.command


FAKE = """#!{python}
# Stands for an engine: "run" runs what comes after the image, as a plain process; everything is written down.
import os, sys
with open({log!r}, "a") as log:
    log.write(" ".join(sys.argv[1:])[:300] + "\\n")
if sys.argv[1] == "run":
    image = sys.argv.index({image!r})
    os.execv(sys.executable, [sys.executable] + sys.argv[image + 2:])
"""


def fake_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str = "docker") -> Path:
    tool, log = tmp_path / name, tmp_path / "log"
    tool.write_text(FAKE.format(python=sys.executable, log=str(log), image="pretend:1"))
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(container.seccomp, "filter_for", lambda profile: None)
    return log


def test_an_engine_is_told_to_remove_what_runs_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    log = fake_engine(tmp_path, monkeypatch)
    monkeypatch.setattr(ContainerLauncher, "start", _not_alone(ContainerLauncher.start))
    with Sandbox(SandboxConfig(backend="docker", image="pretend:1")) as sandbox:
        (fine,) = sandbox.run([Program(source=b"print(input())", stdin=b"x")])
        assert (fine.status, fine.stdout, fine.backend) == ("ok", b"x\n", "docker")
        backend = sandbox.backend
        backend.submit(0, Program(source=b"import time\ntime.sleep(9)", limits=Limits(cpu_s=0.2, wall_s=0.3)))
        while not backend.running[0].boxes[0].begun:  # type: ignore[attr-defined]
            backend.collect(0.01)
        os.kill(backend.running[0].boxes[0].process.pid, signal.SIGSTOP)  # type: ignore[attr-defined]
        while not (done := backend.collect(1.0)):
            pass
        assert done[0][1].status == "time_limit"
    lines = log.read_text().splitlines()
    names = [line.split("--name ")[1].split()[0] for line in lines if line.startswith("run")]
    assert f"rm --force {names[-1]}" in lines
    assert any(line.startswith("ps --all --quiet --filter label=fugu=") for line in lines)


LEFT_OPEN = """
import dataclasses
from fugu.coding.sandbox import Program, Sandbox, SandboxConfig, container
container.seccomp.filter_for = lambda profile: None
start = container.ContainerLauncher.start
container.ContainerLauncher.start = lambda self, program: dataclasses.replace(start(self, program), alone=False)
sandbox = Sandbox(SandboxConfig(backend="docker", image="pretend:1"))
ticket = sandbox.submit(Program(source=b"import time; time.sleep(9)"))
while not sandbox.backend.running[ticket].boxes[0].begun:  # an engine killed before it has started has written nothing
    sandbox.backend.collect(0.01)
"""


def test_containers_of_a_sandbox_left_open_are_removed_when_python_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fake_engine(tmp_path, monkeypatch)
    done = subprocess.run([sys.executable, "-c", LEFT_OPEN], capture_output=True, timeout=20)
    assert done.stderr == b""
    lines = log.read_text().splitlines()
    names = [line.split("--name ")[1].split()[0] for line in lines if line.startswith("run")]
    assert f"rm --force {names[-1]}" in lines  # in any order: each is a process of its own, and writes when it gets to it
    assert any(line.startswith("ps --all --quiet --filter label=fugu=") for line in lines)


def _not_alone(start):  # type: ignore[no-untyped-def]
    """The pretended container has no pid namespace in which the runner might end everyone it sees."""
    import dataclasses

    return lambda self, program: dataclasses.replace(start(self, program), alone=False)


def test_an_engine_that_cannot_run_is_named_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    tool = tmp_path / "podman"
    tool.write_text("#!/bin/sh\necho 'Error: no such image' >&2\nexit 125\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(SandboxError, match=r"'podman' cannot run programs here.*no such image; get it with: podman pull"):
        open_container(SandboxConfig(backend="podman"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    for config in (SandboxConfig(backend="docker"), SandboxConfig(backend="bubblewrap")):
        with pytest.raises(SandboxError, match="needs the command"):
            Sandbox(config)


def test_bubblewrap_without_a_limit_of_processes_has_to_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "_nobody_can_read", lambda paths: False)
    monkeypatch.setattr(bubblewrap.os, "geteuid", lambda: 0)
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: "/usr/bin/bwrap")
    with pytest.raises(SandboxError, match=r"level 2 here, not at 3.*allow=\('process_limit',\)"):
        Sandbox(SandboxConfig(backend="bubblewrap"))


def test_the_interpreter_can_be_chosen() -> None:
    assert PlainLauncher("/some/python").start(Program(source=b"")).command[0] == "/some/python"
