"""Segments of a rollout on the device, picked by number: all columns of a batch in one launch.

In: columns as ``rollout/batch.py`` has them, ``[segments, horizon, ...]`` or ``[segments, ...]``, the former step by step in memory.
Out: the same for the segments that were picked, step by step in memory again. ``copy_all`` is the same without picking.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from fugu.errors import ConfigError
from fugu.gpu.use import blocks, kernel, ready

COLUMNS, MAX_BLOCKS = 32, 1024
_PICKED = struct.Struct("=QQqqiiii")


def lies_by_steps(column: Tensor) -> bool:
    """Whether ``[segments, horizon, ...]`` is a transposed view of memory in which all segments of a step are neighbours."""
    return column.dim() >= 2 and column.transpose(0, 1).is_contiguous()


def gather(columns: Mapping[str, Tensor], index: Tensor, *, once: Collection[str], together: int = 1) -> dict[str, Tensor]:
    """Segments ``index * together`` and the ``together - 1`` after each. ``once``: names of columns without a horizon.

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
        run = kernel("gather.h", "gather", "spi", device)
        run((min(blocks(most, 256), MAX_BLOCKS), len(boxes)), 256, packed, index.contiguous(), runs)
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
    if not pairs or len(pairs) > COLUMNS or not ready(*(tensor for pair in pairs for tensor in pair)):
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
        run = kernel("gather.h", "copy_all", "s", pairs[0][0].device)
        run((min(blocks(most, 256), MAX_BLOCKS), len(boxes)), 256, packed)
