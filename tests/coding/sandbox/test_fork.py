"""Programs through the fork backend at full isolation: each status, each kind of program, and what a program finds around it.

The long list of attempts to break out is in ``test_conformance.py``, for every backend.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import time
from pathlib import Path

import psutil
import pytest

from fugu.coding.sandbox import Call, Limits, Outcome, Program, Sandbox, SandboxConfig, worker
from fugu.coding.sandbox.values import decode, encode
from tests.timing import in_time

pytestmark = pytest.mark.usefixtures("sandbox")


def test_stdout_and_stderr_come_back_apart(run):
    outcome = run("import sys; print('out'); print('err', file=sys.stderr)")
    assert (outcome.status, outcome.stdout, outcome.stderr, outcome.exit_code) == ("ok", b"out\n", b"err\n", 0)
    assert outcome.isolation.level == 3 and outcome.backend == "fork" and outcome.attempt == 1


def test_stdin_of_any_size_is_read(run):
    text = bytes(range(256)) * 8192  # 2 MB: more than any socket or pipe takes at once
    outcome = run("import sys; print(len(sys.stdin.buffer.read()))", stdin=text)
    assert outcome.stdout == b"%d\n" % len(text)
    assert run("import sys; print(repr(sys.stdin.read()))").stdout == b"''\n"
    assert run("print(int(input()) + int(input()))", stdin=b"1\n2\n").stdout == b"3\n"


def test_an_exception_is_a_runtime_error_named_in_the_detail(run):
    outcome = run("def f():\n    return {}['missing']\nf()")
    assert (outcome.status, outcome.exit_code) == ("runtime_error", 1)
    assert outcome.detail == "KeyError: 'missing'"
    assert b'File "main.py", line 2, in f' in outcome.stderr and b"return {}['missing']" in outcome.stderr
    assert b"child.py" not in outcome.stderr


@pytest.mark.parametrize(
    ("source", "begin"),
    [
        (b"x = (", "SyntaxError: "),
        (b"\xff\xfe", "SyntaxError: "),
        (b"a\0b", ("SyntaxError: ", "ValueError: ")),
        (b"(" * 1000, ("SyntaxError: ", "MemoryError", "RecursionError")),
        (b"  x = 1", "IndentationError: "),
    ],
)
def test_source_that_is_no_python_is_the_programs_error(run, source, begin):
    outcome = run(source)
    assert outcome.status == "runtime_error" and outcome.detail.startswith(begin)


@pytest.mark.parametrize("source", [b"", b"\xef\xbb\xbfprint(1)", b"print(1)\r\nprint(2)\r\n", b"\x0cprint(1)", b"#\n" * 1000])
def test_odd_but_valid_source_runs(run, source):
    assert run(source).status == "ok"


@pytest.mark.parametrize(
    ("source", "code"), [("raise SystemExit", 0), ("exit_code = 3; raise SystemExit(3)", 3), ("import os; os._exit(7)", 7)]
)
def test_exit_codes_are_reported(run, source, code):
    outcome = run(source)
    assert outcome.exit_code == code and (outcome.status == "ok") == (code == 0)


def test_a_program_is_ended_at_its_exact_cpu_time(run):
    outcome = run("while True: pass", cpu_s=0.4, wall_s=10)
    assert outcome.status == "time_limit" and "CPU" in outcome.detail
    assert 0.38 < outcome.cpu_s < 0.8


def test_cpu_time_counts_even_when_every_signal_is_ignored(run):
    source = """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True:
    try:
        while True: pass
    except BaseException: pass
