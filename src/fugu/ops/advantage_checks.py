"""The arguments of ``ops/advantage.py`` checked: numpy arrays or CPU tensors in, numpy views of the same memory out.

Nothing is copied or converted; what does not fit is a ``SpaceError`` that names the argument. torch is never imported here:
it has been, where a tensor is passed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from fugu.errors import SpaceError

FLOAT, FLAG = np.dtype(np.float32), np.dtype(np.bool_)


@dataclass(slots=True)
class Columns:
    """Checked views of the columns of a batch."""

    value: np.ndarray
    """[segments, horizon] float32"""
    reward: np.ndarray
    """[segments, horizon] float32"""
    terminated: np.ndarray
    """[segments, horizon] bool"""
    truncated: np.ndarray
    """[segments, horizon] bool"""
    bootstrap: np.ndarray
    """[segments] float32"""
    ratio: np.ndarray | None
    """[segments, horizon] float32"""
    mask: np.ndarray | None
    """[segments, horizon] bool"""
    out: np.ndarray
    """[segments, horizon] float32, written"""
    result: Any
    """``out`` as the caller sees it"""


def check_columns(
    value: Any,
    reward: Any,
    terminated: Any,
    truncated: Any,
    bootstrap: Any,
    ratio: Any = None,
    mask: Any = None,
    out: Any = None,
) -> Columns:
    """Return views of the arguments; ``out`` is made where None is given, of the same kind as ``value``."""
    values = _view("value", value, FLOAT, None)
    shape = values.shape
    made = np.empty(shape, FLOAT) if out is None else _view("out", out, FLOAT, shape)
    result = out
    if out is None:
        result = _torch().from_numpy(made) if _is_tensor(value) else made
    columns = Columns(
        values,
        _view("reward", reward, FLOAT, shape),
        _view("terminated", terminated, FLAG, shape),
        _view("truncated", truncated, FLAG, shape),
        _view("bootstrap", bootstrap, FLOAT, shape[:1]),
        None if ratio is None else _view("ratio", ratio, FLOAT, shape),
        None if mask is None else _view("mask", mask, FLAG, shape),
        made,
        result,
    )
    if out is not None:
        _check_out(columns)
    return columns


def _view(name: str, array: Any, dtype: np.dtype, shape: tuple[int, ...] | None) -> np.ndarray:
    """Return ``array`` as a numpy array over the same memory; ``shape`` None: any of two axes."""
    view = _tensor_view(name, array) if _is_tensor(array) else array
    fits = isinstance(view, np.ndarray) and view.dtype == dtype and view.flags.c_contiguous
    if not fits or (view.ndim != 2 if shape is None else view.shape != shape):
        raise SpaceError(_complaint(name, array, view, dtype, shape))
    return view


def _complaint(name: str, array: Any, view: Any, dtype: np.dtype, shape: tuple[int, ...] | None) -> str:
    expected = f"{dtype}[{'segments, horizon' if shape is None else ', '.join(map(str, shape))}]"
    if not isinstance(view, np.ndarray):
        return f"{name}: expected a numpy array or a CPU tensor, {expected}, got {type(array).__name__}"
    got = f"{view.dtype}[{', '.join(map(str, view.shape))}]"
    if view.dtype != dtype:
        cast = f"{name}.to(torch.{dtype})" if _is_tensor(array) else f"{name}.astype(np.{dtype})"
        return f"{name}: expected {expected}, got {got}; pass {cast}"
    if view.ndim != 2 if shape is None else view.shape != shape:
        return f"{name}: expected {expected}, got {got}"
    copy = f"{name}.contiguous()" if _is_tensor(array) else f"np.ascontiguousarray({name})"
    return f"{name}: expected contiguous {expected}, got strides {view.strides} (bytes); pass {copy}"


def _tensor_view(name: str, tensor: Any) -> np.ndarray:
    if tensor.device.type != "cpu":
        raise SpaceError(f"{name}: expected a CPU tensor, got one on {tensor.device}; pass {name}.cpu()")
    try:
        return tensor.detach().numpy()  # an advantage is a constant to every loss
    except (TypeError, RuntimeError) as error:  # bfloat16, sparse, negated or conjugate views
        what = str(tensor.dtype).removeprefix("torch.")
        raise SpaceError(
            f"{name}: {what} tensor cannot be read in place ({error}); pass a dense float32 or bool tensor"
        ) from error


def _check_out(columns: Columns) -> None:
    """Refuse an ``out`` that would be read after it was written; it may be the very memory of ``reward`` or ``ratio``."""
    out = columns.out
    if not out.flags.writeable:
        raise SpaceError("out: the array is read-only; pass a writable one, or leave it out")
    for name in ("value", "reward", "terminated", "truncated", "bootstrap", "ratio", "mask"):
        column = getattr(columns, name)
        if column is None or not np.may_share_memory(out, column):
            continue
        if name in ("reward", "ratio") and column.ctypes.data == out.ctypes.data:
            continue
        raise SpaceError(f"out: overlaps {name}; it may be all of reward or ratio, or memory of its own")


def _is_tensor(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _torch() -> Any:
    return sys.modules["torch"]
