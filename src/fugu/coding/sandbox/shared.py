"""Containers that two processes have in common, so that a function can change its arguments although it runs elsewhere.

Every list, dict, set, deque and bytearray that crosses has a number and exists on both sides. ``pack`` returns JSON of a value, in
which containers are numbers, and the content of those that have changed since they last crossed; ``unpack`` brings them up to date
and returns the value. Two names of one list stay one list, and a list may hold itself. What is no data is for ``standins``.

Only data crosses, and ``unpack`` builds exact types of the standard library: nothing that the other side sends can run here.
"""

from __future__ import annotations

import gc
import itertools
import operator
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

from fugu.coding.sandbox.values import DEPTH, from_leaf, leaf, to_plain

_FACTORIES: dict[str, Any] = {kind.__name__: kind for kind in (int, float, str, bool, list, dict, set, tuple)}
_MAKERS: dict[str, Callable[[Any], Any]] = {
    "list": lambda _: [],
    "dict": lambda _: {},
    "set": lambda _: set(),
    "bytearray": lambda _: bytearray(),
    "Counter": lambda _: Counter(),
    "OrderedDict": lambda _: OrderedDict(),
    "deque": lambda most: deque(maxlen=most),
    "defaultdict": lambda name: defaultdict(None if name is None else _FACTORIES[name]),
}
_DICT_VIEWS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    type({}.keys()): ("__keys__", dict.keys),
    type({}.values()): ("__values__", dict.values),
    type({}.items()): ("__items__", dict.items),
}
_EXACT = frozenset((type(None), bool, int, float, str))
"""what is JSON already, without another look"""
_CONTAINERS = (list, dict, set, deque, bytearray)
_FEW = 256
"""containers that are known before it is worth looking for those that nobody needs any more"""


class Shared:
    """One side. ``first`` is 0 on one and 1 on the other, so that both can give numbers."""

    def __init__(self, first: int) -> None:
        self.first = first
        self._counting = itertools.count(first, 2)
        self._known: dict[int, Any] = {}
        self._order: list[int] = []
        """their numbers; grows while a value is packed"""
        self._numbers: dict[int, int] = {}
        """by ``id``"""
        self._last: dict[int, list[Any]] = {}
        """what each held when it last crossed"""
        self._enough = _FEW

    def pack(self, value: Any) -> dict[str, Any]:
        forgotten = self._forget_unused() if self.first == 0 else []
        plain = self.plain(value)
        changed = []
        for number in self._order:  # packing one may add others
            container = self._known[number]
            items = _items(container)
            if self._differs(number, items):
                changed.append(
                    [number, *_kind(container), [item if type(item) in _EXACT else self.plain(item) for item in items]]
                )
                self._last[number] = items
        return {"value": plain, "changed": changed, "forgotten": forgotten}

    def unpack(self, message: dict[str, Any]) -> Any:
        """Return the value; ValueError, TypeError, KeyError or another ordinary error for what ``pack`` would not have sent."""
        if self.first != 0:
            self._forget(set(message["forgotten"]))
        for number, kind, setting, _ in message["changed"]:
            if number not in self._known:
                if type(number) is not int or number % 2 == self.first:
                    raise ValueError(f"{number!r} is not a number of theirs")
                self._add(number, _MAKERS[kind](setting))
        for number, _, _, content in message["changed"]:
            container = self._known[number]
            _fill(container, [item if type(item) in _EXACT else self.value(item) for item in content])
            self._last[number] = _items(container)
        return self.value(message["value"])

    def plain(self, value: Any, depth: int = DEPTH) -> Any:
        if type(value) in _EXACT:
            return value
        if isinstance(value, (int, float, str)):
            return to_plain(value)
        if isinstance(value, _CONTAINERS):
            number = self._numbers.get(id(value))
            if number is None:
                number = next(self._counting)
                self._add(number, value)
            return {"__ref__": number}
        if depth == 0:
            raise ValueError(f"nested more than {DEPTH} deep")
        if isinstance(value, tuple):
            items = [self.plain(item, depth - 1) for item in tuple.__iter__(value)]
            names = getattr(type(value), "_fields", None)
            if type(names) is tuple and len(names) == len(items) and all(type(name) is str for name in names):
                return {"__named__": [type(value).__name__, list(names), items]}
            return {"__tuple__": items}
        if isinstance(value, frozenset):
            return {"__frozenset__": [self.plain(item, depth - 1) for item in frozenset.__iter__(value)]}
        for kind, (tag, _) in _DICT_VIEWS.items():
            if isinstance(value, kind):
                (owner,) = gc.get_referents(value)
                return {tag: self.plain(owner, depth - 1)}
        found = leaf(value)
        return self.plain_other(value) if found is None else found

    def value(self, plain: Any, depth: int = DEPTH) -> Any:
        if type(plain) in _EXACT:
            return plain
        if depth == 0:
            raise ValueError(f"nested more than {DEPTH} deep")
        ((tag, content),) = plain.items()
        if tag == "__ref__":
            return self._known[content]
        if tag == "__tuple__":
            return tuple([self.value(item, depth - 1) for item in content])
        if tag == "__named__":
            name, names, items = content
            return _named(name, names, [self.value(item, depth - 1) for item in items])
        if tag == "__frozenset__":
            return frozenset([self.value(item, depth - 1) for item in content])
        for known, view in _DICT_VIEWS.values():
            if tag == known:
                return view(self.value(content, depth - 1))
        found = from_leaf(tag, content)
        return self.other(tag, content) if found is None else found

    def plain_other(self, value: Any) -> Any:
        """Return JSON for what is no data."""
        raise ValueError(f"a value of type {type(value).__name__} cannot be passed on")

    def other(self, tag: str, content: Any) -> Any:
        """Undo ``plain_other``."""
        raise ValueError(f"an unknown tag {tag!r:.60}")

    def _add(self, number: int, container: Any) -> None:
        self._known[number] = container
        self._numbers[id(container)] = number
        self._order.append(number)

    def _forget(self, gone: set[int]) -> None:
        if not gone:
            return
        for number in gone:
            del self._numbers[id(self._known.pop(number))]
            self._last.pop(number, None)
        self._order = [number for number in self._order if number not in gone]

    def _differs(self, number: int, items: list[Any]) -> bool:
        last = self._last.get(number)
        return last is None or len(last) != len(items) or not all(map(operator.is_, items, last))

    def _forget_unused(self) -> list[int]:
        """Forget containers that only this object refers to: nobody here can see what becomes of them. Returns their numbers.

        One that has changed meanwhile, as in ``f().append(1)``, is kept once more, so that the other side hears of it.
        """
        if not self._order:
            return []
        (alone,) = _references({0: []})
        counts = _references(self._known)
        gone = {number for number, count in zip(self._known, counts, strict=True) if count <= alone}
        if len(self._known) - len(gone) > self._enough:
            gone = self._unreachable(alone, counts)
            self._enough = max(_FEW, 2 * (len(self._known) - len(gone)))
        gone = {number for number in gone if not self._differs(number, _items(self._known[number]))}
        self._forget(gone)
        return list(gone)

    def _unreachable(self, alone: int, counts: list[int]) -> set[int]:
        """Return the numbers of containers that are found only in each other."""
        ours: Counter[int] = Counter()
        for number in self._order:
            ours.update(map(id, _items(self._known[number])))
            ours.update(map(id, self._last.get(number, ())))
        open_ = [
            number for number, count in zip(self._known, counts, strict=True) if count > alone + ours[id(self._known[number])]
        ]
        needed = set(open_)
        while open_:
            inner = [self._numbers.get(id(item)) for item in _items(self._known[open_.pop()])]
            fresh = {number for number in inner if number is not None} - needed
            needed |= fresh
            open_ += fresh
        gone = set(self._order) - needed
        return gone if not any(self._differs(number, _items(self._known[number])) for number in gone) else set()


