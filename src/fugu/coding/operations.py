"""The primitive operations that built-in tasks are composed of.

Each says in words what it does (for the prompt), how it is written in Python (for the reference solution, as an expression of ``x``),
and does it (for expected results). The last two are written independently of each other: expected values never come from running
source text. ``{}`` stands for a constant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["int", "list", "str"]
"""of values: a whole number, a list of them, a text"""
Constant = int | str


@dataclass(frozen=True)
class Operation:
    takes: Kind
    gives: Kind
    words: str
    source: str
    apply: Callable[[Any, Any], Any]
    """of a value and the constant (None where there is none)"""
    constants: tuple[Constant | None, ...] = (None,)


@dataclass(frozen=True)
class Step:
    """An operation with its constant."""

    operation: Operation
    constant: Constant | None

    @property
    def words(self) -> str:
        return self.operation.words.format(_literal(self.constant))

    @property
    def source(self) -> str:
        return self.operation.source.format(_literal(self.constant))

    def __call__(self, value: Any) -> Any:
        return self.operation.apply(value, self.constant)


def _literal(constant: Constant | None) -> str:
    return f'"{constant}"' if isinstance(constant, str) else str(constant)


def _sorted(values: list[int]) -> list[int]:
    done: list[int] = []
    for value in values:
        place = next((k for k, other in enumerate(done) if other > value), len(done))
        done.insert(place, value)
    return done


def _between(values: Any, first: int, last: int) -> Any:
    """Return those with ``first <= place < last``, as a list or a text."""
    kept = [value for place, value in enumerate(values) if first <= place < last]
    return "".join(kept) if isinstance(values, str) else kept


def _sum(values: list[int]) -> int:
    total = 0
    for value in values:
        total += value
    return total


def _best(values: list[int], sign: int) -> int:
    best: int | None = None
    for value in values:
        if best is None or sign * value > sign * best:
            best = value
    return 0 if best is None else best


def _count(values: Any, wanted: Any) -> int:
    return len([value for value in values if value == wanted])


def _where(text: str, wanted: str) -> int:
    return next((place for place, letter in enumerate(text) if letter == wanted), -1)


def _swapped(text: str, old: str, new: str) -> str:
    return "".join(new if letter == old else letter for letter in text)


FEW = (2, 3, 4)
DIGITS = (1, 2, 3, 4, 5, 6, 7, 8, 9)
LETTERS = ("a", "b", "c", "d", "e")
FAR = 1 << 30

OPERATIONS: tuple[Operation, ...] = (
    Operation("int", "int", "add {}", "x+{}", lambda x, c: c + x, DIGITS),
    Operation("int", "int", "minus {}", "x-{}", lambda x, c: -(c - x), DIGITS),
    Operation("int", "int", "times {}", "x*{}", lambda x, c: _sum([x] * c), DIGITS[1:]),
    Operation("int", "int", "mod {}", "x%{}", lambda x, c: x - c * (x // c), DIGITS[1:]),
    Operation("int", "int", "div {}", "x//{}", lambda x, c: (x - x % c) // c, DIGITS[1:]),
    Operation("int", "int", "at least {}", "max(x,{})", lambda x, c: c if x < c else x, DIGITS),
    Operation("int", "int", "at most {}", "min(x,{})", lambda x, c: c if x > c else x, DIGITS),
    Operation("int", "int", "square", "x*x", lambda x, _: abs(x) ** 2),
    Operation("int", "int", "negate", "-x", lambda x, _: 0 - x),
    Operation("int", "int", "abs", "abs(x)", lambda x, _: -x if x < 0 else x),
    Operation("int", "str", "digits", "str(x)", lambda x, _: f"{x:d}"),
    Operation("list", "list", "add {} each", "[v+{} for v in x]", lambda x, c: list(map(c.__add__, x)), DIGITS),
    Operation("list", "list", "times {} each", "[v*{} for v in x]", lambda x, c: list(map(c.__mul__, x)), DIGITS[1:]),
    Operation("list", "list", "mod {} each", "[v%{} for v in x]", lambda x, c: list(map(c.__rmod__, x)), DIGITS[1:]),
    Operation("list", "list", "above {}", "[v for v in x if v>{}]", lambda x, c: list(filter(c.__lt__, x)), DIGITS),
    Operation("list", "list", "below {}", "[v for v in x if v<{}]", lambda x, c: list(filter(c.__gt__, x)), DIGITS),
    Operation("list", "list", "take {}", "x[:{}]", lambda x, c: _between(x, 0, c), FEW),
    Operation("list", "list", "drop {}", "x[{}:]", lambda x, c: _between(x, c, FAR), FEW),
    Operation("list", "list", "repeat {}", "x*{}", lambda x, c: [v for _ in range(c) for v in x], FEW),
    Operation("list", "list", "every {}", "x[::{}]", lambda x, c: [v for k, v in enumerate(x) if k % c == 0], FEW),
    Operation("list", "list", "even", "[v for v in x if v%2==0]", lambda x, _: [v for v in x if not v & 1]),
    Operation("list", "list", "odd", "[v for v in x if v%2]", lambda x, _: [v for v in x if v & 1]),
    Operation("list", "list", "reverse", "x[::-1]", lambda x, _: list(reversed(x))),
    Operation("list", "list", "sort", "sorted(x)", lambda x, _: _sorted(x)),
    Operation("list", "list", "unique", "sorted(set(x))", lambda x, _: _sorted(list(dict.fromkeys(x)))),
    Operation("list", "int", "sum", "sum(x)", lambda x, _: _sum(x)),
    Operation("list", "int", "length", "len(x)", lambda x, _: _sum([1 for _ in x])),
    Operation("list", "int", "max or 0", "max(x,default=0)", lambda x, _: _best(x, 1)),
    Operation("list", "int", "min or 0", "min(x,default=0)", lambda x, _: _best(x, -1)),
    Operation("list", "int", "count {}", "x.count({})", _count, DIGITS),
    Operation("str", "str", "take {}", "x[:{}]", lambda x, c: _between(x, 0, c), FEW),
    Operation("str", "str", "drop {}", "x[{}:]", lambda x, c: _between(x, c, FAR), FEW),
    Operation("str", "str", "repeat {}", "x*{}", lambda x, c: "".join([x for _ in range(c)]), FEW),
    Operation("str", "str", "every {}", "x[::{}]", lambda x, c: "".join(v for k, v in enumerate(x) if k % c == 0), FEW),
    Operation("str", "str", "reverse", "x[::-1]", lambda x, _: "".join(reversed(x))),
    Operation("str", "str", "upper", "x.upper()", lambda x, _: "".join(chr(ord(v) - 32) if "a" <= v <= "z" else v for v in x)),
    Operation("str", "str", "lower", "x.lower()", lambda x, _: "".join(chr(ord(v) + 32) if "A" <= v <= "Z" else v for v in x)),
    Operation("str", "str", "sort", '"".join(sorted(x))', lambda x, _: "".join(map(chr, _sorted(list(map(ord, x)))))),
    Operation("str", "str", "append {}", "x+{}", lambda x, c: f"{x}{c}", LETTERS),
    Operation("str", "str", "without {}", 'x.replace({},"")', lambda x, c: _swapped(x, c, ""), LETTERS),
    Operation("str", "str", "dash {}", 'x.replace({},"-")', lambda x, c: _swapped(x, c, "-"), LETTERS),
    Operation("str", "int", "length", "len(x)", lambda x, _: _sum([1 for _ in x])),
    Operation("str", "int", "count {}", "x.count({})", _count, LETTERS),
    Operation("str", "int", "find {}", "x.find({})", _where, LETTERS),
    Operation("str", "list", "codes", "[ord(v) for v in x]", lambda x, _: list(x.encode("ascii"))),
)
