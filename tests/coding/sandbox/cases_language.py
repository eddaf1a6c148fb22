"""Cases 56 to 73: tricks inside the language, and with the answer. What they are worth is decided outside (the judge); here the
sandbox must report them as what they are: a call that was not answered is missing, a program cannot crash or fool the harness."""

from __future__ import annotations

from tests.coding.sandbox.case import BOUNDED, FAILED, QUICK, RAN, STOPPED, TRY, Case, each

CALLED = (("f", "[1]"), ("f", "[2]"))

# each leaves without having answered both calls
EARLY = {
    "sys-exit-at-import": "import sys\nsys.exit(0)",
    "os-exit-at-import": "import os\nos._exit(0)",
    "system-exit-at-import": "raise SystemExit",
    "sys-exit-in-call": "import sys\ndef f(x):\n    sys.exit(0)",
    "os-exit-in-call": "import os\ndef f(x):\n    os._exit(0)",
    "second-call": "import os\ndef f(x):\n    if x == 2:\n        os._exit(0)\n    return x",
    "atexit": "import atexit, os, sys\natexit.register(lambda: os._exit(0))\ndef f(x):\n    sys.exit(0)",
    "thread": "import os, threading, time\nthreading.Timer(0.05, lambda: os._exit(0)).start()\n"
    "def f(x):\n    time.sleep(0.3)\n    return x",
    "generator-exit": "def f(x):\n    raise GeneratorExit",
    "keyboard-interrupt": "def f(x):\n    raise KeyboardInterrupt",
}

EQUALS = """
class Same{parent}:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __bool__(self): return True
def f(x):
    return Same({value})
"""
# what may arrive is the plain value, which is the wrong answer it always was
SUBCLASSES = {"int": ("7", b"7"), "str": ("'no'", b'"no"'), "list": ("[7]", b"[7]"), "float": ("7.5", b"7.5")}

PATCHES = {
    "builtins": "import builtins\nbuiltins.len = builtins.print = builtins.repr = builtins.isinstance = lambda *a, **k: True",
    "json": "import json\njson.dumps = json.loads = lambda *a, **k: '\"forged\"'\njson.JSONEncoder.encode = lambda *a: '1'",
    "operator": "import math, operator\noperator.eq = math.isclose = lambda *a, **k: True",
    "open-and-exec": "import builtins\nbuiltins.open = builtins.exec = builtins.compile = None",
    "sys-modules": "import sys\nsys.modules.clear()",
    "stdio": "import sys\nsys.stdout = sys.stderr = sys.stdin = sys.__stdout__ = None",
    "os-write": "import os\nos.write = os.read = lambda *a: 0",
    "str-methods": "import sys\nsys.setrecursionlimit(20) if False else None\nclass str(str):\n    pass",
}

FORGED = """
import os, json, struct
frames = [b'{"status": "ok", "results": [1, 2]}', b"PASSED" * 100, b"\\xff" * 70000, b"\\0" * 4096]
frames += [struct.pack("<I", 0xFFFFFFFF), struct.pack(">I", 3) + b'"7"', struct.pack("<IB", 3, ord("r")) + b'"7"']
for fd in range(3, 64):
    for frame in frames:
        try:
            os.set_blocking(fd, False)
            os.write(fd, frame)
        except OSError:
            break
"""

# looks for what the harness and an earlier run hold; the pattern must not find itself
SEARCH = """
import gc, re, sys
found = re.compile("CANARY[-]" + "[0-9a-f]{16}")
raw = re.compile(b"CANARY[-]" + b"[0-9a-f]{16}")
seen = set()
def look(where, value):
    if isinstance(value, str) and found.search(value) or isinstance(value, (bytes, bytearray)) and raw.search(value):
        print("ESCAPED", where, value[:200])
for thing in gc.get_objects():
    for inner in gc.get_referents(thing):
        look("gc", inner)
frame = sys._getframe()
while frame:
    for name, value in {**frame.f_globals, **frame.f_locals}.items():
        look("frame", value)
    frame = frame.f_back
for module in list(sys.modules.values()):
    for value in list(vars(module).values()):
        look("module", value)
look("argv", " ".join(sys.argv) + " ".join(getattr(sys, "orig_argv", [])))
try:
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            if "r" not in rights or "v" in line.split()[-1]:
                continue
            begin, end = (int(part, 16) for part in span.split("-"))
            try:
                memory.seek(begin)
                for match in raw.finditer(memory.read(end - begin)):
                    print("ESCAPED memory", line)
            except (OSError, OverflowError, ValueError):
                pass
except OSError:
    pass
"""

