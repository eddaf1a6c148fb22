"""Tensors as one block of bytes, to be sent to another machine in one message.

In: tensors by name. Out: a header, which says name, dtype and shape of each, and ``[bytes]``; each tensor begins on a multiple of 16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

ALIGNED = 16


@dataclass(frozen=True, slots=True)
class Form:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


Header = tuple[Form, ...]


def header_of(tensors: Mapping[str, Tensor]) -> Header:
    return tuple(Form(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items())


def written(tensors: Mapping[str, Tensor]) -> np.ndarray:
    """Return the bytes of all tensors, in new memory."""
    header = header_of(tensors)
    block = np.zeros(_size(header), np.uint8)
    for (start, form), tensor in zip(_places(header), tensors.values(), strict=True):
        if form.nbytes:
            bytes_of = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            block[start : start + form.nbytes] = bytes_of.numpy()
    return block


def bytes_in(header: Header, block: np.ndarray) -> dict[str, np.ndarray]:
    """Return the bytes of each tensor, as views of ``block``."""
    assert len(block) == _size(header), "the block is not what its header says"
    return {form.name: block[start : start + form.nbytes] for start, form in _places(header)}


def tensor_of(content: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor over ``content``, bytes in memory that may be written."""
    if not len(content):
        return torch.zeros(shape, dtype=dtype)
    return torch.from_numpy(content).view(dtype).view(shape)


def read(header: Header, block: np.ndarray) -> dict[str, Tensor]:
    """Return the tensors, over one copy of ``block``."""
    parts = bytes_in(header, np.array(block))
    return {form.name: tensor_of(parts[form.name], form.dtype, form.shape) for form in header}


def _places(header: Header) -> Iterator[tuple[int, Form]]:
    start = 0
    for form in header:
        yield start, form
        start += -(-form.nbytes // ALIGNED) * ALIGNED


def _size(header: Header) -> int:
    return sum(-(-form.nbytes // ALIGNED) * ALIGNED for form in header)
