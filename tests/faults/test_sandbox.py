"""Things go wrong around the sandbox: it is noticed, said, mended, and the batch goes on."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable

import psutil
import pytest

from fugu.coding.sandbox import Call, Limits, Program, Sandbox, SandboxConfig
from fugu.coding.sandbox.probe import examine
from fugu.errors import SandboxError
from tests.timing import in_time

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the fork backend needs Linux"),
    pytest.mark.usefixtures("no_leaks", "full_level"),
]

QUICK = Program(source=b"print(1)")
SLEEPER = Program(source=b"import time; time.sleep(0.5)\nprint(1)")


@pytest.fixture(scope="module")
def full_level() -> None:
    if examine().level < 3:
        pytest.skip(f"level 3 is needed: {examine().missing}")


def zygote_of(sandbox: Sandbox, index: int = 0) -> psutil.Process:
    """The process that forks: the one child of the process that was started."""
    outer = psutil.Process(sandbox.backend._workers[index].process.pid)  # type: ignore[attr-defined]
    return outer.children()[0]


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


@pytest.mark.parametrize("which", ["zygote", "outer"])
def test_a_killed_zygote_is_replaced_and_its_programs_run_elsewhere(which):
    with Sandbox(SandboxConfig(workers=2)) as sandbox:
        tickets = [sandbox.submit(SLEEPER) for _ in range(8)]
        time.sleep(0.1)
        victim = zygote_of(sandbox) if which == "zygote" else zygote_of(sandbox).parent()
        children = zygote_of(sandbox).children(recursive=True)
        assert children
        victim.kill()
        found = {}
        while len(found) < len(tickets):
            found |= dict(sandbox.collect())
        assert {outcome.status for outcome in found.values()} == {"ok"}
        assert sorted({outcome.attempt for outcome in found.values()}) == [1, 2]
        assert sandbox.counts.restarts == 1 and sandbox.counts.retries == len(children)
        wait_until(lambda: not any(child.is_running() for child in children))
        assert [outcome.status for outcome in sandbox.run([QUICK] * 20)] == ["ok"] * 20


def test_a_stopped_zygote_is_noticed_and_replaced():
    with Sandbox(SandboxConfig(workers=1, silence_s=0.5)) as sandbox:
        ticket = sandbox.submit(SLEEPER)
        time.sleep(0.1)
        stopped = zygote_of(sandbox)
        stopped.suspend()
        start = time.monotonic()
        ((found, outcome),) = sandbox.collect()
        assert (found, outcome.status, outcome.attempt) == (ticket, "ok", 2)
        in_time(time.monotonic() - start, 6)
        assert not stopped.is_running() or stopped.status() == psutil.STATUS_ZOMBIE


def test_a_trainer_that_was_away_does_not_take_its_zygotes_for_dead():
    with Sandbox(SandboxConfig(workers=1, silence_s=0.3)) as sandbox:
        sandbox.submit(Program(source=b"import time; time.sleep(2.5)"))
        assert sandbox.collect(1.5) == []  # a question has been asked by now
        time.sleep(1.5)  # and its answer is not read for long
        ((_, outcome),) = sandbox.collect()
        assert outcome.status == "ok" and sandbox.counts.restarts == 0


def test_deadlines_hold_while_nobody_is_there_to_collect():
    with Sandbox(SandboxConfig(workers=1)) as sandbox:
        sandbox.submit(Program(source=b"while True: pass", limits=Limits(cpu_s=0.3, wall_s=1)))
        time.sleep(1.5)
        assert not zygote_of(sandbox).children()
        ((_, outcome),) = sandbox.collect()
        assert outcome.status == "time_limit" and outcome.cpu_s < 0.8


def test_programs_that_kill_their_worker_every_time_are_given_up():
    """Never scored: after the retries it is an internal error, and the sandbox still works."""
    with Sandbox(SandboxConfig(workers=1, retries=1)) as sandbox:
        ticket = sandbox.submit(SLEEPER)
        for _ in range(2):
            wait_until(lambda: sandbox.collect(0.05) == [] and bool(sandbox.backend._workers[0].running))  # type: ignore[attr-defined]
            zygote_of(sandbox).kill()
        found = sandbox.collect()
        assert [(found_ticket, outcome.status, outcome.attempt) for found_ticket, outcome in found] == [
            (ticket, "internal_error", 2)
        ]
        assert "worker" in found[0][1].detail
        assert sandbox.run([QUICK])[0].status == "ok"


def test_a_set_up_that_fails_is_ours_and_tried_again_on_a_fresh_zygote():
    with Sandbox(SandboxConfig(workers=1, retries=1)) as sandbox:
        bad = Program(source=b"print(1)", limits=Limits(cpu_s=1e-9, wall_s=1e-9))  # ended before it is complete
        for _ in range(10):
            pid = zygote_of(sandbox).pid
            (outcome,) = sandbox.run([bad])
            if outcome.status == "internal_error":
                break  # else it was quicker than its end, as on a core with much else to do
        assert (outcome.status, outcome.attempt, outcome.stdout) == ("internal_error", 2, b"")
        assert outcome.detail.startswith("set-up failed")
        assert sandbox.run([QUICK])[0].status == "ok"
        assert zygote_of(sandbox).pid != pid


def test_zygotes_are_renewed_after_some_executions():
    with Sandbox(SandboxConfig(workers=1, recycle=10)) as sandbox:
        pids = set()
        for _ in range(6):
            assert {outcome.status for outcome in sandbox.run([QUICK] * 5)} == {"ok"}
            pids |= {worker.process.pid for worker in sandbox.backend._workers}  # type: ignore[attr-defined]
        assert len(pids) >= 2 and sandbox.counts.restarts == 0
        wait_until(lambda: sandbox.collect(0.05) == [] and len(sandbox.backend._workers) == 1)  # type: ignore[attr-defined]


def test_a_thousand_programs_at_once():
    programs = [Program(source=f"print({index})".encode()) for index in range(1000)]
    with Sandbox(SandboxConfig(workers=2)) as sandbox:
        outcomes = sandbox.run(programs)
    assert [outcome.stdout for outcome in outcomes] == [b"%d\n" % index for index in range(1000)]


def test_a_full_queue_is_an_error_that_says_so():
    with Sandbox(SandboxConfig(workers=1, in_flight=1, queue=2)) as sandbox:
        for _ in range(3):
            sandbox.submit(SLEEPER)
        with pytest.raises(SandboxError, match="collect some first"):
            sandbox.submit(SLEEPER)


def test_close_ends_what_is_running_and_can_be_called_again():
    others = set(psutil.Process().children(recursive=True))
    sandbox = Sandbox(SandboxConfig(workers=2))
    for _ in range(6):
        sandbox.submit(Program(source=b"import time; time.sleep(30)", limits=Limits(wall_s=60)))
    time.sleep(0.1)
    processes = set(psutil.Process().children(recursive=True)) - others
    assert len(processes) > 2
    start = time.monotonic()
    sandbox.close()
    sandbox.close()
    took = time.monotonic() - start
    assert not sandbox.alive()
    wait_until(lambda: not any(process.is_running() for process in processes))
    with pytest.raises(SandboxError, match="closed"):
        sandbox.submit(QUICK)
    in_time(took, 3)


def test_a_sandbox_opened_in_a_thread_outlives_it():
    """The kernel ties a child to the thread that started it; the workers must not die with that thread."""
    opened: list[Sandbox] = []
    thread = threading.Thread(target=lambda: opened.append(Sandbox(SandboxConfig(workers=1))))
    thread.start()
    thread.join()
    time.sleep(0.2)
    with opened[0] as sandbox:
        assert sandbox.run([QUICK])[0].status == "ok" and sandbox.counts.restarts == 0


SCRIPT = """
import os, sys, time
from fugu.coding.sandbox import Limits, Program, Sandbox, SandboxConfig
with Sandbox(SandboxConfig(workers=2)) as sandbox:
    for _ in range(6):
        sandbox.submit(Program(source=b"import time; time.sleep(40)", limits=Limits(wall_s=60)))
    time.sleep(0.2)
    print("running", flush=True)
    sandbox.collect()
