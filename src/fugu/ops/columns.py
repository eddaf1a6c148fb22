"""The arguments of the advantage functions: numpy arrays or CPU tensors in, checked numpy views of the same memory out.

Nothing is copied or converted; what does not fit is a ``SpaceError`` that names the argument. torch is never imported here:
whoever passes a tensor has done that.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from fugu.errors import ConfigError, SpaceError
from fugu.native import native

Array = TypeVar("Array")
"""a numpy array or a torch tensor; what comes back is what came in"""

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


def compute_native(
    value: Array,
    reward: Array,
    terminated: Array,
    truncated: Array,
    bootstrap: Array,
    ratio: Array | None,
    mask: Array | None,
    out: Array | None,
    weights: tuple[float, float, float, float],
    threads: int,
) -> Array:
    """The advantage by the compiled kernel, which serves GAE (no ratio) and V-trace; ``weights``: gamma, gamma * lam, rho_clip, c_clip.

    The kernel refuses arrays it cannot read in place, so arrays are first given to it as they are: ``check_columns`` takes a tenth
    of the time of a small batch, and is there for tensors and to say what is wrong.
    """
    inputs = (value, reward, terminated, truncated, bootstrap, ratio, mask)
    if type(value) is np.ndarray:
        made: Any = np.empty_like(value) if out is None else out
        try:
            native.advantage(*inputs, made, *weights, threads)
            return made
        except (TypeError, ValueError):
            pass
    c = check_columns(*inputs, out)
    native.advantage(c.value, c.reward, c.terminated, c.truncated, c.bootstrap, c.ratio, c.mask, c.out, *weights, threads)
    return c.result


def on_device(value: Any) -> bool:
    """Whether ``value`` is a tensor that the kernel for GPUs takes."""
    if not _is_tensor(value):
        return False
    from fugu.gpu.use import ready  # imports torch, which is here now

    return ready(value)


def compute_on_device(
    value: Any,
    reward: Any,
    terminated: Any,
    truncated: Any,
    bootstrap: Any,
    ratio: Any,
    mask: Any,
    out: Any,
    weights: tuple[float, float, float, float],
) -> Any:
    """``compute_native`` for tensors on a GPU."""
    from fugu.ops.advantage_cuda import trace

    return trace(value, reward, terminated, truncated, bootstrap, weights, ratio=ratio, mask=mask, advantage=out).advantage


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
    """Views of the arguments; ``out`` is made where None is given, of the same kind as ``value``."""
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


def check_fraction(name: str, number: float) -> float:
    """A discount or a decay: between 0 and 1."""
    if not 0 <= number <= 1:  # also catches NaN
        raise ConfigError(f"{name}={number} must be between 0 and 1")
    return float(number)


def check_clip(name: str, number: float) -> float:
    """A bound for importance weights: positive, ``math.inf`` for none."""
    if not number > 0:
        raise ConfigError(f"{name}={number} must be above 0; give math.inf for no clipping")
    return float(number)


def check_threads(threads: int | None) -> int:
    """``threads``, by default as many as there are cores this process may use."""
    if threads is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads < 2**16:
        raise ConfigError(f"threads={threads!r} must be a whole number of at least 1; leave it out for one per core")
    return threads


def _view(name: str, array: Any, dtype: np.dtype, shape: tuple[int, ...] | None) -> np.ndarray:
    """``array`` as a numpy array over the same memory; ``shape`` None: any of two axes."""
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
    """``out`` may be the very memory of ``reward`` or ``ratio``; any other overlap would be read after it was written."""
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
