"""Cases that take more than one program: what one leaves for the next, or for one beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fugu.coding.sandbox.contract import Call, Limits, Outcome, Program
from tests.coding.sandbox.arena import Arena
from tests.coding.sandbox.backends import BACKENDS, arena
from tests.coding.sandbox.case import CALL, TRY
from tests.timing import in_time

SLOW = ("docker", "podman", "gvisor", "bubblewrap", "subprocess", "fork-2", "fork-1")


def of(*numbers: int) -> Callable[[Any], Any]:
    """The numbers in the list of cases that a test stands for."""

    def mark(test: Any) -> Any:
        test.numbers = numbers
        return test

    return mark


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in BACKENDS]
)
def opened(request: pytest.FixtureRequest) -> Iterator[Arena]:
    with arena(request.param) as opened:
        yield opened


def needs(opened: Arena, protection: str) -> None:
    if protection in opened.gaps:
        pytest.skip(f"{opened.backend.name}: not provided: {protection}: {opened.gaps[protection]}")


def timeless(outcome: Outcome) -> Outcome:
    """The record without what is never twice the same."""
    return dataclasses.replace(outcome, cpu_s=0.0, wall_s=0.0, max_rss_mb=0.0)


LEAVE = (
    TRY
    + """
import random
random.seed(5)
for name in ("left.txt", "json.py", "sitecustomize.py", "usercustomize.py", "left.pth", "/tmp/left", "/dev/shm/left", "/var/tmp/left"):
    try:
        open(name, "w").write("raise SystemExit('ESCAPED planted')")
    except OSError:
        pass
import json, builtins
json.left = builtins.left = os.environ["LEFT"] = "ESCAPED"
import time
time.sleep(@WAIT@)
"""
)

LOOK = """
import builtins, os, sys, random
sys.path.insert(0, "")
import json
found = [name for name in (json, builtins) if hasattr(name, "left")]
for place in (".", "/tmp", "/dev/shm", "/var/tmp"):
    try:
        found += [name for name in os.listdir(place) if name in ("left.txt", "json.py", "left.pth", "left", "sitecustomize.py")]
    except OSError:
        pass
print(found, os.environ.get("LEFT"), random.random())
"""


@of(25, 35, 74)
def test_a_run_does_not_see_what_another_left(opened: Arena) -> None:
    needs(opened, "disk")
    look = Program(source=LOOK.encode())
    (alone,) = opened.run([look])
    assert alone.stdout.startswith(b"[] None ")
    (left,) = opened.run([Program(source=LEAVE.replace("@WAIT@", "0").encode())])
    assert left.status == "ok"
    assert [timeless(each) for each in opened.run([look] * 4)] == [timeless(alone)] * 4


@of(25)
def test_a_run_does_not_see_what_another_has_beside_it(opened: Arena) -> None:
    needs(opened, "disk")
    leave = Program(source=LEAVE.replace("@WAIT@", "0.3").encode())
    look = Program(source=b"import time\ntime.sleep(0.1)\n" + LOOK.encode())
    _, seen, _, also = opened.run([leave, look, leave, look])
    assert seen.stdout.startswith(b"[] None ") and seen.stdout == also.stdout


SHARE = CALL + (
    """
libc.shmat.restype = ctypes.c_void_p
made = libc.shmget(777, 4096, 0o1666)
import time
time.sleep(0.3)
if made >= 0:
    libc.shmctl(made, 0, None)
