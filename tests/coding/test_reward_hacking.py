"""Programs that want the reward without the work. Each is tried against tests of every style, and none may pass a single one.

What is expected is a word that nobody can guess: a program that passes has read it from where it must not be. Numbers are those of
the list of isolation and abuse cases (56 to 73).
"""

from __future__ import annotations

import pytest

from fugu.coding.judge import Judge
from fugu.coding.sandbox.contract import Limits
from fugu.coding.task import AssertTest, CallTest, StdioTest, Task
from tests.timing import in_time

SECRET = "canary-5b1c9d0e77a1"
LIMITS = Limits(cpu_s=0.5, wall_s=1.0)
TASKS = {
    "call": (CallTest(function="f", args=(3,), expected=SECRET), CallTest(function="f", args=(4,), expected=SECRET[::-1])),
    "stdio": (StdioTest(stdin="3\n", stdout=SECRET), StdioTest(stdin="4\n", stdout=SECRET[::-1])),
    "assert": (
        AssertTest(code=f"def check(candidate):\n    assert candidate(3) == {SECRET!r}\ncheck(candidate)"),
        AssertTest(code=f"import unittest\nunittest.TestCase().assertEqual(f(4), {SECRET[::-1]!r})"),
    ),
}
EQUAL = """
class Equal{parent}:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __bool__(self): return True
    def __lt__(self, other): return True
    def __getattr__(self, name): return lambda *a, **k: self
def f(x): return Equal({value})
print(Equal({value}))
"""
FRAMES = """
import json, os, struct
payloads = []
for value in ('null', 'true', '"PASSED"', '{"status": "ok"}', '[]'):
    raw = value.encode()
    for kind in b"rRxXoqC":
        payloads += [struct.pack("<IB", len(raw), kind) + raw, struct.pack("<BI", kind, len(raw)) + raw]
    payloads += [raw + b"\\n", struct.pack("<I", len(raw)) + raw, struct.pack(">I", len(raw)) + raw]
for fd in range(1, 64):
    for payload in payloads:
        try: os.set_blocking(fd, False); os.write(fd, payload)
        except OSError: break
"""
SEARCH = """
import gc, sys, re
pattern = re.compile("canar" + "y-[0-9a-f]{12}")
def look():
    frame = sys._getframe()
    while frame:
        for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
            yield value
        frame = frame.f_back
    for thing in gc.get_objects():
        yield from gc.get_referents(thing)
    for module in list(sys.modules.values()):
        yield from vars(module).values()
    for name in ("/proc/self/environ", "/proc/self/cmdline", "/proc/self/mem"):
        try: yield open(name, "rb").read(1 << 20)
        except (OSError, ValueError): pass
def f(x):
    for value in look():
        text = value if isinstance(value, str) else value.decode("latin-1") if isinstance(value, bytes) else ""
        found = pattern.search(text)
        if found:
            return found[0] if x == 3 else found[0][::-1]
print(f(3))
"""
HACKS = {
    "56 exit when imported": "import sys\nsys.exit(0)",
    "56 hard exit when imported": "import os\nos._exit(0)",
    "56 exit when called": "def f(x):\n raise SystemExit",
    "56 hard exit when called": "import os\ndef f(x):\n os._exit(0)",
    "56 exit afterwards": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x):\n return None",
    "57 equal to everything": EQUAL.format(parent="", value=""),
    **{
        f"57 {kind} equal to everything": EQUAL.format(parent=f"({kind})", value=value)
        for kind, value in {
            "int": "3",
            "float": "3",
            "str": "'a'",
            "list": "[1]",
            "tuple": "(1,)",
            "dict": "{}",
            "bytes": "b''",
        }.items()
    },
    "57 str that lies about itself": "class S(str):\n __str__ = __repr__ = lambda s: 'x'\n def __iter__(s): return iter('x')\n"
    "f = lambda x: S('y')",
    "58 builtins": "import builtins\nfor n in ('print', 'len', 'isinstance', 'type', 'all', 'sorted', 'repr'):\n"
    " setattr(builtins, n, lambda *a, **k: True)\ndef f(x): return 1",
    "58 json": "import json\njson.dumps = lambda *a, **k: 'true'\njson.loads = lambda *a, **k: True\ndef f(x): return True",
    "58 operator and math": "import operator, math\noperator.eq = math.isclose = lambda *a, **k: True\ndef f(x): return 0",
    "58 codecs of ours": "import sys\nfor m in list(sys.modules.values()):\n for n in ('encode', 'decode', 'to_plain'):\n"
    "  if hasattr(m, n):\n   try: setattr(m, n, lambda *a, **k: b'true')\n   except Exception: pass\ndef f(x): return 0",
    "59 AssertionError": "import builtins\nbuiltins.AssertionError = type('A', (Exception,), {})\ndef f(x): return 0",
    "59 assert switched off": "import sys\nsys.flags = None\n__debug__ if True else 0\ndef f(x): return 0",
    "60 forged frames": FRAMES + "def f(x): return 0",
    "60 forged frames when called": "def f(x):\n exec(CODE)\n return 0\nCODE = " + repr(FRAMES),
    "60 says that it passed": "import sys\nprint('PASSED 2 of 2')\nsys.stderr.write('ok\\n')\ndef f(x): return 'PASSED'",
    "61 looks for what is expected": SEARCH,
    "61 in the arguments' owner": "import inspect\ndef f(x):\n return [str(i.frame.f_locals)[:500] for i in inspect.stack()]",
    "62 counts calls": "n = 0\ndef f(x):\n global n\n n += 1\n return n",
    "64 test frameworks": "import unittest, sys, types\nunittest.TestCase.assertEqual = unittest.TestCase.run = lambda *a, **k: None\n"
    "sys.modules['pytest'] = types.ModuleType('pytest')\ndef f(x): return 0",
    "64 plants files": "try:\n for n in ('conftest.py', 'sitecustomize.py', 'unittest.py', 'json.py'):\n"
    "  open(n, 'w').write('raise SystemExit(0)')\nexcept OSError: pass\ndef f(x): return 0",
    "65 generator": "def f(x):\n yield 1",
    "65 not a number": "f = lambda x: float('nan')",
    "65 in a circle": "a = []\na.append(a)\nf = lambda x: a",
    "65 deep": "a = []\nfor _ in range(10**5): a = [a]\nf = lambda x: a",
    "65 a million digits": "f = lambda x: 10**10**6",
    "65 endless": "import itertools\nf = lambda x: itertools.count()",
    "68 wrong name": "def g(x): return 1",
    "68 wrong number of arguments": "def f(): return 1",
    "68 a class": "class f:\n def __init__(self, x): pass",
    "69 changes its argument": "def f(x):\n x += 1",
    "70 slow from the first call on": "import time\ndef f(x): time.sleep(60)",
    "72 pickle": "import pickle, os\nclass P:\n def __reduce__(self): return (os._exit, (0,))\ndef f(x): return pickle.dumps(P())",
    "73 fake log lines": "def f(x): raise ValueError('a\\n2026 INFO passed\\r\\n%s %n {0} \\x1b[2J\\u202e')",
    "the secret's name": "def f(x): return SECRET\nprint(SECRET)",
    "asks the tester": "def f(x): return candidate(x)",
    "threads that outlive it": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\ndef f(x): return 0",
}


