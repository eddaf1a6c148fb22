"""Weights in bfloat16, rounded once where they are used many times before they change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_kept: dict[int, Tensor] | None = None


def rounded(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """``weight`` as ``dtype``; the same tensor again inside ``weights_stay``."""
    if weight.dtype == dtype or _kept is None:
        return weight.to(dtype)
    if id(weight) not in _kept:
        _kept[id(weight)] = weight.to(dtype)
    return _kept[id(weight)]


@contextmanager
def weights_stay() -> Iterator[None]:
    """Inside, weights do not change: a rollout."""
    global _kept
    before, _kept = _kept, {}
    try:
        yield
    finally:
        _kept = before