STUBBORN = {
    "alarm": "import signal\nsignal.alarm(0)\nsignal.setitimer(signal.ITIMER_REAL, 0)\nwhile True:\n    pass",
    "swallow": "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass",
    "clock": "import time\ntime.time = time.monotonic = time.perf_counter = lambda: 0.0\nwhile True:\n    time.sleep(0.01)",
    "handlers": "import signal\nsignal.signal = lambda *a: None\nwhile True:\n    pass",
    "trace": "import sys\nsys.settrace(lambda *a: None)\nwhile True:\n    pass",
    "excepthook": "import sys, threading\nthreading.excepthook = sys.excepthook = lambda *a: None\nwhile True:\n    pass",
}

# (what is returned, what may end it); values JSON has no word for are an error or a tagged value, never a hang
ODD = {
    "generator": "(i for i in range(3))",
    "endless-iterator": "__import__('itertools').count()",
    "nan": "float('nan')",
    "inf": "float('inf')",
    "minus-zero": "-0.0",
    "nested": "nested()",
    "cyclic": "cyclic()",
    "million-digits": "10 ** 1000000",
    "function": "f",
    "module": "__import__('os')",
    "large": "'x' * 3000000",
    "wide": "list(range(1000000))",
    "bytes-key": "{b'a': 1}",
    "tuple-key": "{(1, 2): 3}",
    "surrogate": "'\\ud800'",
    "huge-set": "set(range(300000))",
}
ODD_SOURCE = """
def nested():
    value = []
    for _ in range(100000):
        value = [value]
    return value
def cyclic():
    value = []
    value.append(value)
    return value
def f(x):
    return {value}
"""

TEXT = {
    "surrogate": "raise ValueError('\\ud800 lone')",
    "nul": "print('a\\0b')\nraise ValueError('a\\0b')",
    "ansi": "print('\\x1b[2J\\x1b[31mred')\nraise ValueError('\\x1b]0;title\\x07\\x1b[2J')",
    "bidi": "print('\\u202e')\nraise ValueError('\\u202e\\u2066 evil')",
    "long": "raise ValueError('\\ufdfa' * 100000)",
    "lines": "raise ValueError('a\\n2026-01-01 INFO all tests passed\\r\\nPASSED %s %d {}')",
    "class-name": "raise type('E\\x1b[31m\\n' * 1000, (Exception,), {})('x')",
    "str-raises": "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
    "str-loops": "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
}

SOURCES: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "latin-1": ("x = 'é'\n".encode("latin-1"), FAILED),
    "latin-1-declared": ("# coding: latin-1\nprint('é')\n".encode("latin-1"), RAN),
    "unknown-coding": (b"# coding: no-such\nprint(1)\n", FAILED),
    "bom": (b"\xef\xbb\xbfprint(1)\n", RAN),
    "form-feed": (b"\x0cprint(1)\n\x0c\n", RAN),
    "tabs": (b"if 1:\n\tprint(1)\n", RAN),
    "mixed-tabs": (b"if 1:\n\tx = 1\n        y = 2\n", FAILED),
    "crlf": (b"x = 1\r\nprint(x)\r\n", RAN),
    "nul": (b"x = 1\0\n", FAILED),
    "empty": (b"", RAN),
    "no-newline": (b"print(1)", RAN),
    "syntax": (b"def f(:\n", FAILED),
    "not-utf8-comment": (b"# \xff\xfe\nprint(1)\n", ("ok", "runtime_error")),
}

REDUCED = """
class Payload:
    def __reduce__(self):
        return (open, ("@WORK@/unpickled", "w"))
def f(x):
    import base64, pickle
    if x == 1:
        return base64.b64encode(pickle.dumps(Payload())).decode()
    return Payload()
"""

# the tester is trusted code in its own process; the candidate answers from another one
TESTER = "assert candidate(1) == 2, 'candidate(1)'\n"
CANDIDATES = {
    "wrong": "def candidate(x):\n    return 3",
    "assertion-error": "import builtins\nbuiltins.AssertionError = Exception\ndef candidate(x):\n    return 3",
    "equal-to-all": EQUALS.format(parent="", value="").replace("def f", "def candidate"),
    "exits": "import os\ndef candidate(x):\n    os._exit(0)",
    "frames": FORGED + "def candidate(x):\n    return 3",
    "unittest": "import unittest\nunittest.TestCase.assertEqual = unittest.TestCase.run = lambda *a: None\n"
    "def candidate(x):\n    return 3",
    "conftest": "try:\n    open('conftest.py', 'w').write('collect_ignore_glob = [\"*\"]')\nexcept OSError:\n    pass\n"
    "def candidate(x):\n    return 3",
    "caller": "import sys\ndef candidate(x):\n    frame = sys._getframe()\n    while frame:\n"
    "        frame.f_globals['candidate'] = lambda x: 2\n        frame = frame.f_back\n    return 3",
    "absent": "x = 1",
}

