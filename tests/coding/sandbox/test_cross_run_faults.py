"""Cases in which something outside goes wrong: a worker is stopped, the trainer killed, the disk full, the machine offers less."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fugu.coding.sandbox import probe
from fugu.coding.sandbox.config import SandboxConfig
from fugu.coding.sandbox.contract import Limits, Program
from fugu.coding.sandbox.sandbox import Sandbox
from fugu.errors import SandboxError
from tests.coding.sandbox.arena import BENIGN
from tests.coding.sandbox.backends import BACKENDS, arena, python_for_all
from tests.coding.sandbox.test_cross_run import of
from tests.coding.sandbox.world import _named
from tests.timing import in_time

ROOT = Path(__file__).parents[3]


def workers() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


@of(54)
def test_a_stopped_worker_is_replaced() -> None:
    with arena("fork", workers=1, silence_s=0.5) as opened:
        for process in workers():
            process.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        with Sandbox(backend=opened.backend) as sandbox:
            (outcome,) = sandbox.run([BENIGN])
            assert (outcome.status, outcome.stdout) == ("ok", b"6\n")
        in_time(time.monotonic() - start, 5)


BUSY = """
import sys, time
from fugu.coding.sandbox.{module} import {opener}
from fugu.coding.sandbox.config import SandboxConfig
from fugu.coding.sandbox.contract import Limits, Program
import psutil
backend = {opener}(SandboxConfig(workers=1, **{settings!r}))
source = b"import time\\ntime.sleep(20)"
fork = b"import ctypes, os\\nif os.fork() == 0:\\n    os.setsid()\\nctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)\\n" + source
limits = Limits(cpu_s=5, wall_s=30, processes=8)
backend.submit(0, Program(source={source}, limits=limits, profile="program"))
time.sleep(0.5)
print(*(process.pid for process in psutil.Process().children(recursive=True)), flush=True)
time.sleep(60)
"""


@of(77)
@pytest.mark.parametrize(
    "name", ["fork", *(pytest.param(each, marks=pytest.mark.slow) for each in ("fork-2", "fork-1", "bubblewrap"))]
)
def test_nothing_survives_a_trainer_that_is_killed(name: str) -> None:
    module, opener, settings = BACKENDS[name]
    if name != "fork":
        settings = {**settings, "python": python_for_all()}
    with arena(name):  # skips where it cannot run
        pass
    leftover = f"fugu-kill-{os.getpid()}"[:15]
    source = "fork" if name == "fork" else "source"
    script = BUSY.format(module=module, opener=opener, settings=settings, name=leftover, source=source)
    trainer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    children = [int(word) for word in trainer.stdout.readline().split()]
    assert children
    assert source == "source" or _named(leftover) == 2
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    until = time.monotonic() + 3
    while (any(psutil.pid_exists(pid) for pid in children) or _named(leftover)) and time.monotonic() < until:
        time.sleep(0.05)
    assert [pid for pid in children if psutil.pid_exists(pid)] == [] and _named(leftover) == 0


FULL = """
import contextlib, os, tempfile
from fugu.coding.sandbox.config import SandboxConfig
from fugu.coding.sandbox.contract import Program
from fugu.coding.sandbox.sandbox import Sandbox
folder = tempfile.gettempdir()  # decided while there was room
with contextlib.suppress(OSError):
    for i in range(100):
        open(os.path.join(folder, str(i)), "w").write("x" * 1000)
with Sandbox(SandboxConfig(workers=1, **{settings!r})) as sandbox:
    (outcome,) = sandbox.run([Program(source=b"open('x', 'w').write('y')\\nprint(open('x').read())")])
print(outcome.status, outcome.detail)
"""


@of(78)
@pytest.mark.parametrize("name", ["fork", "subprocess"])
def test_a_full_disk_is_ours_and_not_the_programs_fault(name: str, tmp_path: Path) -> None:
    """fork needs no disk; where one is needed and full, that is an internal error."""
    script = FULL.format(settings={"backend": name, **BACKENDS[name][2]})
    small = tmp_path / "small"
    small.mkdir()
    then = 'mount -t tmpfs -o size=8k,nr_inodes=8 tmpfs "$0" && TMPDIR="$0" exec "$@"'
    private = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    command = [*private, "sh", "-c", then, str(small), sys.executable, "-c", script]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    except FileNotFoundError:
        pytest.skip("needs unshare, to fill a disk that is not really there")
    if "unshare" in out.stderr or "mount:" in out.stderr or "at level" in out.stderr:
        pytest.skip(f"no private mounts here: {out.stderr.strip()}")
    assert out.returncode == 0, out.stderr
    assert out.stdout.startswith("ok" if name == "fork" else "internal_error cannot start a box: [Errno 28] No space left"), (
        out.stdout
    )


@of(80)
@pytest.mark.parametrize(
    ("missing", "level"),
    [
        ((), 3),
        (("namespaces", "mounts", "process_limit"), 2),
        (("namespaces", "mounts", "process_limit", "landlock"), 1),
        (("namespaces", "mounts", "process_limit", "landlock", "seccomp"), 0),
        (("landlock",), 3),
    ],
)
def test_the_level_is_what_the_machine_allows(missing: tuple[str, ...], level: int) -> None:
    if probe.examine().level < 3:
        pytest.skip("this machine itself does not offer level 3")
    report = probe.examine(missing)
    assert report.level == level
    assert set(report.missing) == set(missing)
    if level < 3:
        with pytest.raises(SandboxError, match="level"):
            Sandbox(SandboxConfig(pretend_missing=missing))


@of(75)
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_runs_leave_nothing_behind() -> None:
    """One in ten hostile, in random order: every benign one is right, and nothing is more than it was."""
    import random

    from tests.coding.sandbox.arena import CASES, program

    draw = random.Random(0)
    with arena("fork", recycle=1000) as opened:
        hostile = [case for case in CASES if opened.not_provided(case) is None]
        before = opened.world.record()
        memory = psutil.Process().memory_info().rss
        plan: list[Program] = []
        expected: list[bytes | None] = []
        for _ in range(10_000):
            if draw.random() < 0.1:
                plan.append(program(draw.choice(hostile), opened.world))
                expected.append(None)
            else:
                a, b = draw.randrange(1000), draw.randrange(1000)
                plan.append(Program(source=b"a, b = map(int, input().split())\nprint(a * b)", stdin=b"%d %d" % (a, b)))
                expected.append(b"%d\n" % (a * b))
        with Sandbox(backend=opened.backend) as sandbox:
            outcomes = sandbox.run(plan)
            assert [each.stdout for each, want in zip(outcomes, expected, strict=True) if want is not None] == [
                want for want in expected if want is not None
            ]
            assert sandbox.counts.status["internal_error"] == 0
            assert opened.world.unchanged(before, seconds=3.0) == {}
            assert psutil.Process().memory_info().rss - memory < 200 << 20


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["docker", "podman", "gvisor"])
def test_closing_removes_the_containers_that_still_run(name: str) -> None:
    with arena(name) as opened:
        engine = opened.backend.launcher  # type: ignore[attr-defined]

        def running() -> int:
            listing = [engine.command, "ps", "--all", "--quiet", "--filter", f"label={engine.label}"]
            return len(subprocess.run(listing, capture_output=True, check=True).stdout.split())

        for ticket in range(2):
            opened.backend.submit(ticket, Program(source=b"while True: pass", limits=Limits(cpu_s=60, wall_s=60)))
        until = time.monotonic() + 30
        while running() < 2 and time.monotonic() < until:
            time.sleep(0.1)
        assert running() == 2
        opened.backend.close()
        assert running() == 0
