"""Rows of segments in memory: segments picked by number, and ``[segments, horizon]`` in either order as one axis of rows.

In: columns as ``rollout/batch.py`` has them, ``[segments, horizon, ...]`` or, those named in ``once``, ``[segments, ...]``. The memory
of the former goes segment by segment or step by step; copies lie in memory as the originals do. On a GPU, where segments of a step are
neighbours, all columns of a batch are copied in one launch.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from fugu.errors import ConfigError
from fugu.gpu import use

COLUMNS, MAX_BLOCKS = 32, 1024
_PICKED = struct.Struct("=QQqqiiii")


def pick(columns: Mapping[str, Tensor], index: Tensor, lead: Tensor, *, once: Collection[str]) -> dict[str, Tensor]:
    """Return copies of the segments that ``index`` names. ``lead`` is the column ``[segments, horizon]`` that tells the order."""
    launches = (lead.is_cuda or use.emulated) and use.ready(*columns.values(), half=True)
    if launches and lies_by_steps(lead) and len(columns) <= COLUMNS:
        return gather(columns, index.to(lead.device), once=once)
    return {name: _select(column, index.to(column.device), name in once) for name, column in columns.items()}


def compact(
    columns: Mapping[str, Tensor], lead: Tensor, *, once: Collection[str], but: Collection[str] = ()
) -> Mapping[str, Tensor]:
    """Return the columns without gaps in memory, so that rows of a part of a batch on a GPU can be flattened; all but ``but``."""
    if not (lead.is_cuda or use.emulated) or not time_major(lead) or lead.t().is_contiguous() or not use.ready(lead):
        return columns
    all_of_it = torch.zeros(1, dtype=torch.int64, device=lead.device)
    copied = {name: column for name, column in columns.items() if name not in but}
    return {**columns, **gather(copied, all_of_it, once=once, together=len(lead))}


def lies_by_steps(column: Tensor) -> bool:
    """Say whether ``[segments, horizon, ...]`` is a transposed view of memory in which all segments of a step are neighbours."""
    return column.dim() >= 2 and column.transpose(0, 1).is_contiguous()


def time_major(column: Tensor) -> bool:
    """Say whether rows of the same time lie together in the memory of ``column [segments, horizon, ...]``."""
    return column.stride(0) < column.stride(1) and column.shape[0] > 1 and column.shape[1] > 1


def flat(column: Tensor, by_time: bool) -> Tensor:
    """Return ``[rows, ...]`` of ``[segments, horizon, ...]``, row after row of the same time or segment after segment.

    Which one is said once for all columns that belong together, not read off each: then rows match whatever memory a computation
    has put its result into. It is a view where the memory allows.
    """
    return column.transpose(0, 1).flatten(0, 1) if by_time else column.flatten(0, 1)


def unflat(rows: Tensor, like: Tensor, by_time: bool) -> Tensor:
    """Undo ``flat``, to the shape of ``like [segments, horizon]``; a view."""
    if by_time:
        return rows.unflatten(0, (like.shape[1], like.shape[0])).transpose(0, 1)
    return rows.unflatten(0, (like.shape[0], like.shape[1]))


def _select(column: Tensor, index: Tensor, once: bool) -> Tensor:
    if not once and time_major(column):
        return column.transpose(0, 1).index_select(1, index).transpose(0, 1)
    return column.index_select(0, index)


def gather(columns: Mapping[str, Tensor], index: Tensor, *, once: Collection[str], together: int = 1) -> dict[str, Tensor]:
    """Return segments ``index * together`` and the ``together - 1`` after each, by a kernel. ``once``: columns without a horizon.

    ``index`` is int64 on the device, and trusted. Runs of 32 and more neighbours are read at the speed of a plain copy.
    """
    if len(columns) > COLUMNS:
        raise ConfigError(f"gather takes at most {COLUMNS} columns, got {len(columns)}")
    device, runs = index.device, len(index)
    out: dict[str, Tensor] = {}
    boxes, most = [], 0
    sources: list[Tensor] = []  # alive until the kernel has been launched
    for name, column in columns.items():
        source = column[None] if name in once else column.transpose(0, 1)
        if not source[0].is_contiguous():  # steps may lie apart, as in a part of a batch; what belongs to a step may not
            source = source.contiguous()
        sources.append(source)
        steps, shape = source.shape[0], source.shape[1:]
        if shape[0] % together:
            raise ConfigError(f"{name}: {shape[0]} segments are not a multiple of together={together}")
        made = source.new_empty((runs * together, *shape[1:]) if name in once else (steps, runs * together, *shape[1:]))
        row = source.element_size() * shape[1:].numel()
        steps_bytes = (source.stride(0) * source.element_size(), runs * together * row)
        aligned = (source.data_ptr() | made.data_ptr() | steps_bytes[0] | steps_bytes[1] | row * together) & 15
        unit = 16 if aligned == 0 else 4 if aligned & 3 == 0 else 1
        most = max(most, steps * steps_bytes[1] // unit)
        boxes.append(_PICKED.pack(source.data_ptr(), made.data_ptr(), *steps_bytes, steps, row * together, unit, 0))
        out[name] = made if name in once else made.transpose(0, 1)
    packed = b"".join(boxes) + bytes(_PICKED.size * (COLUMNS - len(boxes)))
    if most >= 1 << 31:
        raise ConfigError(f"gather: {most} pieces of a column are more than a call can count; pick fewer segments")
    if most:
        run = use.kernel("gather.h", "gather", "spi", device)
        run((min(use.blocks(most, 256), MAX_BLOCKS), len(boxes)), 256, packed, index.contiguous(), runs)
    return out


def copy_all(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copy the bytes of each first tensor to the second, all in one launch; of both the memory must be in one piece.

    Where there is no kernel torch copies one after the other.
    """
    for source, to in pairs:
        if source.nbytes != to.nbytes or source.dtype != to.dtype or not (source.is_contiguous() and to.is_contiguous()):
            raise ConfigError(
                f"copy_all: {source.dtype}{list(source.shape)} is not like {to.dtype}{list(to.shape)}, in one piece"
            )
    launches = 0 < len(pairs) <= COLUMNS and (pairs[0][0].is_cuda or use.emulated)
    if not launches or not use.ready(*(tensor for pair in pairs for tensor in pair)):
        for source, to in pairs:
            to.view(-1).copy_(source.view(-1))
        return
    boxes, most = [], 0
    for source, to in pairs:
        aligned = (source.data_ptr() | to.data_ptr() | source.nbytes) & 15
        unit = 16 if aligned == 0 else 4 if aligned & 3 == 0 else 1
        most = max(most, source.nbytes // unit)
        boxes.append(_PICKED.pack(source.data_ptr(), to.data_ptr(), 0, 0, 1, source.nbytes, unit, 0))
    packed = b"".join(boxes) + bytes(_PICKED.size * (COLUMNS - len(boxes)))
    if most:
        run = use.kernel("gather.h", "copy_all", "s", pairs[0][0].device)
        run((min(use.blocks(most, 256), MAX_BLOCKS), len(boxes)), 256, packed)