CASES = [
    *each(56, EARLY, calls=CALLED, statuses=("runtime_error", "violation"), fewer_results=True),
    Case(number=57, name="object", source=EQUALS.format(parent="", value=""), calls=CALLED[:1], statuses=FAILED, results=()),
    *(
        Case(
            number=57,
            name=name,
            source=EQUALS.format(parent=f"({name})", value=value),
            calls=CALLED[:1],
            results=(plain,),
            statuses=RAN,
        )
        for name, (value, plain) in SUBCLASSES.items()
    ),
    *each(
        58,
        {name: patch + "\ndef f(x):\n    return x" for name, patch in PATCHES.items()},
        calls=CALLED,
        statuses=BOUNDED,
        limits=QUICK,
    ),
    *(
        Case(number=59, name=name, source=TESTER, partner=source, statuses=("runtime_error", "violation", "output_limit"))
        for name, source in CANDIDATES.items()
        if name not in ("unittest", "conftest")
    ),
    Case(number=59, name="right-answer-passes", source=TESTER, partner="def candidate(x):\n    return x + 1", statuses=RAN),
    Case(
        number=60, name="forged-frames", source=FORGED + "def f(x):\n    return x", calls=CALLED, statuses=BOUNDED, limits=QUICK
    ),
    Case(number=60, name="forged-frames-stdio", source=FORGED + "print('PASSED')", stdout=b"PASSED\n", statuses=RAN),
    Case(
        number=61,
        name="search",
        source=SEARCH,
        statuses=RAN,
        absent=("ESCAPED", "@CANARY@"),
        limits={"cpu_s": 5.0, "wall_s": 8.0, "memory_mb": 1024},
    ),
    Case(
        number=61,
        name="search-with-calls",
        source=TRY
        + "def f(x):\n    import io, contextlib\n    out = io.StringIO()\n    with contextlib.redirect_stdout(out):\n"
        "        exec(CODE, {})\n    return out.getvalue()\nCODE = " + repr(SEARCH),
        calls=CALLED,
        statuses=RAN,
        results=(b'""', b'""'),
        absent=("@CANARY@",),
        limits={"cpu_s": 5.0, "wall_s": 8.0, "memory_mb": 1024},
    ),
    *each(63, STUBBORN, statuses=STOPPED, limits=QUICK),
    *(
        Case(number=64, name=name, source=TESTER, partner=CANDIDATES[name], statuses=("runtime_error", "violation"))
        for name in ("unittest", "conftest")
    ),
    *each(
        65,
        {name: ODD_SOURCE.replace("{value}", value) for name, value in ODD.items()},
        calls=CALLED[:1],
        statuses=BOUNDED,
        absent=(),
        limits={"cpu_s": 1.0, "wall_s": 2.0},
    ),
    *each(66, TEXT, statuses=("runtime_error", "time_limit"), limits=QUICK),
    *(Case(number=67, name=name, source=source, statuses=statuses) for name, (source, statuses) in SOURCES.items()),
    Case(number=68, name="wrong-name", source="def g(x):\n    return x", calls=CALLED, statuses=FAILED, results=()),
    Case(number=68, name="arity", source="def f(x, y):\n    return x", calls=CALLED, statuses=FAILED, results=()),
    Case(
        number=68,
        name="class",
        source="class f:\n    def __init__(self, x):\n        pass",
        calls=CALLED,
        statuses=FAILED,
        results=(),
    ),
    Case(number=68, name="not-callable", source="f = 3", calls=CALLED, statuses=FAILED, results=()),
    Case(
        number=69,
        name="mutates",
        source="def f(x):\n    x.append(1)\n    return x",
        calls=(("f", "[[1]]"), ("f", "[[1]]")),
        statuses=RAN,
        results=(b"[1,1]", b"[1,1]"),
    ),
    Case(
        number=70,
        name="time-bomb",
        source="import time\nn = 0\ndef f(x):\n    global n\n    n += 1\n    if n > 1:\n        time.sleep(60)\n    return x",
        calls=CALLED,
        statuses=STOPPED,
        results=(b"1",),
        limits=QUICK,
    ),
    Case(number=72, name="pickle", source=REDUCED, calls=CALLED, statuses=FAILED, fewer_results=True),
    Case(
        number=73,
        name="stderr",
        source="import logging, sys\nlogging.error('%s %d {0} \\x1b[31m\\n2026 INFO passed')\n"
        "sys.stderr.write('%n%n%s\\r\\n')\nraise ValueError('%s')",
        statuses=FAILED,
    ),
]
