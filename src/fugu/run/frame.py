"""A run's metrics as a DataFrame: a row per update, and a column per metric, those of ``timing.jsonl`` beside the others.

A metric that a line does not have, or that was not finite there, is missing in that row.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from fugu.errors import ConfigError, NotInstalled, did_you_mean

KINDS = ("pandas", "polars")
"""packages that have DataFrames, the preferred one first"""


def frame(metrics: Sequence[Mapping[str, Any]], timing: Sequence[Mapping[str, Any]], kind: str | None = None) -> Any:
    """Return both files' lines as a DataFrame of the package ``kind``; of the first that is installed without it."""
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"frame({kind!r}) must be one of {', '.join(KINDS)}.{did_you_mean(str(kind), KINDS)}")
    for name in KINDS if kind is None else (kind,):
        try:
            package = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:  # it is installed, and lacks something
                raise
            continue
        return package.DataFrame(columns(metrics, timing))
    wanted = " or ".join(KINDS) if kind is None else kind
    raise NotInstalled(f"a DataFrame needs {wanted}: pip install {kind or KINDS[0]}")


def columns(metrics: Sequence[Mapping[str, Any]], timing: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of each metric, one per line of ``metrics``; whole numbers only where all of them are."""
    clock = {row["updates"]: row for row in timing}
    rows = [{**clock.get(row["updates"], {}), **row} for row in metrics]
    names = dict.fromkeys(("updates", "steps"))
    for row in (*metrics, *rows):
        names.update(dict.fromkeys(row))
    found = {}
    for name in names:
        values = [row.get(name) for row in rows]
        whole = all(isinstance(value, int) for value in values)
        found[name] = values if whole else [None if value is None else float(value) for value in values]
    return found