"""
    assert run(source, cpu_s=0.3, wall_s=10).status == "time_limit"


def test_a_sleeper_is_ended_at_its_wall_time(run):
    start = time.monotonic()
    outcome = run("import time; time.sleep(60)", cpu_s=0.1, wall_s=0.5)
    assert outcome.status == "time_limit" and outcome.cpu_s < 0.1
    assert outcome.wall_s >= 0.5
    in_time(outcome.wall_s, 1.5)
    in_time(time.monotonic() - start, 2.5)


def test_memory_is_limited(run):
    assert run("x = bytearray(400 << 20)", memory_mb=256).status == "memory_limit"
    assert run("x = bytearray(100 << 20)", memory_mb=256).status == "ok"
    outcome = run("def f(n): return bytearray(n)", calls=(Call("f", b"[1000000000]"),))
    assert outcome.status == "memory_limit"


def test_output_is_kept_up_to_a_limit_and_a_flood_is_ended(run):
    outcome = run("print('x' * 100_000)", output_kb=10)
    assert (outcome.status, len(outcome.stdout), outcome.truncated) == ("ok", 10 * 1024, True)
    flood = "import sys\nwhile True: sys.{}.write('y' * 100_000)"
    for stream in ("stdout", "stderr"):
        outcome = run(flood.format(stream))
        assert outcome.status == "output_limit" and len(getattr(outcome, stream)) == 64 * 1024
        in_time(outcome.wall_s, 4)


@pytest.mark.parametrize("capacity", [65536, 4096])  # the second where a user has many pipes and is not root
def test_output_that_nobody_reads_does_not_pass_for_slowness(sandbox: Sandbox, monkeypatch, capacity):
    """The process that reads may be away for seconds; a program that is stuck in a full pipe by then wrote too much."""
    pipe2 = os.pipe2

    def small(flags: int) -> tuple[int, int]:
        ends = pipe2(flags)
        fcntl.fcntl(ends[0], fcntl.F_SETPIPE_SZ, capacity)
        return ends

    monkeypatch.setattr(os, "pipe2", small)
    limits = Limits(cpu_s=0.5, wall_s=0.5)
    stuck = sandbox.submit(Program(source=b"while True: print('z' * 1000)", limits=limits))
    slow = sandbox.submit(Program(source=b"import time; print('z' * 1000, flush=True); time.sleep(9)", limits=limits))
    time.sleep(1.0)
    found: dict[int, Outcome] = {}
    while len(found) < 2:
        found |= dict(sandbox.collect(5.0))
    assert found[stuck].status == "output_limit" and found[slow].status == "time_limit"


def test_a_program_that_is_killed_from_outside_is_not_scored():
    """As by a kernel that has run out of memory. One that would have itself killed is scored."""
    with Sandbox(SandboxConfig(workers=1, retries=0)) as alone:
        if alone.isolation.level < 3:
            pytest.skip("without namespaces a program can kill itself")
        (zygote,) = psutil.Process(alone.backend._workers[0].process.pid).children()  # type: ignore[attr-defined]
        ticket = alone.submit(Program(source=b"import time; time.sleep(5)"))
        until = time.monotonic() + 5
        while not zygote.children() and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.1)
        zygote.children()[0].kill()
        assert [(each, o.status, o.detail[:6]) for each, o in alone.collect(5.0)] == [(ticket, "internal_error", "killed")]
        for profile in ("compute", "program"):
            own = b"import resource; resource.setrlimit(resource.RLIMIT_CPU, (0, 0))\nwhile True: pass"
            (outcome,) = alone.run([Program(source=own, profile=profile, limits=Limits(cpu_s=1, wall_s=4))])
            assert (outcome.status, outcome.signal) == ("runtime_error", None)


def test_a_caller_that_is_away_does_not_pass_for_slowness_of_the_program(sandbox: Sandbox):
    limits = Limits(cpu_s=0.3, wall_s=0.4)
    agent = Program(source=b"def f(): return 1", calls=(Call("f"), Call("f")), limits=limits)
    slow = Program(source=b"import time\ntime.sleep(9)\ndef f(): return 1", calls=(Call("f"),), limits=limits)
    asserts = Program(source=b"assert candidate() == 1", partner=agent, limits=limits)
    for program, status in ((agent, "ok"), (asserts, "ok"), (slow, "time_limit")):
        sandbox.submit(program)
        time.sleep(0.8)  # learning something
        ((_, outcome),) = sandbox.collect(10)
        assert outcome.status == status, outcome


def test_a_program_that_waits_for_nobody_is_slow_whoever_is_away(sandbox: Sandbox):
    """The last call is on its way before the one before is answered: what happens then is the program's doing."""
    for calls in ((Call("f"),), (Call("g"), Call("f"))):
        sandbox.submit(
            Program(
                source=b"import time\ndef g(): return 1\ndef f(): time.sleep(9)",
                calls=calls,
                limits=Limits(cpu_s=0.5, wall_s=0.5),
            )
        )
        if len(calls) > 1:
            time.sleep(0.2)
            sandbox.collect(0.0)
        time.sleep(1.0)
        ((_, outcome),) = sandbox.collect(5.0)
        assert outcome.status == "time_limit", outcome


