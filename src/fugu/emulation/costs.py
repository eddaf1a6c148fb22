"""Read what a step costs beside its reward, for environments of Gymnasium's and PettingZoo's kind: numbers in ``info``, under names
that the environment, or a wrapper around it, lists in an attribute ``costs``.

``costs = ("cost",)`` says that ``info["cost"]`` is there after every step. It becomes the column ``cost`` of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fugu.errors import SpaceError


def cost_names(env: Any) -> tuple[str, ...]:
    """Return the names in ``costs`` of ``env`` or of what it wraps; an attribute of that name that lists no names is not meant."""
    seen: set[int] = set()
    while env is not None and id(env) not in seen:
        seen.add(id(env))
        names = vars(env).get("costs", getattr(type(env), "costs", None)) if hasattr(env, "__dict__") else None
        if isinstance(names, tuple | list) and names and all(isinstance(name, str) for name in names):
            return tuple(names)
        env = vars(env).get("env") if hasattr(env, "__dict__") else None
    return ()


def write_costs(names: Sequence[str], info: Mapping[str, Any], row: np.ndarray) -> None:
    """Write the costs in ``info`` into ``row [costs]``, checked."""
    for k, name in enumerate(names):
        if name not in info:
            raise SpaceError(
                f"costs={list(names)}, but info has no {name!r}", where="cost", fix=f"set info[{name!r}] in every step"
            )
        try:
            value = float(info[name])
        except (TypeError, ValueError):
            raise SpaceError(f"expected a number in info[{name!r}], got {info[name]!r:.60}", where="cost") from None
        if not math.isfinite(np.float32(value)):
            raise SpaceError(
                f"info[{name!r}]={info[name]!r} is not finite in float32; a cost must be a finite number", where="cost"
            )
        row[k] = value
