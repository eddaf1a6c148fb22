"""The columns of the rows that environments write: one line each, from which memory is laid out everywhere.

``next`` columns belong to the row that waits for an action; ``outcome`` columns say what the action before it produced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from fugu.emulation.env import EnvSpec

Shape = tuple[int, ...]


@dataclass(frozen=True)
class RowColumn:
    name: str
    when: Literal["next", "outcome"]
    dtype: str
    """of numpy; of observations the layout says it"""
    shape: Callable[[EnvSpec], Shape] = lambda spec: ()
    """of one row"""
    there: Callable[[EnvSpec], bool] = lambda spec: True
    """whether environments like these have it"""


TABLE = (
    RowColumn("obs", "next", ""),
    RowColumn("first", "next", "bool"),
    RowColumn("mask", "next", "bool"),
    RowColumn("action_mask", "next", "bool"),
    RowColumn("reward", "outcome", "float32"),
    RowColumn("terminated", "outcome", "bool"),
    RowColumn("truncated", "outcome", "bool"),
    RowColumn("cost", "outcome", "float32", lambda spec: (len(spec.costs),), lambda spec: bool(spec.costs)),
)

NEXT = tuple(column for column in TABLE if column.when == "next")
OUTCOME = tuple(column for column in TABLE if column.when == "outcome")


def present(spec: EnvSpec) -> list[RowColumn]:
    """Return the columns that environments like ``spec`` have."""
    return [column for column in TABLE if column.there(spec)]