def test_arguments_come_one_call_after_the_other(run):
    """What a program finds on its channel while it answers the first call: nothing, since the second is not yet its business."""
    source = """
import os, select
def f(x): return [x, bool(select.select([3], [], [], 0.05)[0])]
"""
    outcome = run(source, calls=(Call("f", b"[1]"), Call("f", b"[2]")))
    # at the last call the channel is readable: it is at its end
    assert [decode(result) for result in outcome.results] == [[1, False], [2, True]]


def test_functions_are_called_one_after_the_other(run):
    source = "state = []\ndef add(x):\n    state.append(x)\n    return (state, {'n': len(state)})"
    outcome = run(source, calls=(Call("add", encode([1])), Call("add", encode([(2, 3)]))))
    assert outcome.status == "ok"
    assert [decode(result) for result in outcome.results] == [([1], {"n": 1}), ([1, (2, 3)], {"n": 2})]


def test_a_method_is_called_on_a_new_instance(run):
    outcome = run("class Solution:\n    def twice(self, x): return 2 * x", calls=(Call("Solution.twice", b"[21]"),))
    assert outcome.results == (b"42",)


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        ("def f(x): return x.y", "AttributeError: 'int' object has no attribute 'y'"),
        ("def g(x): pass", "AttributeError: module '__main__' has no attribute 'f'"),
        ("def f(): pass", "TypeError: f() takes 0 positional arguments but 1 was given"),
        ("def f(x): return object()", "ValueError: a value of type object cannot be passed on"),
        ("def f(x):\n    y = []\n    y.append(y)\n    return y", "ValueError: nested more than 64 deep"),
        ("import sys\ndef f(x): sys.exit(0)", "exit code 1"),
        ("import os\ndef f(x): os._exit(0)", "ended before it answered call 1"),
        ("raise SystemExit(0)", "ended before it answered call 1"),
        ("def f(x): raise SystemExit", "exit code 1"),
    ],
)
def test_a_call_that_gives_no_value_is_a_runtime_error(run, source, detail):
    outcome = run(source, calls=(Call("f", b"[1]"),))
    assert outcome.status == "runtime_error" and outcome.detail.startswith(detail)
    assert outcome.results == ()


def test_only_plain_data_of_a_result_survives(run):
    source = """
class Same(int):
    __eq__ = lambda self, other: True
    __hash__ = lambda self: 0
    __repr__ = lambda self: '42'
def f(): return [Same(7), {Same(1): Same(2)}]
"""
    (result,) = run(source, calls=(Call("f"),)).results
    assert json.loads(result) == [7, {"__dict__": [[1, 2]]}]


def test_frames_that_nobody_asked_for_are_a_violation(run):
    forged = """
import os, struct
for fd in range(3, 20):
    try: os.write(fd, struct.pack('<BI', 2, 1) + b'1')
    except OSError: pass
"""
    outcome = run(forged + "def f(): return 2", calls=(Call("f"),))
    assert outcome.status == "violation" and outcome.results == ()
    assert run(forged + "print('still here')").stdout == b"still here\n"  # without calls there is no channel


def test_a_result_that_is_too_large_is_not_taken(run):
    outcome = run("def f(): return 'x' * 300_000", calls=(Call("f"),), result_kb=100)
    assert outcome.status == "output_limit" and outcome.results == ()


