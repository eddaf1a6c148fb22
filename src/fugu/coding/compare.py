"""Is this what was expected? Decided here, outside the sandbox, on bytes that an agent's process may have chosen.

In: an expected value or text of ours, and bytes of theirs. Out: True or False, always, and soon: JSON is compared as JSON, never
built into objects (a set of a hundred thousand numbers with the same hash takes minutes to build), no deeper than what we expect, and
of a size bounded by ``Limits``. Malformed bytes are not equal to anything.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from fugu.coding.sandbox.values import DEPTH, from_leaf, to_plain

Match = Literal["exact", "lines", "tokens", "numbers"]
"""how printed text is compared: every byte; lines without space at their ends; words; words, numbers by tolerance"""
Types = Literal["strict", "python", "json"]
"""how results are compared: types too (True is not 1, 1 is not 1.0); as Python's == does; and a tuple is a list as well"""

_KINDS = {f"__{kind}__": kind for kind in ("tuple", "set", "frozenset", "dict", "bytes", "complex", "deque", "keys", "items")}
_LEAVES = {f"__{kind}__" for kind in ("fraction", "decimal", "range", "date", "datetime", "time", "timedelta")}
_NUMBERS = (bool, int, float, Fraction, Decimal)
_Number = bool | int | float | Fraction | Decimal
_SETS = ("set", "frozenset", "keys", "items")
_UNKNOWN = "nothing we know"
_UNREADABLE = (ValueError, TypeError, ArithmeticError, RecursionError)
"""no JSON, no UTF-8, too many digits, too deep, no such date or number"""
_DIGITS = 4300
"""of the longest whole number that JSON brings; a Decimal with more of them equals no other type of number"""
_WHOLE = re.compile(rb"[+-]?\d{1,400}")
_NUMBER = re.compile(rb"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,4})?")


def result_equals(expected: Any, result: bytes, *, types: Types = "strict", tolerance: float = 0.0) -> bool:
    """Return True if ``result``, untrusted JSON, stands for ``expected``. NaN equals NaN, where it is expected."""
    try:
        got = json.loads(result)
        return _Comparison(types, tolerance).equal(to_plain(expected), got)
    except _UNREADABLE:
        return False


def text_equals(expected: str, output: bytes, *, match: Match = "lines", tolerance: float = 1e-6) -> bool:
    """Return True if ``output`` is ``expected``."""
    wanted = expected.encode("utf-8", "surrogatepass")
    if match == "exact":
        return output == wanted
    if match == "lines":
        return _lines(output) == _lines(wanted)
    got, wanted_words = output.split(), wanted.split()
    if match == "tokens" or len(got) != len(wanted_words):
        return got == wanted_words
    return all(a == b or _number_equals(a, b, tolerance) for a, b in zip(wanted_words, got, strict=True))


