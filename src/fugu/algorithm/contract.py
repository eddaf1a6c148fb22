"""The base class of all algorithms: what an author writes, and a default for everything that is not the algorithm.

The loop is: a source plays a batch with ``act``; ``prepare`` adds columns to it once, without gradients; ``loss`` is minimised on
minibatches of whole segments until ``enough``; then comes ``finish``. ``progress`` runs from 0 to 1 over the training.

An algorithm is an ``nn.Module``. Its weights and statistics are found like those of any module, its random generators by searching
the attributes of all its parts. A checkpoint holds them all, so nothing needs to be listed. State that is no tensor goes through
torch's own ``get_extra_state`` and ``set_extra_state``, as a mapping of tensors. Each part that is a direct attribute has its own
optimizer and its own bound on the gradient, so that one does not change how another learns.

An algorithm with several losses, each of which is to see what the step before it changed, writes ``losses`` in place of ``loss``: after
each that it yields, the parts that the gradient reached take a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from fugu.algorithm.setup import Setup
from fugu.ranks import ALONE, Ranks
from fugu.rollout.acting import Act, Seen
from fugu.rollout.batch import Batch
from fugu.rollout.envs import Envs
from fugu.rollout.source import Source

Acting = TypeVar("Acting", bound=Callable[..., Act])

Metrics = dict[str, Tensor]
"""metrics by name (``loss/...``), each a scalar without gradient"""


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """No settings."""


def greedy_is_mode(act: Acting) -> Acting:
    """Mark an ``act`` that, when greedy, takes the most probable action of ``self.policy`` and does nothing else, so that who wants
    only that action may ask the network itself."""
    act.greedy_is_mode = True  # type: ignore[attr-defined]
    return act


class Algorithm(nn.Module):
    """Learns a policy. Subclasses write ``act`` and ``loss`` (or ``losses``), and the other members if they need them."""

    Config: ClassVar[type] = NoSettings
    """the settings: a frozen dataclass whose fields have defaults, each with its help text under it"""

    enough: Callable[[Metrics], bool] | None = None
    """predicate called after every minibatch, with its metrics: True if the batch has been used enough; None: it never has, and on
    a GPU nothing waits for the answer"""

    losses: Callable[[Batch], Iterator[tuple[Tensor, Metrics]]] | None = None
    """generator of several losses of a minibatch, each with metrics: before the next is asked for, the parts that have a gradient of it
    take a step; None: there is one, ``loss``"""

    rates: Mapping[str, float] = MappingProxyType({})
    """factor on the learning rate by part (the name of the attribute, or ``algorithm`` for its own weights), where it is not 1"""

    policy: Any
    """the network that acts"""

    def __init__(self, policy: nn.Module, settings: Any = None, *, seed: int = 0, ranks: Ranks = ALONE) -> None:
        super().__init__()
        self.policy = policy
        self.settings = settings
        self.ranks = ranks
        self.device = next(policy.parameters()).device
        self.generator = torch.Generator(self.device).manual_seed(seed)

    @classmethod
    def build(cls, setup: Setup) -> Algorithm:
        """Make the algorithm of a run. By default its policy is the network that the run's config describes."""
        return cls(setup.policy(), setup.settings, seed=setup.seeds.act, ranks=setup.ranks)

    def source(self, envs: Envs) -> Source:
        """Return the source of batches. By default every agent acts ``horizon`` times between two updates."""
        return envs.on_policy(self)

    def act(self, seen: Seen) -> Act:
        """Choose actions, without gradients. ``Act.columns`` become columns of the batch."""
        raise NotImplementedError(f"{type(self).__name__}.act")

    def prepare(self, batch: Batch, progress: float | Tensor) -> Batch:
        """Add to a batch what stays constant while it is learned from; called once, without gradients."""
        return batch

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the loss of a minibatch, a scalar to minimise, and metrics."""
        raise NotImplementedError(f"{type(self).__name__}.loss")

    def finish(self, batch: Batch) -> Metrics:
        """Called after the last minibatch, without gradients: take the batch into running statistics and return batch-level
        metrics."""
        return {}

    def merit(self, score: float, costs: Mapping[str, float]) -> float | None:
        """Return the number that checkpoints are compared by and a target is reached by; None: this one cannot be the best.
        ``score`` is the mean return and ``costs`` are the mean costs of the episodes of an evaluation; empty for the returns of
        training."""
        return score

    def restarted(self) -> None:
        """Forget sums over episodes that were still running: all environments have started new ones."""
