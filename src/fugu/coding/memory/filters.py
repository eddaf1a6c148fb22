"""Select entries by conditions on their attributes. ``matches`` decides here, ``plain`` is how turbopuffer is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Attribute = str | int | float | bool | None


class Filter(Protocol):
    def matches(self, attributes: Mapping[str, Attribute]) -> bool: ...
    def plain(self) -> list[Any]: ...


@dataclass(frozen=True)
class Eq:
    """The attribute is this. One that an entry does not have is None."""

    name: str
    value: Attribute

    def matches(self, attributes: Mapping[str, Attribute]) -> bool:
        return _same(attributes.get(self.name), self.value)

    def plain(self) -> list[Any]:
        return [self.name, "Eq", self.value]


@dataclass(frozen=True)
class In:
    """The attribute is one of these."""

    name: str
    values: Sequence[Attribute]

    def matches(self, attributes: Mapping[str, Attribute]) -> bool:
        return any(_same(attributes.get(self.name), value) for value in self.values)

    def plain(self) -> list[Any]:
        return [self.name, "In", list(self.values)]


@dataclass(frozen=True)
class Range:
    """The attribute is at least ``low`` and at most ``high``; None leaves that side open."""

    name: str
    low: str | float | None = None
    high: str | float | None = None

    def matches(self, attributes: Mapping[str, Attribute]) -> bool:
        value = attributes.get(self.name)
        if value is None or isinstance(value, bool):
            return False
        for bound, sign in ((self.low, 1), (self.high, -1)):
            if bound is None:
                continue
            if isinstance(value, str) != isinstance(bound, str):
                return False  # a text is neither above nor below a number
            if (value < bound) if sign > 0 else (value > bound):  # type: ignore[operator]
                return False
        return True

    def plain(self) -> list[Any]:
        bounds = [[self.name, name, bound] for name, bound in (("Gte", self.low), ("Lte", self.high)) if bound is not None]
        return ["And", bounds or [[self.name, "NotEq", None]]]


class And:
    """All of them."""

    def __init__(self, *filters: Filter) -> None:
        self.filters = filters

    def matches(self, attributes: Mapping[str, Attribute]) -> bool:
        return all(each.matches(attributes) for each in self.filters)

    def plain(self) -> list[Any]:
        return ["And", [each.plain() for each in self.filters]]


class Or:
    """At least one of them."""

    def __init__(self, *filters: Filter) -> None:
        self.filters = filters

    def matches(self, attributes: Mapping[str, Attribute]) -> bool:
        return any(each.matches(attributes) for each in self.filters)

    def plain(self) -> list[Any]:
        return ["Or", [each.plain() for each in self.filters]]


@dataclass(frozen=True)
class Not:
    filter: Filter

    def matches(self, attributes: Mapping[str, Attribute]) -> bool:
        return not self.filter.matches(attributes)

    def plain(self) -> list[Any]:
        return ["Not", self.filter.plain()]


def _same(a: Attribute, b: Attribute) -> bool:
    """Compare two values, of which True is not 1."""
    return isinstance(a, bool) == isinstance(b, bool) and a == b