def test_test_code_calls_the_program_in_another_process(run):
    agent = Program(
        source=b"import os\ndef area(w, h=2): return w * h\ndef pid(): return os.getpid()", calls=(Call("area"), Call("pid"))
    )
    tests = "assert candidate(3) == 6\nassert area(3, h=5) == 15\nassert pid() == 1\nimport os\nassert 'area' in globals()"
    outcome = run(tests, partner=agent)
    assert outcome.status == "ok", outcome
    failing = run("assert candidate(3) == 7, 'not seven'", partner=agent)
    assert (failing.status, failing.detail) == ("runtime_error", "AssertionError: not seven")


def test_exceptions_of_the_program_reach_the_test_code(run):
    agent = Program(
        source=b"class Own(Exception): pass\ndef f(x):\n    raise ValueError('no') if x else Own('mine')", calls=(Call("f"),)
    )
    tests = """
try: candidate(1)
except ValueError as error: assert str(error) == 'no'
try: candidate(0)
except RuntimeError as error: assert str(error) == 'Own: mine'
"""
    assert run(tests, partner=agent).status == "ok"


@pytest.mark.parametrize("kind", ["StopIteration", "StopAsyncIteration", "GeneratorExit"])
@pytest.mark.parametrize(
    "tests", ["assert all(map(lambda x: candidate(x) == 1, [1, 2]))", "for got in map(candidate, [1, 2]):\n    assert got == 1"]
)
def test_an_exception_does_not_pass_for_the_end_of_the_tests(run, kind, tests):
    agent = Program(source=f"def f(x): raise {kind}".encode(), calls=(Call("f"),))
    outcome = run(tests, partner=agent)
    assert (outcome.status, outcome.detail) == ("runtime_error", f"RuntimeError: {kind}:")


@pytest.mark.parametrize(
    ("agent", "status"),
    [
        ("import os\ndef f(): os._exit(0)", "runtime_error"),
        ("import sys\nsys.exit(0)", "runtime_error"),
        ("def f():\n    while True: pass", "time_limit"),
        ("def f(): return 'x' * 2_000_000", "output_limit"),
        ("def f(): print('x' * 3_000_000)", "output_limit"),
        ("class T:\n    def __eq__(self, other): return True\ndef f(): return T()", "runtime_error"),
        ("import os, struct\ndef f():\n    os.write(3, struct.pack('<BI', 7, 0))\n    return 0", "violation"),
    ],
)
def test_a_program_cannot_pass_the_tests_but_by_its_answers(run, agent, status):
    partner = Program(source=agent.encode(), calls=(Call("f"),), limits=Limits(cpu_s=0.3, wall_s=3))
    outcome = run("assert candidate() == 1", partner=partner)
    assert outcome.status == status, outcome


def test_threads_work_and_are_limited(run):
    source = """
import threading, time
done = []
threads = [threading.Thread(target=lambda: (time.sleep(0.05), done.append(1))) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(len(done))
"""
    assert run(source).stdout == b"8\n"
    bomb = (
        "import threading, time\nfor n in range(1000):\n    threading.Thread(target=time.sleep, args=(9,), daemon=True).start()"
    )
    outcome = run(bomb, memory_mb=4096)
    assert outcome.status == "runtime_error" and "can't start new thread" in outcome.detail


def test_processes_are_limited_per_execution(sandbox: Sandbox):
    """Two at once do not share a count, which they would if the limit came before the user namespace."""
    source = """
import os, time
count = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(1); os._exit(0)
        count += 1
except OSError: pass
print(count); time.sleep(0.3)
"""
    program = Program(source=source.encode(), profile="program", limits=Limits(processes=6))
    outcomes = sandbox.run([program, program, program])
    assert [outcome.stdout for outcome in outcomes] == [b"5\n"] * 3


def test_what_a_program_started_ends_with_it(run, sandbox: Sandbox):
    source = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(30)
    time.sleep(30)