"""


def start_manager() -> tuple[subprocess.Popen[bytes], list[psutil.Process]]:
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(SCRIPT)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"running\n", process.stderr
    below = psutil.Process(process.pid).children(recursive=True)
    assert len(below) == 2 * 2 + 6
    return process, below


@pytest.mark.parametrize("stop_first", [False, True])
def test_nothing_is_left_of_a_manager_that_was_killed(stop_first):
    process, below = start_manager()
    if stop_first:
        below[-1].suspend()
    process.kill()
    process.communicate()
    wait_until(lambda: not any(each.is_running() for each in below), 3.0)


def test_nothing_is_left_after_ctrl_c():
    process, below = start_manager()
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    _, errors = process.communicate(timeout=60)
    took = time.monotonic() - start
    assert process.returncode in (1, -signal.SIGINT, 130) and b"KeyboardInterrupt" in errors
    wait_until(lambda: not any(each.is_running() for each in below), 3.0)
    in_time(took, 10)


def test_an_interrupted_collect_can_be_taken_up_again():
    with Sandbox(SandboxConfig(workers=1)) as sandbox:
        tickets = {sandbox.submit(SLEEPER) for _ in range(4)}
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            while True:
                sandbox.collect()
        timer.join()
        found = {}
        while len(found) < len(tickets):
            found |= dict(sandbox.collect())
        assert set(found) == tickets and {outcome.status for outcome in found.values()} == {"ok"}


def test_running_out_of_descriptors_is_an_internal_error_and_passes():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Sandbox(SandboxConfig(workers=1, retries=0)) as sandbox:
        used = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 10, hard))
        taken = []
        try:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            for _ in range(5):
                os.close(taken.pop())
            (outcome,) = sandbox.run([QUICK])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for descriptor in taken:
                os.close(descriptor)
        assert outcome.status == "internal_error" and "Too many open files" in outcome.detail
        assert sandbox.run([QUICK])[0].status == "ok"


def test_a_program_cannot_make_its_outcome_an_internal_error():
    """Which would take it out of the training instead of scoring it."""
    attempts = [
        b"import os; os._exit(70)",
        b"import os, signal; os.kill(os.getpid(), signal.SIGKILL); os.kill(-1, signal.SIGKILL)",
        b"import os, struct\nfor n in range(3, 64):\n  try: os.write(n, struct.pack('<BI', 5, 3) + b'bad')\n  except OSError: pass",
        b"import sys; sys.stderr.write('set-up failed'); sys.exit(70)",
        b"import os\nfor fd in range(64):\n    try: os.close(fd)\n    except OSError: pass",
    ]
    with Sandbox(SandboxConfig(workers=1)) as sandbox:
        plain = sandbox.run([Program(source=source) for source in attempts])
        called = sandbox.run([Program(source=source, calls=(Call("f"),)) for source in attempts])
        assert "internal_error" not in {outcome.status for outcome in plain + called}
        assert sandbox.counts.retries == 0 and sandbox.counts.restarts == 0
        assert {outcome.status for outcome in called} <= {"runtime_error", "violation"}


FULL_TMP = """
import os, sys
from fugu.coding.sandbox import Program, Sandbox, SandboxConfig, kernel, worker
python = os.path.realpath(sys.executable)
kernel.use(None)
kernel.unshare(kernel.CLONE_NEWNS)
place = os.open(worker.PLACE, os.O_PATH)
kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
kernel.mount("tmpfs", "/tmp", "tmpfs", 0, "size=64k")
if worker.PLACE.startswith("/tmp/"):
    os.makedirs(worker.PLACE)
    kernel.mount(f"/proc/self/fd/{place}", worker.PLACE, None, kernel.MS_BIND)
