"""Normal distributions squashed into the bounds of a Box: ``action = tanh(mean + deviation * noise)``, each number in (-1, 1).

Actions are kept squashed, and ``to_env`` scales them to the bounds. The density is that of the squashed numbers (Haarnoja et al. 2018,
arXiv:1801.01290, appendix C): that of the normal one, less ``log(1 - tanh(u) ** 2) = 2 * (log(2) - u - softplus(-2 * u))``.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium import spaces as gs
from torch import Generator, Tensor
from torch.nn import functional as F

from fugu.errors import ConfigError
from fugu.ops.sample import HALF_LOG_TAU
from fugu.policy.distribution import Distribution
from fugu.policy.env_action import UNBOUNDED

LARGEST_LOG_STD = 2.0
"""beyond it nearly all of the density lies at the bounds"""
NODES = 64
"""points at which a mean over the noise is computed (Gauss-Hermite)"""


class Squashed(Distribution):
    """The distribution of actions of bounded Boxes."""

    squashes = True

    def __init__(self, action_space: gs.Space) -> None:
        super().__init__(action_space)
        for leaf in self.layout.leaves:
            space = leaf.space
            if not isinstance(space, gs.Box) or max(abs(space.low).max(), abs(space.high).max()) >= UNBOUNDED:
                raise ConfigError(
                    f"{leaf.name or 'the action space'}: {space} has no bounds on both sides to squash actions into; give it some "
                    "(gymnasium.wrappers.ClipAction does not), or use --algorithm ppo"
                )

    def sample(self, params: Tensor, action_mask: Tensor | None = None, generator: Generator | None = None) -> Tensor:
        mean, log_std = self.gaussian(self._check(params))
        noise = torch.empty_like(mean).normal_(generator=generator)
        return torch.addcmul(mean, noise, log_std.exp()).tanh()

    def sample_with_logprob(
        self, params: Tensor, action_mask: Tensor | None = None, generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return actions and their log-density. Gradients flow through both."""
        mean, log_std = self.gaussian(self._check(params))
        noise = torch.empty_like(mean).normal_(generator=generator)
        u = torch.addcmul(mean, noise, log_std.exp())
        # from the noise itself: (u - mean) / deviation would round, and have a gradient that cancels out
        return u.tanh(), -(0.5 * noise.square() + log_std + _log_slope(u)).sum(-1) - self.reals * HALF_LOG_TAU

    def mode(self, params: Tensor, action_mask: Tensor | None = None) -> Tensor:
        """Return the squashed mean. The greatest density of a wide distribution may lie at a bound instead."""
        return self.gaussian(self._check(params))[0].tanh()

    def logprob(self, params: Tensor, action: Tensor, action_mask: Tensor | None = None) -> Tensor:
        mean, log_std = self.gaussian(self._check(params))
        most = 1 - torch.finfo(action.dtype).eps
        u = action.clamp(-most, most).atanh()
        z = (u - mean) * (-log_std).exp()
        return -(0.5 * z * z + log_std + _log_slope(u)).sum(-1) - self.reals * HALF_LOG_TAU

    def entropy(self, params: Tensor, action_mask: Tensor | None = None) -> Tensor:
        mean, log_std = self.gaussian(self._check(params))
        found = log_std.sum(-1) + self.reals * (0.5 + HALF_LOG_TAU)
        return found + self._mean_of(_log_slope, mean, log_std).sum(-1)

    def evaluate(self, params: Tensor, action: Tensor, action_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.logprob(params, action), self.entropy(params)

    def moments(self, params: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.gaussian(self._check(params))
        first = self._mean_of(torch.tanh, mean, log_std)
        square = self._mean_of(lambda u: u.tanh().square(), mean, log_std)
        return first, (square - first.square()).clamp(min=0).sqrt()

    def gaussian(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation of the numbers before they are squashed."""
        mean, log_std = super().gaussian(params)
        return mean, log_std.clamp(max=LARGEST_LOG_STD)

    def _mean_of(self, f, mean: Tensor, log_std: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        """Return the mean of ``f`` of the numbers before they are squashed."""
        points, weights = (torch.from_numpy(each).to(mean) for each in np.polynomial.hermite.hermgauss(NODES))
        u = mean[..., None] + math.sqrt(2) * log_std.exp()[..., None] * points
        return (f(u) * weights).sum(-1) / math.sqrt(math.pi)


def _log_slope(u: Tensor) -> Tensor:
    """Return ``log(1 - tanh(u) ** 2)`` without cancellation."""
    return 2 * (math.log(2) - u - F.softplus(-2 * u))


class Around(Distribution):
    """Normal distributions around squashed means, of any action space: ``tanh(mean) + deviation * noise``, cut off at the bounds.

    It is for actions that others took. Many of those lie at a bound, where the density of ``Squashed`` has no end. The most probable
    action is the same for both, so what was learned with this one goes on with that one. Numbers without bounds have plain means.
    """

    squashes = True
    bounded: Tensor

    def __init__(self, action_space: gs.Space) -> None:
        super().__init__(action_space)
        boxes = [leaf.space for leaf in self.layout.leaves if isinstance(leaf.space, gs.Box)]
        within = [np.maximum(abs(box.low), abs(box.high)).ravel() < UNBOUNDED for box in boxes]
        self.register_buffer("bounded", torch.from_numpy(np.concatenate([np.zeros(0, bool), *within])), persistent=False)

    def gaussian(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation of the numbers."""
        mean, log_std = super().gaussian(params)
        return torch.where(self.bounded, mean.tanh(), mean), log_std

    def sample_with_logprob(
        self, params: Tensor, action_mask: Tensor | None = None, generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        action = self.sample(params, action_mask, generator)
        return action, self.logprob(params, action, action_mask)
