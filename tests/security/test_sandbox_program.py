"""Programs of several processes that want more than the limits of one: each is stopped, and told by which limit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fugu.coding.sandbox import Limits, Outcome, Program, Sandbox, SandboxConfig, worker
from fugu.coding.sandbox.probe import examine
from fugu.errors import SandboxError
from tests.timing import TooSlow

CPU_S, MEMORY_MB = 0.6, 400
OVERSHOOT_S, OVERSHOOT_MB = 0.3, 250
"""what a machine that is busy otherwise lets programs take between two looks; on one that is not it is a tenth of that"""


@pytest.fixture(scope="module", params=["compiled", pytest.param("python", marks=pytest.mark.slow)])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    try:
        report = examine()
    except SandboxError as error:
        pytest.skip(str(error))
    if report.level < 3:
        pytest.skip(f"level 3 is needed: {report.missing}")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(worker, "library", lambda: "")
        elif not worker.library():
            pytest.skip("the loop in C was not built")
        with Sandbox(SandboxConfig(workers=1)) as opened:
            yield opened


def run(sandbox: Sandbox, source: str, **limits: float) -> Outcome:
    most = Limits(**{"processes": 32, "cpu_s": CPU_S, "wall_s": 30.0, "memory_mb": MEMORY_MB, **limits})  # type: ignore[arg-type]
    (outcome,) = sandbox.run([Program(source=(START + source).encode(), profile="program", limits=most)])
    return outcome


START = """
import ctypes, mmap, os, signal, subprocess, sys, threading, time

def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

def take(megabytes):
    taken = bytearray(megabytes << 20)
    for place in range(0, len(taken), 4096):
        taken[place] = 1
    return taken

def child(action, *arguments):
    pid = os.fork()
    if pid == 0:
        try:
            kept = action(*arguments)  # in a name: else what was taken is given back before the sleep
            if kept:
                time.sleep(30)
        finally:
            os._exit(0)
    return pid

def daemon(action, *arguments):
    def detached():
        os.setsid()
        child(action, *arguments)
    os.waitpid(child(detached), 0)
"""

TOO_LONG = {
    "side by side": "for pid in [child(burn, 1) for _ in range(10)]: os.waitpid(pid, 0)",
    "one after the other": "for _ in range(10): os.waitpid(child(burn, 1), 0)",
    "short ones, one after the other": "for _ in range(500): os.waitpid(child(burn, 0.02), 0)",
    "daemons": "for _ in range(10): daemon(burn, 1)\ntime.sleep(30)",
    "daemons and the program": "for _ in range(10): daemon(burn, 1)\nburn(0.3)\ntime.sleep(30)",
    "nobody waits": "for pid in [child(burn, 1) for _ in range(10)]: time.sleep(1)",
    "in threads of children": """
def many():
    for _ in range(3): threading.Thread(target=burn, args=(30,)).start()
    return True
for _ in range(4): child(many)
time.sleep(30)
""",
    "generations": """
def generation(left):
    burn(0.02)
    if left: child(generation, left - 1)
for _ in range(3): child(generation, 500)
time.sleep(30)
""",
}


@pytest.mark.parametrize("source", TOO_LONG.values(), ids=TOO_LONG)
def test_the_cpu_time_of_all_processes_is_limited(sandbox, source):
    outcome = run(sandbox, source)
    assert (outcome.status, outcome.detail) == ("time_limit", f"used more than {CPU_S:g} s of CPU time"), outcome
    if outcome.cpu_s > CPU_S + OVERSHOOT_S:
        raise TooSlow(f"{outcome.cpu_s:.2f} s of CPU time, limit {CPU_S} s")


NOBODY_MAY_WAIT = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # what they used is added to nobody's account
while True:
    try: child(burn, 0.005)
    except OSError: time.sleep(0.001)
"""


def test_the_cpu_time_of_processes_that_nobody_may_wait_for_is_limited(sandbox):
    """Most of them come and go between two looks, so what they used is an estimate."""
    outcome = run(sandbox, NOBODY_MAY_WAIT)
    assert (outcome.status, outcome.detail) == ("time_limit", f"used more than {CPU_S:g} s of CPU time"), outcome


TOO_MUCH = {
    "side by side": "for _ in range(20): child(take, 50)\ntime.sleep(30)",
    "daemons": "for _ in range(20): daemon(take, 50)\ntime.sleep(30)",
    "slowly": "for _ in range(20):\n    child(take, 50)\n    time.sleep(0.02)\ntime.sleep(30)",
    "copies of what they had in common": """
def change():
    for place in range(0, len(common), 4096): common[place] = 2
    return common
common = take(50)
for _ in range(19): child(change)
time.sleep(30)
""",
    "held by a thread that outlives the first": """
def hold():
    threading.Thread(target=lambda: (take(50), time.sleep(30))[0]).start()
    ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)
for _ in range(15): child(hold)
time.sleep(30)
""",
    "while others come and go": """
def churn():
    while True: os.waitpid(child(int), 0)
for _ in range(2): child(churn)
for _ in range(20): child(take, 50)
time.sleep(30)
""",
    "under another's name": """
ctypes.CDLL(None).prctl(15, b"\\x0bNSpid: 1 1 1", 0, 0, 0)
for _ in range(20): child(take, 50)
time.sleep(30)
""",
}


@pytest.mark.parametrize("source", TOO_MUCH.values(), ids=TOO_MUCH)
def test_the_memory_of_all_processes_is_limited(sandbox, source):
    outcome = run(sandbox, source, cpu_s=5)
    assert (outcome.status, outcome.detail) == ("memory_limit", f"its processes needed more than {MEMORY_MB} MB together"), (
        outcome
    )
    if outcome.max_rss_mb > MEMORY_MB + OVERSHOOT_MB:
        raise TooSlow(f"{outcome.max_rss_mb:.0f} MB, limit {MEMORY_MB} MB")


FINE = {
    "common memory": "common = take(250)\nfor pid in [child(time.sleep, 0.2) for _ in range(8)]: os.waitpid(pid, 0)",
    "a shell": "common = take(250)\nfor _ in range(20): subprocess.run(['/bin/sh', '-c', 'true'], check=True)",
    "one after the other": "for _ in range(20): os.waitpid(child(lambda: take(50) and None), 0)",
    "many": "for _ in range(200): os.waitpid(child(int), 0)",
    "many that nobody waits for": """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(8): child(time.sleep, 0.1)
time.sleep(0.3)
""",
}


@pytest.mark.parametrize("source", FINE.values(), ids=FINE)
def test_what_processes_have_in_common_or_one_after_the_other_counts_once(sandbox, source):
    outcome = run(sandbox, source, cpu_s=5)
    assert outcome.status == "ok", outcome


def test_the_time_of_children_is_in_the_outcome(sandbox):
    outcome = run(sandbox, "for pid in [child(burn, 0.1) for _ in range(3)]: os.waitpid(pid, 0)", cpu_s=5)
    assert outcome.status == "ok" and 0.3 <= outcome.cpu_s < 0.6, outcome