"""
)
FIND = CALL + "import time\ntime.sleep(0.1)\nprint('ESCAPED' if libc.shmget(777, 0, 0) >= 0 else 'denied')\n"


@of(39)
def test_two_runs_share_no_memory(opened: Arena) -> None:
    needs(opened, "ipc")
    _, found = opened.run([Program(source=SHARE.encode()), Program(source=FIND.encode())])
    assert b"ESCAPED" not in found.stdout


LISTEN = "import signal, time\nsignal.signal(signal.SIGUSR1, lambda *a: print('ESCAPED', flush=True))\ntime.sleep(0.4)\nprint('done')"
SIGNAL = "import os, signal, time\ntime.sleep(0.15)\ntry:\n    os.kill(-1, signal.SIGUSR1)\nexcept OSError:\n    pass"


@of(42)
def test_a_signal_to_everyone_reaches_no_other_run(opened: Arena) -> None:
    needs(opened, "others")
    heard, _ = opened.run([Program(source=text.encode()) for text in (LISTEN, SIGNAL)])
    assert heard.stdout == b"done\n"


HOLD = "import fcntl, os, time\nfile = open(os.__file__)\ntry:\n    @LOCK@\nexcept OSError:\n    pass\ntime.sleep(0.4)\n"
WAIT = (
    "import fcntl, os, time\ntime.sleep(0.15)\nfile = open(os.__file__)\ntry:\n    @LOCK@\nexcept BlockingIOError:\n"
    "    print('ESCAPED')\nexcept OSError:\n    print('denied')\n"
)


@of(40)
@pytest.mark.parametrize(
    "lock", ["fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)", "fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)"]
)
def test_locks_on_files_that_all_can_read_are_no_channel(opened: Arena, lock: str) -> None:
    needs(opened, "ipc")
    needs(opened, "kernel")
    _, waited = opened.run([Program(source=text.replace("@LOCK@", lock).encode()) for text in (HOLD, WAIT)])
    assert b"ESCAPED" not in waited.stdout


LETTER = """
import fcntl, os
for write in (
    lambda: fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_NONBLOCK | os.O_APPEND),
    lambda: os.fchmod(0, 0o123),
    lambda: os.utime(0, ns=(77, 77)),
):
    try:
        write()
    except OSError:
        pass
"""
READ = """
import fcntl, os
about = os.fstat(0)
flags = fcntl.fcntl(0, fcntl.F_GETFL) & (os.O_NONBLOCK | os.O_APPEND)
left = [flags, about.st_mode & 0o777 == 0o123, 77 in (about.st_atime_ns, about.st_mtime_ns)]
print("ESCAPED" if any(left) else "nothing", left)
"""


@of(40)
def test_the_standard_input_is_no_letter_box(opened: Arena) -> None:
    needs(opened, "ipc")
    opened.run([Program(source=LETTER.encode())] * 4)
    assert {each.stdout[:7] for each in opened.run([Program(source=READ.encode())] * 4)} == {b"nothing"}


@of(62)
def test_counters_do_not_go_from_one_test_to_the_next(opened: Arena) -> None:
    counter = b"import builtins\nbuiltins.n = getattr(builtins, 'n', 0) + 1\ndef f():\n    return builtins.n"
    outcomes = opened.run([Program(source=counter, calls=(Call("f"),))] * 5)
    assert [each.results for each in outcomes] == [(b"1",)] * 5


@of(71)
def test_randomness_comes_from_the_seed(opened: Arena) -> None:
    source = b"import random\nprint(random.random(), {'a', 'b', 'c'}, hash('x'))"
    first, again, other = opened.run([Program(source=source, seed=seed) for seed in (1, 1, 2)])
    assert first.stdout == again.stdout != other.stdout


@of(76)
def test_two_sandboxes_of_one_machine_are_apart(opened: Arena) -> None:
    needs(opened, "disk")
    with arena("fork", workers=1) as other:
        leave = Program(source=LEAVE.replace("@WAIT@", "0.3").encode())
        opened.backend.submit(1000, leave)
        (seen,) = other.run([Program(source=LOOK.encode())])
        assert seen.stdout.startswith(b"[] None ")
        while not opened.backend.collect(1.0):
            pass


@of(79)
def test_deadlines_do_not_depend_on_the_time_of_day(opened: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of this process jumps an hour with every look at it; those of workers cannot be moved without privileges."""
    jumps = iter(range(0, 10**9, 3600))
    monkeypatch.setattr("time.time", lambda: float(next(jumps)))
    limits = Limits(cpu_s=0.2, wall_s=0.4)
    late, fine = opened.run(
        [Program(source=b"import time\ntime.sleep(9)", limits=limits), Program(source=b"print(1)", limits=limits)]
    )
    assert (late.status, fine.status) == ("time_limit", "ok")
    assert late.wall_s > 0.3
    in_time(late.wall_s, 1.4)
