"""Programs that would use what test code shares with them: every way across is tried once, and none earns what was not worked for."""

from __future__ import annotations

import pytest

from fugu.coding.judge import Judge
from fugu.coding.sandbox.contract import Limits
from fugu.coding.task import AssertTest, Task
from tests.timing import in_time

SECRET = "canary-77c1e05ab2d4"
LIMITS = Limits(cpu_s=0.3, wall_s=1.0, memory_mb=256)
LIES = """
 def __eq__(self, other): return True
 def __ne__(self, other): return False
 def __hash__(self): return 0
 def __lt__(self, other): return True
 def __bool__(self): return True
 def __len__(self): return 1
 def __contains__(self, other): return True
 def __getitem__(self, k): return self
 def __getattr__(self, name): return lambda *a, **k: True
 def __reduce__(self): return (str, ('canary',))
 def __instancecheck__(self, other): return True
"""
PROGRAMS = {
    "a class named Fraction": f"class Fraction:{LIES} numerator = denominator = 1\ndef f(*a): return Fraction()",
    "a Fraction that lies": f"import fractions\nclass Fraction(fractions.Fraction):{LIES}\ndef f(*a): return Fraction(1, 2)",
    "a module of its own": f"import sys, types\nclass Fraction:{LIES}\nm = sys.modules['fractions'] = types.ModuleType('fractions')\n"
    "m.Fraction = Fraction\nFraction._numerator = Fraction._denominator = property(lambda s: 1)\ndef f(*a): return Fraction()",
    "a Decimal that lies": f"import decimal\nclass D(decimal.Decimal):{LIES} __str__ = lambda s: 'canary'\ndef f(*a): return D(1)",
    "a date that lies": f"import datetime\nclass D(datetime.date):{LIES} isoformat = lambda s: 'x'\ndef f(*a): return D(2020, 1, 1)",
    "a deque that lies": f"import collections\nclass D(collections.deque):{LIES}\ndef f(*a): return D([1])",
    "a list that lies": f"class L(list):{LIES} __iter__ = lambda s: iter('x')\ndef f(*a): return L([1])",
    "a dict that lies": f"class D(dict):{LIES} keys = items = lambda s: s\ndef f(*a): return D(a=1).keys()",
    "a tuple with names that lie": "class T(tuple):\n _fields = ('__eq__', 'startswith')\ndef f(*a): return T((1, 2))",
    "an object that says it is a list": f"class O:{LIES} __class__ = list\ndef f(*a): return O()",
    "an object that says it is a range": f"class O:{LIES} __class__ = range\n start = stop = step = 1\ndef f(*a): return O()",
    "an object": f"class O:{LIES}\ndef f(*a): return O()",
    "a callable iterator": f"class O:{LIES} __next__ = __iter__ = __call__ = lambda s, *a: s\ndef f(*a): return O()",
    "in a list": f"class O:{LIES}\ndef f(*a): return [O()]",
    "into the argument": f"class O:{LIES}\ndef f(a, *b):\n a[:] = [O()] * len(a)\n return a",
    "as a member of a set": f"class O:{LIES}\ndef f(*a): return {{O()}}",
    "instead of f": f"class f:{LIES} __init__ = lambda s, *a: None",
    "instead of a class": f"class O:{LIES} __call__ = lambda s, *a: s\nf = Thing = O()",
    "a huge generator": "def f(*a): return (i for i in range(10**12))",
    "an endless generator": "def f(*a):\n while True: yield 0",
    "an endless list": "import itertools\ndef f(a, *b):\n a.extend(itertools.count())",
    "a generator that never yields": "def f(*a):\n while True: pass\n yield",
    "an end before the end": "def f(*a):\n raise StopIteration\n yield",
    "answers of its own": "import os, struct, json\nm = json.dumps({'value': True, 'changed': [], 'forgotten': []}).encode()\n"
    "def f(*a):\n for fd in range(3, 10):\n  for kind in 2, 3:\n   try: os.write(fd, struct.pack('<BI', 2, len(m)) + m if kind == 2 "
    "else struct.pack('<IB', len(m), 114) + m)\n   except OSError: pass\n return 0",
    "looks at the test": "import gc, re, sys\ndef f(*a):\n for x in gc.get_objects() + [sys._getframe().f_back.f_locals]:\n"
    "  found = re.search('canar' + 'y-[0-9a-f]{12}', str(x)[:10000])\n  if found: return found[0]",
    "asks what it was given": "def f(*a):\n for g in a:\n  if callable(g):\n   for n in ('__globals__', '__closure__', '__code__'):\n"
    "    try: return str(getattr(g, n))\n    except Exception: pass\n return 0",
    "a hundred thousand objects": "def f(*a): return [object() for _ in range(10**5)]",
}  # fmt: skip
CODES = {
    "equals": f"assert f([1]) == {SECRET!r}",
    "equals turned": f"assert {SECRET!r} == f([1])",
    "listed": f"assert list(f([1])) == [{SECRET!r}]",
    "the argument": f"l = [1]\nf(l)\nassert l == [{SECRET!r}]",
    "first of it": f"assert f([1])[0] == {SECRET!r}",
    "next of it": f"assert next(f([1])) == {SECRET!r}",
    "called": f"assert f([1])({SECRET!r}) == {SECRET!r}",
    "within": f"assert {SECRET!r} in f([1])",
    "method": f"assert f([1]).startswith({SECRET!r})",
    "members": f"assert f([1]).x == {SECRET!r}",
    "numbers": "from fractions import Fraction\n"
    "from decimal import Decimal\nassert f([1]) == Fraction(1, 7) or f([1]) == Decimal('7.5')",
    "sets": f"assert set(f([1])) == {{{SECRET!r}}} or {{f([1])}} == {{{SECRET!r}}}",
    "keys": f"assert f([1]) == {{{SECRET!r}: 1}}.keys()",
    "unittest": f"import unittest\nunittest.TestCase().assertEqual(f([1]), {SECRET!r})",
    "in order": f"assert sorted([f([1]), {SECRET!r}]) == [{SECRET!r}] * 2",
    "a function given": f"secret = {SECRET!r}\nassert f(lambda x: x == secret) == secret",
    "a class": f"assert Thing([1]) == {SECRET!r}",
    "of a class": f"assert Thing([1]).startswith({SECRET!r}) == 'yes'",
}


@pytest.mark.slow
def test_no_trick_passes_a_single_test_of_shared_values(sandbox):
    tasks = [
        (Task(id=name, prompt="", entry_point="f", hidden=(AssertTest(code=code),), limits=LIMITS), source)
        for name, code in CODES.items()
        for source in PROGRAMS.values()
    ]
    if sandbox.config.backend != "fork":
        tasks = tasks[::11]  # each takes the start of two interpreters
    verdicts = Judge(sandbox).score(tasks)
    for (task, source), verdict in zip(tasks, verdicts, strict=True):
        assert verdict.status not in ("ok", "internal_error"), (task.id, source, verdict)
        in_time(verdict.wall_s, LIMITS.wall_s + 1)


@pytest.mark.parametrize(
    "name", ["a Fraction that lies", "a list that lies", "into the argument", "instead of f", "an endless generator"]
)
def test_a_trick_of_each_kind_fails(sandbox, name):
    hidden = tuple(AssertTest(code=CODES[code]) for code in ("equals turned", "listed", "the argument"))
    (verdict,) = Judge(sandbox, fail_fast=False).score(
        [(Task(id=name, prompt="", entry_point="f", hidden=hidden, limits=LIMITS), PROGRAMS[name])]
    )
    assert verdict.scored and verdict.passed == 0
