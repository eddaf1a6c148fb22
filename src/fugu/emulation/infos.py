"""Read what an environment of Gymnasium's or PettingZoo's kind says of a step in its ``info`` beside the usual: costs, and columns of
its own, under names that the environment, or a wrapper around it, lists in the attributes ``costs`` and ``columns``.

``costs = ("cost",)`` says that ``info["cost"]`` is there after every step; it becomes the column ``cost`` of the rows.
``columns = {"risk": ((), "float32")}`` says that ``info["risk"]`` may be there; it becomes the column ``risk``, zeros without it.
Numbers in the info of an episode's last step, such as ``is_success``, may be kept as what the environment says of the episode.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fugu.emulation.columns import Own, Shape, own_columns
from fugu.emulation.env import Rows
from fugu.errors import SpaceError

ALWAYS = ("is_success",)
"""names that are looked for without being asked for"""


class Said:
    """Return what the infos of ``env``, an environment named ``name``, hold of its steps; false if that is nothing."""

    def __init__(self, env: Any, name: str) -> None:
        self.costs = cost_names(env)
        self.columns = column_forms(env, name)

    def __bool__(self) -> bool:
        return bool(self.costs or self.columns)

    def write(self, info: Mapping[str, Any], out: Rows, agent: int) -> None:
        """Write what ``info`` says of the step that ``agent`` took, checked."""
        if self.costs:
            write_costs(self.costs, info, out["cost"][agent])
        for name, (shape, dtype) in self.columns.items():
            out[name][agent] = _value(name, info[name], shape, dtype) if name in info else 0

    def clear(self, out: Rows, agent: int) -> None:
        """Write that ``agent`` has taken no step."""
        if self.costs:
            out["cost"][agent] = 0
        for name in self.columns:
            out[name][agent] = 0


def cost_names(env: Any) -> tuple[str, ...]:
    """Return the names in ``costs`` of ``env`` or of what it wraps; an attribute of that name that lists no names is not meant."""
    for names in _declared(env, "costs"):
        if isinstance(names, tuple | list) and names and all(isinstance(name, str) for name in names):
            return tuple(names)
    return ()


def column_forms(env: Any, name: str) -> Own:
    """Return the ``columns`` that ``env``, named ``name``, and all that it wraps declare."""
    forms: dict[str, tuple[Shape, str]] = {}
    for declared in _declared(env, "columns"):
        forms = {**own_columns(declared, name), **forms}
    return forms


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


def numbers(info: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    """Return the values of ``names`` that are finite numbers in the info of an episode's last step."""
    final = info.get("final_info", info)  # of a vector env that has reset it since
    found = {}
    for name in names:
        number = _number(final.get(name)) if isinstance(final, Mapping) else None
        if number is not None:
            found[name] = number
    return found


def _number(value: Any) -> float | None:
    """Return ``value`` as a number, bools and the scalars of numpy and torch included; None if it is none, or not finite."""
    if not isinstance(value, bool | int | float):
        if getattr(value, "ndim", None) != 0 or not hasattr(value, "item"):
            return None
        value = value.item()
        if not isinstance(value, bool | int | float):
            return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _value(name: str, said: Any, shape: Shape, dtype: str) -> np.ndarray:
    """Return ``said`` as an array of the column ``name``, or refuse it."""
    try:
        array = np.asarray(said)
        if array.dtype.kind not in "biuf":
            raise ValueError
    except ValueError:
        raise SpaceError(f"expected {dtype}{list(shape)} in info[{name!r}], got {said!r:.60}", where=name) from None
    with np.errstate(over="ignore", invalid="ignore"):  # looked at below
        value = array.astype(dtype)
    fits = array.dtype.kind in "biu" or value.dtype.kind == "f"
    if array.shape != shape or not fits or (value.dtype.kind != "f" and (array != value).any()):
        got = f"{array.dtype}{list(array.shape)}"
        fix = f'declare columns = {{"{name}": ({array.shape}, "{array.dtype}")}}, or say what is declared'
        raise SpaceError(f"expected {dtype}{list(shape)} in info[{name!r}], got {got}", where=name, fix=fix)
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise SpaceError(
            f"info[{name!r}]={said!r:.60} is not finite in {dtype}", where=name, fix="say a finite number, or nothing"
        )
    return value


def _declared(env: Any, attribute: str) -> Iterator[Any]:
    """Yield the attribute of ``env`` and of all that it wraps, where they have it, from the outside in."""
    seen: set[int] = set()
    while env is not None and id(env) not in seen:
        seen.add(id(env))
        if not hasattr(env, "__dict__"):
            return
        yield vars(env).get(attribute, getattr(type(env), attribute, None))
        env = vars(env).get("env")
