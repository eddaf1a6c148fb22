"""Snapshots of a ``VecEnv`` and of the carry beside it: environments, rows that wait for actions, and the carry."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fugu.vector.vecenv import VecEnv

CARRY = "carry "
"""prefix of the names of carries; no column of a vector env has it"""


def snapshot_vec(vec: VecEnv, carry: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return everything needed to go on between two batches exactly here; empty if the environments cannot be saved."""
    if not vec.can_snapshot:
        return {}
    return {**{name: torch.from_numpy(array) for name, array in vec.snapshot().items()}, **saved_carry(carry)}


def restore_vec(vec: VecEnv, carry: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Go on where the snapshot was taken."""
    others = ("recurrent", "generators")
    vec.restore({name: column.numpy() for name, column in saved.items() if name not in others and not name.startswith(CARRY)})
    restore_carry(carry, saved)


def saved_carry(carry: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of a carry, by the names they have in a snapshot."""
    return {CARRY + name: column.cpu().clone() for name, column in carry.items()}


def restore_carry(carry: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Put a carry back. Earlier versions kept all of it side by side as numbers, under ``recurrent``."""
    start = 0
    for name, column in carry.items():
        if "recurrent" in saved:
            width = column[0].numel()
            column.copy_(saved["recurrent"][:, start : start + width].view(column.shape))
            start += width
        else:
            column.copy_(saved[CARRY + name])