class _Comparison:
    def __init__(self, types: Types, tolerance: float) -> None:
        self.types, self.tolerance = types, tolerance

    def equal(self, expected: Any, got: Any) -> bool:
        """Compare two plain values, as deep as ``expected`` is."""
        expected, got = self._real(expected), self._real(got)
        if isinstance(expected, _NUMBERS) and isinstance(got, _NUMBERS):
            if self.types == "strict" and type(expected) is not type(got):
                return False
            return _close(expected, got, self.tolerance)
        kind, content = self._kind(expected)
        other, theirs = self._kind(got)
        if kind != other or kind == _UNKNOWN:
            return False
        if kind in ("value", "bytes"):
            return type(content) is type(theirs) and content == theirs
        if len(content) != len(theirs):  # before anything is sorted
            return False
        if kind == "dict":
            return self._same_dict(content, theirs)
        if kind in _SETS:
            return self._keys(content, DEPTH) == self._keys(theirs, DEPTH)
        if kind == "complex":
            return all(map(self._same_part, content, theirs))
        return all(map(self.equal, content, theirs))

    def _real(self, plain: Any) -> Any:
        """Replace a tagged number, range or date by itself, and a complex number without imaginary part by its real part, where types
        do not matter."""
        if not isinstance(plain, dict) or len(plain) != 1:
            return plain
        ((tag, content),) = plain.items()
        if tag in _LEAVES:
            return from_leaf(tag, content)
        match plain:
            case {"__complex__": [float(real), float(imaginary)]} if imaginary == 0 and self.types != "strict":
                return real
        return plain

    def _same_part(self, expected: float, got: Any) -> bool:
        return type(got) is float and _close(expected, got, self.tolerance)

    def _same_dict(self, expected: list[Any], got: list[Any]) -> bool:
        if any(not isinstance(pair, list) or len(pair) != 2 for pair in got):
            return False
        ours = {self._key(key, DEPTH): value for key, value in expected}
        theirs = {self._key(key, DEPTH): value for key, value in got}
        # as many keys as there were pairs: none twice
        return ours.keys() == theirs.keys() and all(self.equal(value, theirs[key]) for key, value in ours.items())

    def _kind(self, plain: Any) -> tuple[str, Any]:
        """Return (kind, content) of a plain value: text for bytes, a list of pairs for a dict, a list for other tagged kinds."""
        if isinstance(plain, list):
            return "list", plain
        if not isinstance(plain, dict):
            return "value", plain
        tag = next(iter(plain)) if len(plain) == 1 else ""
        if not tag.startswith("__"):
            return "dict", [[key, value] for key, value in plain.items()]
        if tag not in _KINDS or not isinstance(plain[tag], str if tag == "__bytes__" else list):
            return _UNKNOWN, []
        kind = _KINDS[tag]
        if self.types == "json" and kind == "tuple":
            kind = "list"
        if self.types != "strict" and kind in _SETS:
            kind = "set"
        return kind, plain[tag]

    def _keys(self, items: list[Any], depth: int) -> list[str]:
        return sorted(self._key(item, depth) for item in items)

    def _key(self, plain: Any, depth: int) -> str:
        """Return text that is the same for equal keys of dicts and members of sets; their floats are exact."""
        return json.dumps(self._normal(plain, depth))

    def _normal(self, plain: Any, depth: int) -> Any:
        if depth == 0:
            raise ValueError("too deep")
        plain = self._real(plain)
        if isinstance(plain, list | dict):
            kind, content = self._kind(plain)
            if isinstance(content, str):
                return [kind, content]
            items = [self._normal(item, depth - 1) for item in content]
            return [kind, sorted(items, key=json.dumps) if kind in (*_SETS, "dict") else items]
        if self.types != "strict" and isinstance(plain, bool):
            return int(plain)
        if isinstance(plain, float):
            if self.types != "strict" and plain.is_integer():
                return int(plain)
            return plain + 0.0  # -0.0 is 0.0
        if plain is None or isinstance(plain, str | int):
            return plain
        normal = _normal_leaf(plain)
        if self.types == "strict":
            return [type(plain).__name__, normal]
        return self._normal(normal, depth) if isinstance(normal, float) else normal


def _normal_leaf(value: Any) -> Any:
    """Return JSON that is the same for equal values; of a Fraction or a Decimal the int or float that equals it, if there is one."""
    if isinstance(value, Decimal):
        return _normal_decimal(value)
    if isinstance(value, Fraction):
        if value.denominator == 1:
            return value.numerator
        near = float(value) if abs(value) < 1e300 else math.inf
        return near if near < math.inf and Fraction(near) == value else ["fraction", *value.as_integer_ratio()]
    if isinstance(value, range):
        count = max(0, (value.stop - value.start + value.step - (1 if value.step > 0 else -1)) // value.step)
        return ["range", count, *[value.start][:count], *[value.step][: max(0, count - 1)]]
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = value.astimezone(datetime.UTC)
    return [type(value).__name__, str(value)]


def _normal_decimal(value: Decimal) -> Any:
    if not value.is_finite():
        return float(value)
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    exponent = int(exponent) + len(digits) - len(text) if text else 0
    if len(text) + abs(exponent) < _DIGITS:
        return _normal_leaf(Fraction(value))
    return ["decimal", sign, text, exponent]


def _close(expected: _Number, got: _Number, tolerance: float) -> bool:
    if expected == got or not isinstance(expected, float):
        return expected == got
    try:
        got = float(got)
    except OverflowError:  # a whole number that no float can hold
        return False
    if math.isnan(expected):
        return math.isnan(got)
    return (
        tolerance > 0
        and math.isfinite(expected)
        and math.isfinite(got)
        and abs(expected - got) <= tolerance * max(1.0, abs(expected))
    )


def _number_equals(expected: bytes, got: bytes, tolerance: float) -> bool:
    """Compare numbers. Whole ones are exact: one more than a million is not a million."""
    if not _NUMBER.fullmatch(expected) or not _NUMBER.fullmatch(got):
        return False
    if _WHOLE.fullmatch(expected) or math.isinf(float(expected)):
        return Decimal(got.decode()) == Decimal(expected.decode())
    return _close(float(expected), float(got), tolerance)


def _lines(text: bytes) -> list[bytes]:
    """Return the lines without space at their ends, and without empty ones at the end of the text."""
    return [line.rstrip() for line in text.rstrip().replace(b"\r\n", b"\n").split(b"\n")]
