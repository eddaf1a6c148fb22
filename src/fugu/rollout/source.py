"""What the training loop asks of where batches come from. No base class: having these members is enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from fugu.rollout.batch import Batch
from fugu.rollout.onpolicy import Actor
from fugu.vector.device import DeviceVec
from fugu.vector.vecenv import EpisodeLog, VecEnv


class Source(Protocol):
    @property
    def vec(self) -> VecEnv | DeviceVec: ...

    @property
    def device(self) -> torch.device:
        """Of the policy that acts, and of batches."""
        ...

    @property
    def segments(self) -> int:
        """How many there are in a batch."""
        ...

    @property
    def horizon(self) -> int:
        """How many rows a segment has."""
        ...

    static: bool
    """whether a batch lies in the same memory each time, so that what is learned from it can be recorded once"""

    unattended: bool
    """whether a batch needs nothing of the host, so that it can be recorded as well"""

    def next(self, act: Actor, stop: Callable[[], bool] = bool) -> Batch:
        """A batch, valid until the next call. ``stop`` is asked now and then; True raises ``Stopped``."""
        ...

    def drain_log(self) -> EpisodeLog:
        """What the episodes that ended since the last call came to."""
        ...

    def restart(self, seed: int) -> None:
        """Start all environments anew."""
        ...

    @property
    def can_snapshot(self) -> bool:
        """Whether a checkpoint can hold all that is needed to go on between two batches; else environments start anew there."""
        ...

    def snapshot(self) -> dict[str, Tensor]:
        """What a checkpoint needs to go on between two batches exactly here; empty if the environments cannot be saved."""
        ...

    def took(self, saved: Mapping[str, Tensor]) -> bool:
        """Whether a source of this kind made the snapshot."""
        ...

    def restore(self, saved: Mapping[str, Tensor]) -> None: ...
