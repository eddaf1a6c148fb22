"""Programs with test code, in the manner of HumanEval and MBPP, whose verdict must be that of plain Python; many right and wrong."""

from __future__ import annotations

from pathlib import Path

TYPES = "from fractions import Fraction\nfrom decimal import Decimal\nfrom datetime import *\nfrom collections import *\n"
POINT = TYPES + "P = namedtuple('P', 'x y')\n"

RESULTS = """
range(3) | range(0) | range(0, 10, 5) | range(0, 6, 5) | [0, 1, 2] | (0, 1, 2) | map(int, '012') | filter(None, [0])
(i for i in range(3)) | iter([0, 1, 2]) | zip([0], [1]) | reversed([2, 1, 0]) | enumerate([1])
deque([0, 1, 2]) | deque([0, 1, 2], 5)
Fraction(1, 2) | Fraction(2, 1) | Fraction(1, 3) | Fraction(1, 10) | Decimal('0.5')
Decimal('0.1') | Decimal('1.0') | Decimal('1.00')
Decimal('NaN') | Decimal('inf') | Decimal('1e999999999999') | 10**300 | 1e300 | 0.5 | 0.1 | 2 | 1 | True | 1.0
1 + 0j | 0.5 + 0j | 2j | None
float('nan') | float('inf') | float('-inf') | '1.0' | '' | b'a' | bytearray(b'a')
date(2020, 1, 2) | datetime(2020, 1, 2) | datetime(2020, 1, 2, tzinfo=timezone.utc) | time(1, 2) | timedelta(1) | timedelta(hours=24)
datetime(2020, 1, 2, 1, tzinfo=timezone(timedelta(hours=1)))
{1: 2} | {1: 2}.keys() | {1: 2}.values() | {1: 2}.items() | {1} | frozenset({1}) | {(1, 2)}
{1.0: 2} | {True: 2.0} | OrderedDict({1: 2})
Counter({1: 2}) | defaultdict(int, {1: 2}) | OrderedDict({1: 2}).keys()
P(1, 2) | (1, 2) | P(1, [2]) | [P(1, 2)] | [(1, 2)] | {P(1, 2): 3} | {(1, 2): 3}
[Fraction(1, 2)] | [0.5] | {Fraction(1, 2)} | {0.5} | {Decimal('0.5')} | {0.5: [1]}
{Fraction(1, 2): [Decimal(1)]} | {Fraction(1, 3)} | {Decimal('1e5000')}
{date(2020, 1, 2)} | [date(2020, 1, 2), None] | {range(3)} | {range(0, 3, 1)} | {range(0)} | {range(5, 1)} | ({'a': deque([range(3)])},)
{3, 1, 2} | {2, 3, 1} | [1, 2, 3] | {'b': 1, 'a': 2} | {'a': 2, 'b': 1} | {frozenset({1}), frozenset({2})} | set() | {} | [] | ()
lambda: 0 | object()
"""

LITERALS = """
[0, 1, 2] | (0, 1, 2) | 0.5 | 2 | 1 | True | None | 0.1 | {1} | {1: 2} | {(1, 2)} | (1, 2) | [(1, 2)] | {(1, 2): 3} | [0.5]
{0.5} | {0.5: [1]} | {1, 2, 3} | {'a': 2, 'b': 1} | [] | () | {} | b'a' | '1.0' | 2j | 0
"""
"""what asserts compare with that the judge lifts"""


def values(text: str) -> list[str]:
    return [each.strip() for line in text.strip().splitlines() for each in line.split(" | ")]


def _read(text: str) -> list[tuple[str, str, str]]:
    cases = []
    for block in text.split("=== ")[1:]:
        name, _, code = block.partition("\n")
        program, _, tests = code.partition("---\n")
        cases.append((name, program, tests))
    return cases


ASSERTS = _read(Path(__file__).with_suffix(".txt").read_text())
"""(name, program, test code)"""

