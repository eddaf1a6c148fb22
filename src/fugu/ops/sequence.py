"""The description of memory that kernels over rows of channels get (``native/cuda/sequence.h``)."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

_SEQUENCE = struct.Struct("=Qqq")


def boxed(tensor: Tensor) -> bytes:
    """Pack ``struct Sequence`` over ``[T, B]`` or ``[T, B, channels]``."""
    return _SEQUENCE.pack(tensor.data_ptr(), tensor.stride(0), tensor.stride(1))


def wide(like: Tensor, *others: Tensor, size: int) -> tuple[str, ...]:
    """Return a kernel's defines: the type of ``like``, and four channels to a thread where rows of all tensors allow that."""
    number = ("FUGU_BF16 1",) if like.dtype == torch.bfloat16 else ()
    fours = size % 4 == 0 and all(_in_fours(tensor) for tensor in (like, *others))
    return (*number, "FUGU_WIDE 4") if fours else number


def channels_last(tensor: Tensor) -> Tensor:
    """Return ``tensor`` as it is, if the numbers of a row are neighbours."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _in_fours(tensor: Tensor) -> bool:
    aligned = tensor.data_ptr() % (4 * tensor.element_size()) == 0
    return aligned and tensor.stride(-1) == 1 and all(stride % 4 == 0 for stride in tensor.stride()[:-1])