def _references(containers: dict[int, Any]) -> list[int]:
    return [sys.getrefcount(container) for container in containers.values()]


def _kind(container: Any) -> tuple[str, Any]:
    """Return the kind of a container as ``_MAKERS`` has it, and its setting. A subclass goes as what it extends."""
    if type(container) in (list, dict, set):
        return type(container).__name__, None
    if isinstance(container, deque):
        return "deque", deque.maxlen.__get__(container)
    if isinstance(container, defaultdict):
        factory = container.default_factory
        if factory is None or _FACTORIES.get(getattr(factory, "__name__", "")) is factory:
            return "defaultdict", None if factory is None else factory.__name__
        return "dict", None
    return next(
        kind.__name__ for kind in (Counter, OrderedDict, list, dict, set, bytearray) if isinstance(container, kind)
    ), None


def _items(container: Any) -> list[Any]:
    """Return what it holds, of a dict the keys and then the values."""
    if type(container) is list:
        return container[:]
    if isinstance(container, dict):
        kind: Any = OrderedDict if isinstance(container, OrderedDict) else dict  # whose order a dict does not know
        return [*kind.keys(container), *kind.values(container)]
    if isinstance(container, bytearray):
        return [bytearray.hex(container)]
    kind = next(each for each in (list, set, deque) if isinstance(container, each))
    return list(kind.__iter__(container))


def _fill(container: Any, items: list[Any]) -> None:
    """Make it hold just these, in place."""
    if isinstance(container, dict):
        half, odd = divmod(len(items), 2)
        if odd:
            raise ValueError("keys without values")
        content = dict(zip(items[:half], items[half:], strict=True))
        container.clear()
        container.update(content)
    elif isinstance(container, bytearray):
        container[:] = bytes.fromhex(items[0])
    elif isinstance(container, list):
        list.__setitem__(container, slice(None), items)
    elif isinstance(container, set):
        set.clear(container)
        set.update(container, items)
    else:
        deque.clear(container)
        deque.extend(container, items)


def _named(name: str, names: list[str], items: list[Any]) -> Any:
    """Return a tuple whose members also have names."""
    fine = len(names) == len(items) and all(type(each) is str and each.isidentifier() and each[0] != "_" for each in names)
    if type(name) is not str or not fine:
        raise ValueError("not a named tuple")
    members: dict[str, Any] = {each: property(operator.itemgetter(place)) for place, each in enumerate(names)}
    members |= {"_fields": tuple(names), "__slots__": (), "__repr__": _show_named, "_asdict": _as_dict}
    return type(name, (tuple,), members)(items)


def _show_named(named: Any) -> str:
    return f"{type(named).__name__}({', '.join(f'{name}={value!r}' for name, value in _as_dict(named).items())})"


def _as_dict(named: Any) -> dict[str, Any]:
    return dict(zip(type(named)._fields, named, strict=True))
