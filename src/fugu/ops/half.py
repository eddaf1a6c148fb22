"""Weights in bfloat16, rounded once where they are used many times before they change."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_kept: dict[Hashable, Tensor] | None = None


def dtype_of_products(x: Tensor) -> torch.dtype:
    """Return bfloat16 under autocast to that, else float32."""
    kind = x.device.type
    half = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16
    return torch.bfloat16 if half else torch.float32


def rounded(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``weight`` as ``dtype``; the same tensor again inside ``weights_stay``."""
    return weight if weight.dtype == dtype else kept((id(weight), dtype), lambda: weight.to(dtype))


def kept(key: Hashable, make: Callable[[], Tensor]) -> Tensor:
    """Return what ``make`` makes of weights; inside ``weights_stay`` it is called once for each ``key``."""
    if _kept is None:
        return make()
    if key not in _kept:
        _kept[key] = make()
    return _kept[key]


@contextmanager
def weights_stay() -> Iterator[None]:
    """Promise that weights do not change inside the block, as in a rollout."""
    global _kept
    before, _kept = _kept, {}
    try:
        yield
    finally:
        _kept = before
