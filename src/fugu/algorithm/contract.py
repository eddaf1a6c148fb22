"""What the training loop asks of an algorithm. No base class: having these members is enough.

The loop is: a source fills a batch with ``act``; ``prepare`` adds columns to it once, without gradients; for minibatches of whole
segments, ``loss`` is minimised until ``enough``; then ``finish``. ``progress`` runs from 0 to 1 over the training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from fugu.rollout.batch import Batch
from fugu.rollout.device import Whole
from fugu.rollout.episodes import Groups
from fugu.rollout.onpolicy import Actor
from fugu.vector.device import DeviceVec

if TYPE_CHECKING:
    from fugu.trainer.config import TrainConfig

Metrics = dict[str, Tensor]
"""name (``loss/...``) -> a scalar without gradient"""


class Algorithm(Protocol):
    modules: dict[str, nn.Module]
    """everything with weights or statistics that a checkpoint must hold; ``policy`` is what acts. The gradient of each is bounded on
    its own, so that one does not change how another learns"""

    generators: list[torch.Generator]
    """where its randomness comes from, so that a CUDA graph can go on with it; ``act`` may be given another"""

    groups: Groups | None
    """which episodes a batch is to be made of; None: of segments of ``horizon`` rows, wherever episodes begin and end"""

    @property
    def columns(self) -> Mapping[str, tuple[tuple[int, ...], torch.dtype]]:
        """What ``act`` keeps of a row, by name: shape and dtype."""
        ...

    @property
    def state_size(self) -> int:
        """How many numbers ``act`` carries on from an agent's row to its next; 0: none."""
        ...

    @property
    def act(self) -> Actor: ...

    def begin(self) -> None:
        """The policy was changed from outside before its first batch, by imitation: what was copied from it is copied again."""

    def prepare(self, batch: Batch, progress: float | Tensor) -> Batch: ...

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]: ...

    @property
    def asks(self) -> str | None:
        """Why ``enough`` must be asked after every minibatch; None: it never says yes."""
        ...

    def enough(self, metrics: Metrics) -> bool:
        """Whether a batch has been learned from enough, judged by the minibatch just done."""
        ...

    def finish(self, batch: Batch) -> Metrics:
        """After the last minibatch of a batch: what is to be said of it as a whole."""
        ...

    def merit(self, score: float) -> float | None:
        """What checkpoints are compared by, to know the best: ``score``, the mean return of late, or what says more; None: this one
        cannot be the best."""
        ...

    def fuse(self, config: TrainConfig) -> None:
        """From now on do the same in a few kernels, where there are any for it."""

    def whole(self, vec: DeviceVec) -> Whole | None:
        """What lets these environments run for a whole horizon in one kernel, where there is one."""
        ...

    def restarted(self) -> None:
        """All environments have started new episodes."""

    def state(self) -> dict[str, Tensor]:
        """What else a checkpoint must hold: random generators, running sums."""
        ...

    def load_state(self, state: Mapping[str, Tensor]) -> None: ...