print("done", flush=True)
"""
    start = time.monotonic()
    outcome = run(source, profile="program", processes=8)
    assert (outcome.status, outcome.stdout) == ("ok", b"done\n")  # though a grandchild has its stdout open
    in_time(time.monotonic() - start, 3)


def test_compute_starts_no_process(run):
    for call in ("os.fork()", "os.execv('/bin/sh', ['sh'])", "os.posix_spawn('/bin/sh', ['sh'], {})"):
        assert run(f"import os; {call}").detail.startswith("PermissionError"), call


def test_a_program_finds_nothing_but_python_and_an_empty_tmp(run):
    source = """
import os
print(sorted(os.listdir("/")), os.listdir("/tmp"), os.getcwd(), dict(os.environ), os.getpid())
"""
    out = run(source).stdout.decode()
    assert "proc" not in out and "etc" not in out and "[] /tmp {} 1" in out


def test_no_descriptor_is_inherited(run):
    source = """
import os
def is_open(fd):
    try: os.fstat(fd); return True
    except OSError: return False
print([fd for fd in range(0, 1024) if is_open(fd)])
"""
    assert run(source, open_files=64).stdout == b"[0, 1, 2]\n"


def test_nothing_but_tmp_can_be_written(run):
    source = """
import os, sys
for place in ("/x", "/dev/x", os.path.dirname(os.__file__) + "/x", sys.prefix + "/x", "/tmp/x"):
    try:
        open(place, "w").write("x"); print("wrote", place)
    except OSError as error: pass
"""
    assert run(source).stdout == b"wrote /tmp/x\n"
    assert run("import os; print(os.listdir('/tmp'))").stdout == b"[]\n"


def test_devices_are_those_that_do_no_harm(run):
    source = "import os; open('/dev/null', 'w').write('x'); print(sorted(os.listdir('/dev')), len(open('/dev/urandom', 'rb').read(4)))"
    assert run(source).stdout == b"['null', 'random', 'urandom'] 4\n"


def test_times_of_devices_cannot_be_set(run):
    source = """
import os
for name in os.listdir("/dev"):
    try: os.utime("/dev/" + name); print("touched", name)
    except OSError: pass
"""
    assert run(source).stdout == b""


def test_disk_file_size_and_open_files_are_limited(run):
    big = "open('/tmp/a', 'wb').write(b'x' * (3 << 20))"
    assert run(big).status == "ok" and run(big, file_mb=2).detail.startswith("OSError: [Errno 27]")
    many = "for n in range(8):\n    open(f'/tmp/{n}', 'wb').write(b'x' * (1 << 20))"
    assert run(many).status == "ok" and run(many, disk_mb=4).detail.startswith("OSError: [Errno 28]")
    assert run("fs = [open('/dev/null') for _ in range(100)]").detail.startswith("OSError: [Errno 24]")


def test_random_starts_from_the_seed_and_sets_have_one_order(run):
    source = "import random; print(random.random(), list({'a', 'b', 'c', 'd'}))"
    first = run(source, seed=1)
    assert run(source, seed=1).stdout == first.stdout != run(source, seed=2).stdout


def test_executions_leave_nothing_to_the_next(run):
    run("import math, builtins, random; math.pi = 3; builtins.len = None; open('/tmp/left', 'w')")
    assert run("import math, os; print(math.pi, len('ab'), os.listdir('/tmp'))").stdout == b"3.141592653589793 2 []\n"


def test_nothing_of_ours_or_of_other_runs_is_in_memory(run):
    canary = "canary-" + os.urandom(8).hex()
    run(f"text = {canary!r}", stdin=canary.encode())
    source = """
