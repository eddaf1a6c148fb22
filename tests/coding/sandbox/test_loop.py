"""The loop of a zygote, and what its forks do: in C, and in Python as the reference."""

from __future__ import annotations

import signal
import sys

import pytest

from fugu.coding.sandbox import Limits, Program, Sandbox, SandboxConfig, loop, probe, wire, worker, zygote
from fugu.errors import SandboxError

pytestmark = pytest.mark.usefixtures("sandbox")

ENDS = [
    "raise SystemExit",
    "import sys; print('out'); sys.exit('last words')",
    "import sys; sys.exit(300)",
    "import sys; print('kept'); sys.stdout = None",
    "import sys; print('kept'); del sys.stdout",
    "import sys; print('kept'); sys.stdout.close()",
    "import io, sys; print('kept'); sys.stdout = io.StringIO(); print('lost')",
    "import atexit; atexit.register(print, 'bye'); atexit.register(int, 'x'); print('hello')",
    "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start(); print('early')",
    "def f(n): return f(n - 1) if n else 1 / 0\nf(3)",
    "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
    "raise KeyboardInterrupt",
    "def f():\n    out = open(1, 'w', closefd=False)\n    out.write('kept')\n    raise SystemExit\nf()",
    "def f():\n    out = open(1, 'w', closefd=False)\n    out.write('kept')\n    1 / 0\nf()",
    "class E(SystemExit):\n    code = property(lambda self: 1 / 0)\nraise E",
    "import traceback; traceback.print_exception = None; 1 / 0",
    "import os; os.close(2); 1 / 0",
    "import sys; sys.excepthook = None; 1/0",
    "x = (",
    "x = '\\0'\nprint(repr(x), __name__, __builtins__.__name__, sorted(globals()))",
    "import gc; print(gc.isenabled(), len(gc.get_objects()) < 99)",
    "import sys; print(sys.argv, sys.modules['__main__'].__dict__ is globals())",
]
"""ways to end, and what there is to be found"""


@pytest.mark.slow
def test_both_loops_give_the_same_outcomes(monkeypatch, no_leaks):
    """The one in C and the one in Python that it was written after."""
    if not worker.library():
        pytest.skip("the loop in C was not built")
    sources = [
        "import sys; print(sys.stdin.read())",
        "1/0",
        "while True: pass",
        "import time; time.sleep(9)",
        "bytearray(10**9)",
        "while True: print('x' * 9999)",
        "import os; print(os.getpid(), os.getsid(0), os.getcwd())",
        "import resource; print([resource.getrlimit(k) for k in range(16)])",
        "import os; print(os.listdir('/'), os.listdir('/tmp'), os.statvfs('/tmp').f_flag, os.statvfs('/tmp').f_files, os.getuid())",
        "open('/tmp/a', 'wb').write(bytes(9 << 20))",
        "import signal; print(signal.pthread_sigmask(0, []), [signal.getsignal(n) for n in (2, 13, 17)])",
        "import os; os.fork()",
        "import socket; socket.socket()",
        "import random; print(random.random())",
        "import ctypes; print([ctypes.CDLL(None).prctl(n, 0, 0, 0, 0) for n in (15, 16, 39)])",
        *ENDS,
    ]
    limits = Limits(cpu_s=0.2, wall_s=2.0, memory_mb=300, open_files=30, file_mb=3, disk_mb=8)
    programs = [
        Program(source=source.encode(), stdin=b"in" * 40_000, limits=limits, seed=3, profile=profile)
        for source in sources
        for profile in ("compute", "program")
    ]
    found = []
    for compiled in (True, False):
        if not compiled:
            monkeypatch.setattr(worker, "library", lambda: "")
        with Sandbox(SandboxConfig(workers=1, in_flight=4)) as both:
            outcomes = both.run(programs)
        found.append([(o.status, o.detail, o.stdout[:30_000], o.stderr, o.exit_code, o.signal, o.truncated) for o in outcomes])
    assert found[0] == found[1]


def test_an_interpreter_of_another_kind_does_without_the_compiled_loop(monkeypatch):
    """Without the global lock: its objects are larger, so the module would write where something else is."""
    monkeypatch.setattr(sys, "abiflags", "t")
    assert zygote._load(worker.library()) is None
    monkeypatch.setattr(sys, "abiflags", "")
    assert (zygote._load(worker.library()) is not None) == bool(worker.library())
    assert zygote._load(__file__) is None


def test_an_interpreter_that_lacks_what_programs_need_is_refused_at_once(tmp_path):
    """Instead of one worker after the other that says hello and dies, and programs that are never scored."""
    if not worker.library():
        pytest.skip("what is taken away here is needed by the loop in C only")
    other = tmp_path / "python"
    python = " ".join([sys.executable, *worker.FLAGS])
    other.write_text(f'#!/bin/sh\nboot=$8\nshift 8\nexec {python} -c "import atexit; del atexit._ncallbacks\n$boot" "$@"\n')
    other.chmod(0o755)
    with pytest.raises(SandboxError, match=r"a worker did not start: AttributeError: .*_ncallbacks"):
        Sandbox(SandboxConfig(workers=1, python=str(other)))


def test_programs_find_nothing_of_ours_imported(run):
    outcome = run("import sys; print([name for name in sys.modules if 'fugu' in name or 'sandbox' in name])")
    assert outcome.stdout == b"[]\n"


@pytest.mark.parametrize("compiled", [True, False])
def test_what_the_manager_does_with_signals_is_not_inherited(monkeypatch, compiled):
    """One that ignores the ends of its children, or keeps them waiting, as daemons and threads of frameworks do."""
    if not compiled:
        monkeypatch.setattr(worker, "library", lambda: "")
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGALRM})
    probe._examine.cache_clear()
    try:
        with Sandbox(SandboxConfig(workers=1)) as deaf:
            ticket = deaf.submit(Program(source=b"import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))"))
            assert [(each, outcome.stdout) for each, outcome in deaf.collect(5.0)] == [(ticket, b"set()\n")]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGCHLD, before)
        probe._examine.cache_clear()


@pytest.fixture
def four(monkeypatch):
    """A server with four programs started at 0, and the CPU time of each, to be set."""
    spent = dict.fromkeys(range(4), 0.0)
    monkeypatch.setattr(loop, "_cpu_time", spent.__getitem__)
    server = object.__new__(loop.Server)
    order = wire.Order(wire.RUN, 0, 9.0, 9.0, *[0] * (len(wire.Order._fields) - 4))
    server.running = {pid: loop._Running(order, 0.0, tree=False) for pid in spent}
    return server, spent


def test_who_had_no_turn_while_others_computed_is_not_taken_for_a_sleeper(four):
    server, spent = four
    spent[0] = spent[1] = 0.006
    assert not server._may_start(0.012)
    spent[2] = spent[3] = 0.006  # the others' turn
    assert not server._may_start(0.024)
    assert [each.state for each in server.running.values()] == [loop._BUSY] * 4


def test_sleepers_take_no_place_soon_after_they_started(four):
    server, spent = four
    assert not server._may_start(0.012)
    assert server._may_start(0.04)
    spent[3] = 0.02
    assert server._may_start(0.06) and [each.state for each in server.running.values()] == [loop._IDLE] * 3 + [loop._BUSY]
