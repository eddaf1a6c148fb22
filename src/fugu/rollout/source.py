"""Sources: where batches of experience come from.

``next(actor)`` plays, or reads, and returns an ``Experience``; ``feedback`` takes back what learning found about it. Everything else
has a default here. A source without environments has ``vec = None``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fugu.rollout.acting import Actor
from fugu.rollout.batch import Batch
from fugu.vector.device import DeviceVec
from fugu.vector.vecenv import EpisodeLog, VecEnv

Clock = Callable[[str], AbstractContextManager[None]]
"""function that takes the name of a phase and times what happens inside"""


class Stopped(KeyboardInterrupt):
    """The rollout was asked to stop before it was complete. Not an ``Exception``, so that no environment swallows it."""


def no_episodes() -> EpisodeLog:
    """Return the log of a source that plays nothing."""
    return EpisodeLog(0, 0.0, 0.0, {})


@dataclass(slots=True)
class Page:
    """Rows of a source that do not change any more: a file that checkpoints share."""

    columns: Callable[[], Mapping[str, Tensor]]
    """function that returns the rows"""
    file: Mapping[str, Any] | None = None
    """name, size and hash of the file; None: it is not written yet"""


@dataclass(frozen=True, slots=True)
class Kept:
    """The memory of a source, apart from its environments."""

    tensors: Mapping[str, Tensor]
    """what changes all the time, written with every checkpoint"""
    pages: Sequence[Page]
    """what does not, each written once"""


@dataclass(slots=True)
class Experience:
    """The rows that a source hands on to be learned from, valid until its next call."""

    batch: Batch
    rows: int | Tensor
    """rows that environments played for it, counted over all agents; 0 if a batch is only drawn again"""
    version: int = 0
    """version of the policy that played them; with several policies, the oldest version"""
    episodes: Callable[[], EpisodeLog] = no_episodes
    """function that returns the episodes that ended meanwhile; only calling it waits for a device"""
    acted: Tensor | None = None
    """[agents] bool; which agents acted in these rows. None: batches are whole episodes of all agents"""
    ended: Tensor | None = None
    """[agents] bool; which came to the end of an episode"""


class Source:
    vec: VecEnv | DeviceVec | None = None
    """environments that are played; None: nothing is played"""
    device: torch.device
    """device that the policy acts on and batches lie on"""
    segments: int
    """segments of a batch"""
    horizon: int
    """rows of a segment"""
    note: str | None = None
    """line for whoever starts a run: what it will take"""
    static = False
    """True if a batch lies in the same memory each time, so that learning from it can be recorded once"""
    uniform = False
    """True if the columns of a batch have the same shapes each time, so that learning from a copy of it can be recorded"""
    unattended = False
    """True if a batch needs nothing of the host, so that playing it can be recorded as well"""
    lag = 0
    """updates between the weights that play a batch and those that learn from it"""

    def next(self, actor: Actor, stop: Callable[[], bool] = bool) -> Experience:
        """Return the next batch. ``stop`` is asked now and then; True raises ``Stopped``."""
        raise NotImplementedError(f"{type(self).__name__}.next")

    def feedback(self, columns: Mapping[str, Tensor], segments: Tensor | None) -> None:
        """Take back what learning found out about ``segments`` of the last batch (None: all of them). By default nothing is kept."""

    def measured(self) -> dict[str, float]:
        """Return metrics of the last batch that the machine decides, such as how long it was waited for."""
        return {}

    @property
    def played(self) -> int:
        """Return the number of rows that environments play for a batch, about."""
        return self.segments * self.horizon

    def waited(self) -> Mapping[str, float]:
        """Return how long what works beside the caller had to wait since the last call, in seconds by name (``wait_learner``)."""
        return {}

    def restart(self, seed: int) -> None:
        """Start all environments anew."""

    @property
    def can_snapshot(self) -> bool:
        """Return whether a checkpoint can hold everything needed to go on between two batches; otherwise environments start anew
        there."""
        return True

    def snapshot(self) -> dict[str, Tensor]:
        """Return what a checkpoint needs to go on exactly here; empty if the environments cannot be saved."""
        return {}

    def fits(self, saved: Mapping[str, Tensor]) -> bool:
        """Return whether a source of this kind made the snapshot."""
        return True

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Go on where the snapshot was taken."""

    def kept(self) -> Kept | None:
        """Return what a checkpoint holds beside the environments, also where those start anew; None: nothing."""
        return None

    def remember(self, tensors: Mapping[str, Tensor], pages: Iterable[Page]) -> None:
        """Take back what ``kept`` returned, before environments are restored or restarted."""

    def close(self) -> None:
        """Close the environments."""
        if self.vec is not None:
            self.vec.close()