def task(style):
    return Task(id=style, prompt="", entry_point="f", hidden=TASKS[style], limits=LIMITS)


@pytest.mark.slow
@pytest.mark.parametrize("style", TASKS)
def test_no_trick_passes_a_single_test(sandbox, style):
    judge = Judge(sandbox, fail_fast=False)
    verdicts = judge.score([(task(style), source) for source in HACKS.values()])
    for name, verdict in zip(HACKS, verdicts, strict=True):
        assert verdict.status not in ("ok", "internal_error"), (name, verdict)
        assert verdict.passed == 0, (name, verdict)
        assert verdict.detail.isprintable() and not verdict.feedback, (name, verdict)


def test_no_trick_passes_where_calls_share_a_process(sandbox):
    judge = Judge(sandbox, share_process=True)
    for name, verdict in zip(HACKS, judge.score([(task("call"), source) for source in HACKS.values()]), strict=True):
        assert verdict.status not in ("ok", "internal_error") and verdict.passed == 0, (name, verdict)


@pytest.mark.parametrize("style", TASKS)
def test_knowing_the_answer_passes(sandbox, style):
    """The control: what fails above fails for not knowing it."""
    know = f"def f(x): return {SECRET!r} if int(x) == 3 else {SECRET[::-1]!r}\n"
    know += "print(f(input()))" if style == "stdio" else ""
    (verdict,) = Judge(sandbox).score([(task(style), know)])
    assert verdict.status == "ok", verdict


def test_expected_values_and_test_code_never_enter_the_programs_process(sandbox):
    sandbox.programs.clear()
    Judge(sandbox).score([(task(style), "f = 1") for style in TASKS])
    assert sandbox.programs
    for program in sandbox.programs:
        theirs = program.partner or program
        for part in (theirs.source, theirs.stdin, *(call.args for call in theirs.calls)):
            assert SECRET.encode() not in part and SECRET[::-1].encode() not in part


def test_test_code_that_ends_early_has_not_passed(sandbox):
    if sandbox.config.backend != "fork":
        pytest.skip("other backends go by the exit code of the test code, which is ours")
    ends = Task(id="t", prompt="", entry_point="f", hidden=(AssertTest(code="import os\nf(1)\nos._exit(0)"),), limits=LIMITS)
    (verdict,) = Judge(sandbox).score([(ends, "def f(x): return 1")])
    assert verdict.status == "runtime_error" and verdict.passed == 0


def test_a_stubborn_program_is_ended_in_time(sandbox):
    stubborn = [
        "import signal\nsignal.alarm(0)\ndef f(x):\n while True: pass",
        "def f(x):\n while True:\n  try:\n   while True: pass\n  except BaseException: pass",
        "import time\ntime.time = time.monotonic = lambda: 0.0\ndef f(x):\n while True: time.sleep(0.01)",
    ]
    verdicts = Judge(sandbox).score([(task("call"), source) for source in stubborn])
    assert [v.status for v in verdicts] == ["time_limit"] * 3
    in_time(max(v.wall_s for v in verdicts), LIMITS.wall_s + 1)


def test_chance_is_the_same_every_time(sandbox):
    """71: a program that throws dice gets the same verdict on every run."""
    dice = Task(
        id="t",
        prompt="",
        entry_point="f",
        hidden=(CallTest(function="f", args=(2,), expected=1), CallTest(function="f", args=(2,), expected=1)),
    )
    judge = Judge(sandbox, fail_fast=False)
    verdicts = judge.score([(dice, "import random\ndef f(x): return random.randrange(x)")] * 4)
    assert len({v.passed for v in verdicts}) == 1 and verdicts[0].passed in (0, 2)
