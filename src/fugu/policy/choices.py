"""A policy as an algorithm without values sees it: it makes choices, one after the other, each with a probability.

One row may ask for several choices in a row: the tokens of a text (``transformer.py``). An ``ActorCritic`` makes one per row.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fugu.policy.distribution import Distribution


class Drawn(NamedTuple):
    action: Tensor
    """[rows, dims]"""
    logprob: Tensor
    """[rows, tokens] of each choice; 0 where ``counts`` says there was none"""
    state: Tensor | None
    """[rows, state_size] memory after these rows"""


class Judged(NamedTuple):
    logprob: Tensor
    """[*batch, tokens] of the choices that were made; anything where none was"""
    entropy: Tensor
    """[*batch, tokens] of the distributions they were drawn from"""


class Chooser(Protocol):
    distribution: Distribution
    state_size: int
    tokens: int
    """choices per row, at most"""

    def draw(
        self,
        obs: Tensor,
        state: Tensor | None,
        first: Tensor,
        action_mask: Tensor | None,
        generator: torch.Generator,
        *,
        greedy: bool = False,
    ) -> Drawn:
        """Choose on ``obs [rows, *row]``; ``greedy``: the most probable action. Called without gradients."""
        ...

    def judge(self, obs: Tensor, state: Tensor | None, first: Tensor, action: Tensor, action_mask: Tensor | None) -> Judged:
        """Return how probable ``action [segments, horizon, dims]`` is now, on ``obs [segments, horizon, *row]``; gradients flow."""
        ...

    def counts(self, action: Tensor) -> Tensor:
        """Return ``[*batch, tokens]``: which of the choices were made. A text that ended early made fewer than there is room for."""
        ...

    def unfinished(self, action: Tensor) -> Tensor:
        """Return ``[*batch]``: which actions were cut off before their end."""
        ...

    def observe(self, obs: Tensor, mask: Tensor | None = None) -> None:
        """Take rows into the statistics that normalise observations, if there are any."""
        ...