import gc, sys
texts = [o for o in gc.get_objects() if isinstance(o, (list, tuple, dict))]
frame, found = sys._getframe(), []
while frame: found.append(repr(frame.f_locals)); frame = frame.f_back
print("".join(["can", "ary-"]) in repr(texts) + repr(found), [m for m in sys.modules if m.startswith("fugu")])
"""
    assert run(source).stdout == b"False []\n"


def test_exit_handlers_and_threads_are_waited_for_until_the_deadline(run):
    assert run("import atexit; atexit.register(print, 'bye')").stdout == b"bye\n"
    outcome = run("import atexit\n@atexit.register\ndef _():\n    while True: pass", cpu_s=0.3, wall_s=2)
    assert outcome.status == "time_limit"


def test_other_machines_calls_kill(run):
    """x32 numbers reach the same kernel functions past a filter that compares numbers only."""
    if os.uname().machine != "x86_64":
        pytest.skip("x32 is of x86_64")
    outcome = run("import ctypes; print(ctypes.CDLL(None).syscall(0x40000000 + 39))")
    assert outcome.status == "violation" and outcome.stdout == b""


def test_too_large_a_program_is_refused_before_it_runs(run):
    outcome = run(b"#" * 2048, source_kb=1)
    assert outcome.status == "runtime_error" and outcome.detail == "source of 2048 bytes, limit 1 KB"


def test_hostile_text_in_the_detail_cannot_be_taken_for_anything_else(run):
    outcome = run("raise ValueError('\\x1b[31mred\\n\\u202e %s {x}\\x00' + 'a' * 500)")
    assert "\x1b" not in outcome.detail and "\n" not in outcome.detail and len(outcome.detail) < 250


@pytest.mark.slow
def test_many_that_compute_do_not_slow_each_other_into_their_wall_limits():
    """Two dozen at once on one core would take 7 s each; a few at a time they take a second or two."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(usable)})
    try:
        with Sandbox(SandboxConfig(workers=1)) as one_core:
            source = b"import time\nwhile time.process_time() < 0.3: pass"
            outcomes = one_core.run([Program(source=source, limits=Limits(cpu_s=1, wall_s=4))] * 24)
    finally:
        os.sched_setaffinity(0, usable)
    assert {outcome.status for outcome in outcomes} == {"ok"}


def test_slow_programs_do_not_hold_up_quick_ones(sandbox: Sandbox):
    sleepers = [sandbox.submit(Program(source=b"import time; time.sleep(1)")) for _ in range(4)]
    quick = [sandbox.submit(Program(source=b"print(1)")) for _ in range(8)]
    seen: list[int] = []
    while len(seen) < 12:
        seen += [ticket for ticket, _ in sandbox.collect()]
    assert set(seen[:8]) == set(quick) and set(seen[8:]) == set(sleepers)


def test_programs_wait_where_descriptors_run_out(no_leaks):
    used, (soft, hard) = max(map(int, os.listdir("/proc/self/fd"))), resource.getrlimit(resource.RLIMIT_NOFILE)
    with Sandbox(SandboxConfig(workers=1, in_flight=100, retries=0)) as scarce:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 60, hard))
        try:
            outcomes = scarce.run([Program(source=b"import time; time.sleep(0.2)")] * 100)
            assert {outcome.status for outcome in outcomes} == {"ok"}, outcomes[-1]
            assert 0 < scarce.backend.room < 100
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_memory_lies_in_huge_pages_where_there_are_some(sandbox: Sandbox):
    """Seen from outside, in the list of the zygote's memory."""
    available = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if (
        not available.exists()
        or "[never]" in available.read_text()
        or tuple(map(int, os.uname().release.split(".")[:2])) < (6, 1)
    ):
        pytest.skip("there are none, or the kernel cannot say so")
    if not worker.library():
        pytest.skip("the loop in C was not built")
    outer = psutil.Process(sandbox.backend._workers[0].process.pid)  # type: ignore[attr-defined]
    zygote = (outer.children() or [outer])[0]
    try:
        lines = Path(f"/proc/{zygote.pid}/maps").read_text().splitlines()
    except PermissionError:
        pytest.skip("only root may look into it")
    assert sandbox.run([Program(source=b"print(1)")])[0].status == "ok"
    # The interpreter's code is not the file's any more.
    code = [line.split() for line in lines if line.split()[1] == "r-xp"]
    assert max(_size(words[0]) for words in code if len(words) == 5) >= 1 << 20
    assert max(_size(words[0]) for words in code if len(words) > 5) < 1 << 20


def _size(addresses: str) -> int:
    start, end = (int(each, 16) for each in addresses.split("-"))
    return end - start
