"""The columns of the rows that environments write: one line each, from which memory is laid out everywhere.

``next`` columns belong to the row that waits for an action; ``outcome`` columns say what the action before it produced. Memory,
views, staging, snapshots, rows on a device and batches are made from ``present``, so a new column is a line in ``TABLE``, beside who
writes it and who reads it. Code finds it by its name: ``rows["risk"]``, ``batch["risk"]``.

An environment may have columns that no line here names: it declares them, ``columns = {"risk": ((), "float32")}``, by name with the
shape of one row and a dtype of numpy. They are outcome columns, and travel as all others do.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fugu.errors import ConfigError

if TYPE_CHECKING:
    from fugu.emulation.env import EnvSpec

Shape = tuple[int, ...]

Own = Mapping[str, tuple[Shape, str]]
"""columns that an environment declares: name -> shape of one row, dtype of numpy"""

OWN_DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
EXAMPLE = 'columns = {"risk": ((), "float32")}'


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
    staged: bool = True
    """whether a shard collects it privately and publishes it once per step; large ones are written in place"""
    blank: bool = False
    """its value where nobody is there to act"""


TABLE: tuple[RowColumn, ...] = (
    RowColumn("obs", "next", "", lambda spec: spec.obs_layout.row_shape, staged=False),
    RowColumn("first", "next", "bool"),
    RowColumn("mask", "next", "bool"),
    RowColumn(
        "action_mask", "next", "bool", lambda spec: (spec.choices,), lambda spec: spec.choices > 0, staged=False, blank=True
    ),
    RowColumn("reward", "outcome", "float32"),
    RowColumn("terminated", "outcome", "bool"),
    RowColumn("truncated", "outcome", "bool"),
    RowColumn("cost", "outcome", "float32", lambda spec: (len(spec.costs),), lambda spec: bool(spec.costs)),
)


@dataclass(frozen=True)
class Form:
    """A column as environments of one kind have it: with the ``shape`` of one row, and a ``dtype`` of numpy."""

    name: str
    when: Literal["next", "outcome"]
    dtype: str
    shape: Shape


def present(spec: EnvSpec, choices: int | None = None) -> list[Form]:
    """Return the columns that environments like ``spec`` have, their own last. ``choices``: how many an action mask has, if other
    than the action space says; 0 for no mask."""
    forms = []
    for column in TABLE:
        if column.name == "action_mask" and choices is not None:
            if choices:
                forms.append(Form(column.name, column.when, column.dtype, (choices,)))
        elif column.there(spec):
            dtype = column.dtype or spec.obs_layout.dtype_name
            forms.append(Form(column.name, column.when, dtype, column.shape(spec)))
    return forms + [Form(name, "outcome", dtype, shape) for name, (shape, dtype) in spec.columns.items()]


def outcomes(names: Collection[str]) -> list[str]:
    """Return those of the columns ``names`` that say what an action produced: of the table, or an environment's own."""
    waiting = {column.name for column in TABLE if column.when == "next"}
    return [name for name in names if name not in waiting]


def large_ones(names: Collection[str]) -> list[str]:
    """Return those of the columns ``names`` that are written in place: each of their rows is large."""
    large = {column.name for column in TABLE if not column.staged}
    return [name for name in names if name in large]


def blanks() -> dict[str, bool]:
    """Return the columns that do not hold zeros where nobody is there to act, with what they hold."""
    return {column.name: column.blank for column in TABLE if column.blank}


def own_columns(declared: Any, env: str) -> dict[str, tuple[Shape, str]]:
    """Check the attribute ``columns`` of the environment named ``env``, and return it with shapes as tuples and dtypes by name.

    Anything but names with pairs of a shape and a dtype is an attribute that means something else: then there are none."""
    if not isinstance(declared, Mapping) or not any(isinstance(form, tuple | list) for form in declared.values()):
        return {}
    return {name: _form(name, form, env) for name, form in declared.items()}


def _form(name: Any, form: Any, env: str) -> tuple[Shape, str]:
    where = f"columns of {env}"
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise ConfigError(f"{where}: {name!r} is no name for a column", fix=f"Use an identifier, as in {EXAMPLE}")
    if any(name == column.name for column in TABLE):
        raise ConfigError(f"{where}: every row has a column {name!r} already", fix=f"Give it another name, such as own_{name}")
    try:
        shape, dtype = form
        shape, dtype = tuple(int(size) for size in shape), np.dtype(dtype).name
    except (TypeError, ValueError):
        raise ConfigError(
            f"{where}: {name!r} must have a shape and a dtype, got {form!r:.60}", fix=f"Write {EXAMPLE}"
        ) from None
    if dtype not in OWN_DTYPES or any(size < 1 for size in shape):
        problem = f"{where}: {name!r} cannot have the shape {shape} and dtype {dtype}"
        raise ConfigError(problem, fix=f"Use sizes of at least 1 and one of {', '.join(OWN_DTYPES)}")
    return shape, dtype
