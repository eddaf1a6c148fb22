"""Rows -> tensors: every leaf of a batch of rows as a zero-copy torch view, and leaf tensors back into rows.

In: rows ``[*batch, *row_shape]`` of the layout's dtype, on any device; batch is ``[rows]`` or ``[segments, horizon]``. Out: one
tensor ``[*batch, *leaf.shape]`` per leaf, alone (``leaf_tensors``) or in the space's structure (``tensors``).

Nothing is copied, so this may stand at the top of every forward pass; ``torch.compile`` sees through it. Batch axes may
have any strides (a slice of the horizon, a transposed buffer) as long as each row lies in one piece.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fugu.errors import SpaceError
from fugu.spaces.layout import Layout

TORCH_DTYPES: dict[str, torch.dtype] = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}
"""numpy's name of every dtype a leaf can have -> torch's"""

INDUCTOR_VIEWS_BOOL = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""whether bytes may be viewed as bools in compiled code; in torch 2.11 that does not compile"""


def tensors(layout: Layout, rows: Tensor) -> Any:
    """Return the batch in the space's own structure, as ``Layout.views`` does for numpy; every tensor is a view."""
    return layout.assemble(leaf_tensors(layout, rows))


def leaf_tensors(layout: Layout, rows: Tensor) -> list[Tensor]:
    """Return one view ``[*batch, *leaf.shape]`` per leaf, in the order of ``layout.leaves``."""
    _check(layout, rows)
    if layout.single:
        return [rows]
    _check_memory(layout, rows)
    if rows.numel() == 0:
        rows = rows.new_empty(rows.shape)  # numpy's empty arrays have strides that no view can start from
    if torch.compiler.is_compiling():
        return _traced(layout, rows)
    views = []
    as_dtype = {layout.dtype_name: rows}
    for start, _, dtype, shape in layout.spans:
        if (items := as_dtype.get(dtype)) is None:
            items = as_dtype[dtype] = rows.view(TORCH_DTYPES[dtype])
        first = items.storage_offset() + start * rows.element_size() // items.element_size()
        views.append(items.as_strided(items.shape[:-1] + shape, items.stride()[:-1] + _strides(shape), first))
    return views


def _traced(layout: Layout, rows: Tensor) -> list[Tensor]:
    """Return the same views by steps that a compiler sees through, unlike offsets and strides; inside a graph they cost nothing."""
    views = []
    for start, length, dtype, shape in layout.spans:
        part = rows.narrow(-1, start, length)
        if dtype != layout.dtype_name:
            part = _reinterpret(part, TORCH_DTYPES[dtype])
        if len(shape) == 0:
            part = part.select(-1, 0)
        elif len(shape) > 1:
            part = _split_last_axis(part, shape)
        views.append(part)
    return views


@functools.cache
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in items, of an array of that shape that lies in one piece."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def write_leaves(layout: Layout, rows: Tensor, leaves: Sequence[Tensor]) -> None:
    """Write one tensor ``[*batch, *leaf.shape]`` per leaf into ``rows``, in place.

    Widths are converted (int64 samples into an int8 leaf), kinds are not: a float tensor does not go into a leaf of integers.
    Rows are put together where the leaves are and copied once, so rows on the CPU cost one transfer. Gaps become zero.
    """
    batch = _check(layout, rows)
    if len(leaves) != len(layout.spans):
        raise SpaceError(f"expected {len(layout.spans)} leaves ({_names(layout)}), got {len(leaves)}")
    pieces: list[Tensor] = []
    end = 0
    for index, (leaf, (start, length, name, shape)) in enumerate(zip(leaves, layout.spans, strict=True)):
        dtype = TORCH_DTYPES[name]
        if leaf.shape != batch + shape or (leaf.dtype.is_floating_point and not dtype.is_floating_point):
            raise SpaceError(
                f"expected {name}{list(batch + shape)} or what converts to it, got {_describe(leaf)}",
                where=layout.leaves[index].name or "value",
            )
        if layout.single:
            rows.copy_(leaf)
            return
        if start > end:
            pieces.append(leaf.new_zeros(batch + (start - end,), dtype=rows.dtype))
        items = leaf.to(dtype).reshape(batch + (math.prod(shape),)).contiguous()
        pieces.append(_reinterpret(items, rows.dtype))
        end = start + length
    if end < layout.row_shape[0]:
        pieces.append(pieces[-1].new_zeros(batch + (layout.row_shape[0] - end,)))
    if pieces:
        rows.copy_(torch.cat(pieces, -1))


def _reinterpret(items: Tensor, dtype: torch.dtype) -> Tensor:
    """View the same bytes as ``dtype``."""
    if torch.bool in (items.dtype, dtype) and not INDUCTOR_VIEWS_BOOL and torch.compiler.is_compiling():
        return items.to(dtype)  # the same value for bytes that hold 0 and 1; inside a graph it costs nothing either
    return items.view(dtype)


def _split_last_axis(part: Tensor, shape: tuple[int, ...]) -> Tensor:
    """View ``[*batch, items]`` as ``[*batch, *shape]``.

    The batch sizes must not be named: torch 2.13 cannot give back a view that changed the dtype and whose sizes are
    symbolic (it takes the strides of the new dtype for those of the old one). Windows say the same without them.
    """
    if 0 in shape:
        return part.view(part.shape[:-1] + shape)
    for axis, size in enumerate(reversed(shape[1:]), start=1):
        part = part.unfold(-axis, size, size).movedim(-1, -axis)
    return part


def _check(layout: Layout, rows: Tensor) -> torch.Size:
    """Return the batch axes of ``rows``, which must be rows of this layout."""
    axes = rows.dim() - len(layout.row_shape)
    if rows.dtype != TORCH_DTYPES[layout.dtype_name] or axes < 0 or rows.shape[axes:] != layout.row_shape:
        raise SpaceError(f"expected {layout.describe_rows()}, got {_describe(rows)}")
    return rows.shape[:axes]


def _check_memory(layout: Layout, rows: Tensor) -> None:
    """Refuse rows that do not lie in one piece, or not where their widest item may lie."""
    if rows.numel() == 0:
        return
    strides = rows.stride()
    if strides[-1] != 1 and layout.row_shape[0] > 1:
        raise SpaceError(
            f"each row must be contiguous, got strides {list(strides)} of {_describe(rows)}",
            fix="copy them first: rows.contiguous()",
        )
    step = layout.alignment
    if step == 1 or torch.compiler.is_compiling():  # the offset cannot be traced; torch itself refuses bad ones, less clearly
        return
    if rows.storage_offset() % step or any(stride % step for stride in strides[:-1]):
        raise SpaceError(
            f"each row must start at a multiple of {step} items of its memory, because its widest leaf has {step}; got offset "
            f"{rows.storage_offset()} and strides {list(strides)}",
            fix="copy the rows first: rows.clone()",
        )


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _names(layout: Layout) -> str:
    return ", ".join(leaf.name or "value" for leaf in layout.leaves)
