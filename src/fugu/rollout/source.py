"""Sources: where batches of experience come from.

``next(actor)`` plays, or reads, and returns an ``Experience``; ``feedback`` takes back what learning found about it. Everything else
has a default here. A source without environments has ``vec = None``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from fugu.rollout.acting import Actor
from fugu.rollout.batch import Batch
from fugu.vector.device import DeviceVec
from fugu.vector.vecenv import EpisodeLog, VecEnv

Clock = Callable[[str], AbstractContextManager[None]]
"""takes the name of a phase and times what happens inside"""


class Stopped(KeyboardInterrupt):
    """The rollout was asked to stop before it was complete. Not an ``Exception``, so that no environment swallows it."""


def no_episodes() -> EpisodeLog:
    """Return the log of a source that plays nothing."""
    return EpisodeLog(0, 0.0, 0.0, {})


@dataclass(slots=True)
class Experience:
    """What a source hands on to be learned from, valid until its next."""

    batch: Batch
    rows: int | Tensor
    """rows of environments that were played for it, counted over all agents; 0 where a batch is only drawn again"""
    version: int = 0
    """of the policy that played them; where several did, of the oldest"""
    episodes: Callable[[], EpisodeLog] = no_episodes
    """returns the episodes that ended meanwhile; a device is waited for only when this is called"""
    acted: Tensor | None = None
    """[agents] bool; which agents acted in these rows. None: batches are whole episodes of all agents"""
    ended: Tensor | None = None
    """[agents] bool; which came to the end of an episode"""


class Source:
    vec: VecEnv | DeviceVec | None = None
    """the environments that are played; None: nothing is played"""
    device: torch.device
    """where the policy acts and batches lie"""
    segments: int
    """segments of a batch"""
    horizon: int
    """rows of a segment"""
    static = False
    """whether a batch lies in the same memory each time, so that what is learned from it can be recorded once"""
    unattended = False
    """whether a batch needs nothing of the host, so that it can be recorded as well"""

    def next(self, actor: Actor, stop: Callable[[], bool] = bool) -> Experience:
        """Return the next batch. ``stop`` is asked now and then; True raises ``Stopped``."""
        raise NotImplementedError(f"{type(self).__name__}.next")

    def feedback(self, columns: Mapping[str, Tensor], segments: Tensor | None) -> None:
        """Take back what learning found of some ``segments`` of the last batch, of all if None. Nothing is kept by default."""

    def restart(self, seed: int) -> None:
        """Start all environments anew."""

    @property
    def can_snapshot(self) -> bool:
        """Whether a checkpoint can hold all that is needed to go on between two batches; else environments start anew there."""
        return True

    def snapshot(self) -> dict[str, Tensor]:
        """Return what a checkpoint needs to go on exactly here; empty if the environments cannot be saved."""
        return {}

    def fits(self, saved: Mapping[str, Tensor]) -> bool:
        """Return whether a source of this kind made the snapshot."""
        return True

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Go on where the snapshot was taken."""

    def close(self) -> None:
        """Close the environments."""
        if self.vec is not None:
            self.vec.close()