STACK = "class Stack:\n def __init__(self, items=()): self.items = list(items)\n def push(self, x): self.items.append(x)\n"
STACK += " def pop(self): return self.items.pop()\n def __len__(self): return len(self.items)\n"
STACK += " def __eq__(self, other): return self.items == other.items\n"
STACK += " def __add__(self, other): return Stack(self.items + other.items)\n"
STACK += " def __getitem__(self, k): return self.items[k]\n def __contains__(self, x): return x in self.items\n"
STACK += " def __iter__(self): return iter(self.items)\n def __repr__(self): return f'Stack({self.items})'\n"
QUEUE = STACK.replace("pop()", "pop(0)")
CLASSES = r"""
s = Stack()\ns.push(1)\ns.push(2)\nassert s.pop() == 2 and s.pop() == 1
s = Stack([1])\nt = Stack()\nt.push(5)\nassert len(s) == len(t) == 1 and s.items == [1]
s = Stack()\nassert not s\ns.push(0)\nassert s
assert Stack([1]) == Stack([1]) and Stack([1]) != Stack([2])
assert Stack([1]) == Stack([2])
assert (Stack([1]) + Stack([2])) == Stack([1, 2])
s = Stack([1, 2])\nassert s[0] == 1 and 2 in s and list(s) == [1, 2] and str(s) == 'Stack([1, 2])'
s = Stack([1])\nassert isinstance(s, Stack) and not isinstance([], Stack)
s = Stack()\ntry:\n    s.pop()\n    assert False\nexcept IndexError:\n    pass
s = Stack()\ns.items = [4]\nassert s.pop() == 4
items = [1]\ns = Stack(items)\ns.push(2)\nassert items == [1]
pop = Stack([1, 2]).pop\nassert pop() == 2 and pop() == 1
assert Stack([1]).peek() == 1
s = Stack()\ns.items.append(3)\nassert s.pop() == 3
""".strip().splitlines()
ASSERTS += [(f"class: {code}"[:60], source, code.replace("\\n", "\n")) for code in CLASSES for source in (STACK, QUEUE)]
OTHERWISE: dict[str, tuple[str, str, bool]] = {
    # name: (program, test code, passes in plain Python); here it is the other way round
    "equal to everything": ("class E:\n def __eq__(self, other): return True\ndef f(): return E()", "assert f() == 3", True),
    "int equal to everything": (
        "class E(int):\n def __eq__(self, other): return True\ndef f(): return E(4)",
        "assert f() == 3",
        True,
    ),
    "compared with what it is not": (STACK + " def __eq__(self, other): return True\n", "assert Stack([1]) == [1]", True),
    "method of a built-in": (
        "class E:\n def startswith(self, x): return True\ndef f(): return E()",
        "assert f().startswith('a')",
        True,
    ),
    "truth of an object": ("class E:\n def __bool__(self): return False\ndef f(): return E()", "assert not f()", True),
    "length of an object": ("class E:\n def __len__(self): return 3\ndef f(): return E()", "assert len(f()) == 3", True),
    "a mapping of another kind": (
        "from collections import ChainMap\ndef f(): return ChainMap({1: 2})",
        "assert f() == {1: 2}",
        True,
    ),
    "a built-in function": ("def f(): return len", "assert f() is len", True),
    "a class that extends a list": ("class Stack(list): pass", "assert Stack([1]) == [1]", True),
    "an object of the test's": ("def f(x): return x.a", "class A:\n    a = 1\nassert f(A()) == 1", True),
    "a name that is no function": ("MOST = 5\ndef f(): return 1", "assert MOST == 5", True),
    "what a method of a list does": (
        "class L(list):\n def pop(self): return 7\ndef f(): return L([1])",
        "assert f().pop() == 7",
        True,
    ),
}
"""documented in docs/coding.md: what the program's own objects say of themselves does not count"""
