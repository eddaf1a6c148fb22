"""The distribution of actions on some observations, for people: probabilities, means and deviations in the environment's own form.

In: ``params [n, size]`` of a ``Distribution``. Out: numpy arrays in the structure of the action space, with a leading axis of
observations unless there was one observation. Numbers of a Box are in the units of the environment, before they are clipped to its
bounds: ``mean`` and ``std`` are those of a normal distribution, of which ``log_prob`` and ``entropy`` give the density; or of one that
is squashed into the bounds, where the policy has such.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces as gs
from torch import Tensor

from fugu.errors import SpaceError
from fugu.policy.distribution import Distribution
from fugu.spaces.values import Values

IMPOSSIBLE = -1e30
"""log-probabilities below stand for 0: masked logits are finite, so that nothing becomes NaN"""


class ActionDistribution:
    """The distribution of actions on one observation, or on each of several."""

    def __init__(
        self,
        distribution: Distribution,
        params: Tensor,
        action_mask: Tensor | None,
        values: Values,
        generator: torch.Generator,
        *,
        single: bool,
    ) -> None:
        """``values``: reads and writes actions. ``generator``: what ``sample`` draws from. ``single``: of one observation."""
        self._distribution, self._params, self._mask = distribution, params, action_mask
        self._values, self._generator, self._single = values, generator, single

    @property
    def probabilities(self) -> Any:
        """Return the probability of each choice: ``[choices]`` of a Discrete, a list of such arrays of a MultiDiscrete, and of a
        MultiBinary that of each bit to be 1. None for a Box."""
        d, params = self._distribution, self._params
        heads = torch.zeros(len(params), 0, 1)
        if d.heads:
            heads = d.logits(params, self._mask).softmax(-1).reshape(len(params), d.heads, d.widest)
        bits = d.bits(params).sigmoid()
        found: list[Any] = []
        head = bit = 0
        for leaf in self._values.layout.leaves:
            space, size = leaf.space, int(np.prod(leaf.shape))
            if isinstance(space, gs.Discrete):
                found.append(self._shown(heads[:, head, : int(space.n)]))
                head += 1
            elif isinstance(space, gs.MultiDiscrete):
                counts = [int(n) for n in np.ravel(space.nvec)]
                found.append([self._shown(heads[:, head + k, :n]) for k, n in enumerate(counts)])
                head += size
            elif isinstance(space, gs.MultiBinary):
                found.append(self._shown(bits[:, bit : bit + size].reshape(-1, *leaf.shape)))
                bit += size
            else:
                found.append(None)
        return self._values.layout.assemble(found)

    @property
    def mean(self) -> Any:
        """Return the mean of the numbers of each Box; None for choices."""
        scale, shift = self._units()
        return self._reals(self._distribution.moments(self._params.double())[0] * scale + shift)

    @property
    def std(self) -> Any:
        """Return the standard deviation of the numbers of each Box; None for choices."""
        scale, _ = self._units()
        return self._reals(self._distribution.moments(self._params.double())[1] * scale)

    def sample(self) -> Any:
        """Draw an action, from the policy's generator."""
        return self._action(self._distribution.sample(self._params, self._mask, self._generator))

    def mode(self) -> Any:
        """Return the most probable action."""
        return self._action(self._distribution.mode(self._params, self._mask))

    def log_prob(self, action: Any) -> Any:
        """Return the log-probability of ``action``, or of one per observation; for numbers of a Box, the log of the density."""
        if any(leaf.path[-1:] == ("choice",) for leaf in self._values.layout.leaves):
            raise SpaceError("a OneOf has no log_prob: options that were not chosen have one of their own", where="action")
        rows, single = self._values.rows(action)
        if single != self._single or len(rows) != len(self._params):
            raise SpaceError(f"expected {len(self._params)} actions, one per observation, got {len(rows)}", where="action")
        d = self._distribution
        raw = d.env_action.inverse(torch.from_numpy(rows).to(self._params.device))
        logprob = d.logprob(self._params.double(), raw, self._mask)
        logprob = torch.where(logprob < IMPOSSIBLE, -torch.inf, logprob)  # of a masked choice
        return self._number(logprob - self._stretch())

    def entropy(self) -> Any:
        """Return the entropy in nats; for numbers of a Box, that of the density."""
        return self._number(self._distribution.entropy(self._params.double(), self._mask) + self._stretch())

    def _stretch(self) -> Tensor:
        """Return the log of how much wider the units of the environment are than those of the parameters."""
        scale, _ = self._units()
        return torch.where(scale > 0, scale, 1.0).log().sum()

    def _units(self) -> tuple[Tensor, Tensor]:
        scale, shift = self._distribution.env_action.units()
        return scale.to(self._params.device), shift.to(self._params.device)

    def _reals(self, columns: Tensor) -> Any:
        found: list[Any] = []
        start = 0
        for leaf in self._values.layout.leaves:
            size = int(np.prod(leaf.shape))
            real = isinstance(leaf.space, gs.Box)
            found.append(self._shown(columns[:, start : start + size].reshape(-1, *leaf.shape)) if real else None)
            start += size * real
        return self._values.layout.assemble(found)

    def _action(self, action: Tensor) -> Any:
        return self._values.value(self._distribution.to_env(action).cpu().numpy(), single=self._single)

    def _shown(self, column: Tensor) -> np.ndarray:
        array = column.cpu().numpy()
        return array[0] if self._single else array

    def _number(self, column: Tensor) -> Any:
        return float(column[0]) if self._single else column.cpu().numpy()

    def __repr__(self) -> str:
        shown = {"probabilities": self.probabilities} if self._distribution.heads or self._distribution.binaries else {}
        if self._distribution.reals:
            shown |= {"mean": self.mean, "std": self.std}
        return f"ActionDistribution({', '.join(f'{name}={value}' for name, value in shown.items())})"
