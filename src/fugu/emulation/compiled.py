"""A function of tensors, compiled by torch (inductor) into a few kernels where that works, and as it is where it does not.

In: a function of tensors, and arguments to try it on. Out: what computes the same, up to rounding: a product
and a sum may be rounded once instead of twice, and reductions are added in another order. Integers and random numbers drawn from
them are the same to the bit.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

SHARE = 1e-3
"""of the numbers of a tensor that may differ at the trial: a threshold that rounding puts a world on the other side of"""
TOLERANCE = 1e-3
"""relative and absolute; what is wrong is wrong by more"""


def compiled(function: Callable[..., Any], name: str, *trial: Any) -> Callable[..., Any]:
    """Compile ``function``, if that works and gives on ``trial`` what the function itself gives; else return it, with a warning.

    ``function`` is a bound method. Compiling takes seconds, and waits for the device.
    """
    # what is wrong with the environment itself is raised here; one that writes into its state writes into a copy
    expected = function(*pytree.tree_map_only(Tensor, Tensor.clone, trial))
    try:
        made = torch.compile(_alone(function), fullgraph=True, dynamic=False, options=_options())
        with _waiting_allowed():
            why = _difference(expected, made(*trial))
    except Exception as error:  # of any kind: the compiler, what it calls, and what it makes of the environment's code
        lines = str(error).strip().splitlines()
        why = f"{type(error).__name__}: {lines[0] if lines else ''}"
    if why is None:
        return made
    warnings.warn(
        f"{name}: torch.compile could not be used, so that a step is many small operations, which is slower ({why}); "
        "compile=False (--vector.compile False) asks for that without this warning",
        RuntimeWarning,
        stacklevel=4,
    )
    return function


def _alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """Copy the method with code of its own: torch counts how often it compiles a piece of code, and gives up at some number."""
    assert isinstance(function, types.MethodType)
    plain = function.__func__
    copy = types.FunctionType(
        plain.__code__.replace(), plain.__globals__, plain.__name__, plain.__defaults__, plain.__closure__
    )
    return types.MethodType(copy, function.__self__)


def _options() -> dict[str, Any]:
    """Return those of the wanted options that this torch has."""
    import torch._inductor.config as known

    wanted = {
        "fallback_random": True,  # what an environment draws from torch's own generator stays the same
        "deterministic": True,  # what is chosen by timing must not decide how sums are rounded: a run must go on exactly
        "compile_threads": 1,  # a few small kernels: not worth processes of their own
    }
    return {name: value for name, value in wanted.items() if hasattr(known, name)}


def _difference(expected: Any, found: Any) -> str | None:
    """Return what is wrong with ``found``; None if it is rounding alone."""
    for one, other in zip(pytree.tree_leaves(expected), pytree.tree_leaves(found), strict=True):
        if not isinstance(one, Tensor):
            continue
        if one.shape != other.shape or one.dtype != other.dtype:
            return f"it gives {other.dtype}{list(other.shape)} instead of {one.dtype}{list(one.shape)}"
        close = torch.isclose(one, other, TOLERANCE, TOLERANCE, equal_nan=True) if one.is_floating_point() else one == other
        if one.numel() and (wrong := (~close).double().mean().item()) > SHARE:
            return f"{wrong:.1%} of what it computes is wrong"
    return None


@contextmanager
def _waiting_allowed() -> Iterator[None]:
    """Keep those who listen for waits on the GPU from hearing of the compiler's; what it compiles does not wait."""
    if not torch.cuda.is_available():
        yield
        return
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(0)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)