try:
    with open("/tmp/filler", "wb", buffering=0) as file:
        while True: file.write(bytes(4096))
except OSError: pass
with Sandbox(SandboxConfig(workers=1, python=python)) as sandbox:
    program = Program(source=b"open('/tmp/f', 'w').write('x' * 100_000); print(input())", stdin=b"x" * 100_000)
    print([outcome.status for outcome in sandbox.run([program] * 3)], os.path.exists("/tmp/f"))
"""


def test_a_full_tmp_hurts_nobody():
    if os.geteuid() != 0:
        pytest.skip("only root can fill a /tmp of its own")
    done = subprocess.run([sys.executable, "-c", FULL_TMP], capture_output=True, text=True, timeout=50)
    assert done.stdout == "['ok', 'ok', 'ok'] False\n", done.stderr


@pytest.mark.slow
def test_nothing_is_left_after_ten_thousand_executions():
    hostile = [
        Program(
            source=b"import os\nwhile True: os.fork()", profile="program", limits=Limits(processes=8, cpu_s=0.1, wall_s=0.2)
        ),
        Program(source=b"while True: pass", limits=Limits(cpu_s=0.02, wall_s=0.2)),
        Program(source=b"while True: print('x' * 10000)"),
        Program(source=b"open('/tmp/x', 'wb').write(bytes(9 << 20))"),
        Program(source=b"x = [bytearray(1 << 20) for _ in range(10_000)]", limits=Limits(memory_mb=64)),
    ]
    with Sandbox(SandboxConfig(workers=2, recycle=2000)) as sandbox:
        sandbox.run([QUICK] * 50)
        zygotes = [zygote_of(sandbox, index) for index in range(2)]
        before = open_descriptors(), mounts()
        wrong = 0
        for batch in range(20):
            programs = [hostile[(batch + index) % len(hostile)] if index % 10 == 0 else QUICK for index in range(500)]
            outcomes = sandbox.run(programs)
            wrong += sum(
                (outcome.status == "ok") != (program is QUICK) for outcome, program in zip(outcomes, programs, strict=True)
            )
        assert wrong == 0
        wait_until(lambda: not any(worker.running for worker in sandbox.backend._workers))  # type: ignore[attr-defined]
        below = psutil.Process().children(recursive=True)
        assert len(below) <= 8, below
        assert open_descriptors() <= before[0] + 8 and mounts() == before[1]
        del zygotes


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mounts() -> int:
    """Those that could be ours: others come and go on a busy machine."""
    with open("/proc/self/mounts") as file:
        return sum("nr_inodes=" in line for line in file)
