"""Numbers of any size as classes: symlog squeezes them, and a distribution over bins says how likely each is.

A reward or a return is put between the two bins around it, in proportion (two-hot), and learned by cross entropy; what is read back is
the mean over the bins. So losses do not grow with the unit of rewards (Hafner et al. 2023, arXiv:2301.04104).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

LARGEST = 20.0
"""symlog of the outermost bins: numbers up to 4.8e8"""


def symlog(x: Tensor) -> Tensor:
    """Return ``sign(x) * log(1 + |x|)``."""
    return x.sign() * x.abs().log1p()


def symexp(x: Tensor) -> Tensor:
    """Return the inverse of ``symlog``."""
    return x.sign() * x.abs().expm1()


class TwoHot(nn.Module):
    """``count`` bins, an odd number, evenly spaced in symlog and symmetric around 0."""

    bins: Tensor

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        lower = symexp(torch.linspace(-LARGEST, 0, count // 2 + 1))
        self.register_buffer("bins", torch.cat([lower, -lower[:-1].flip(0)]), persistent=False)

    def between(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bin above ``y``, and its share of the two around it."""
        y = y.clamp(self.bins[0], self.bins[-1]).contiguous()
        above = torch.searchsorted(self.bins, y, right=True).clamp(1, self.count - 1)
        low, high = self.bins[above - 1], self.bins[above]
        return above, (y - low) / (high - low)

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the cross entropy ``[*batch]`` of ``logits [*batch, count]`` and ``y [*batch]``."""
        above, share = self.between(y)
        pair = logits.gather(-1, torch.stack([above - 1, above], -1))
        return logits.logsumexp(-1) - torch.lerp(pair[..., 0], pair[..., 1], share)

    def mean(self, logits: Tensor) -> Tensor:
        """Return the mean ``[*batch]``. Bins are summed in pairs, so that logits of zeros mean exactly 0."""
        chance, half = logits.softmax(-1), self.count // 2
        return ((chance[..., half + 1 :] - chance[..., :half].flip(-1)) * self.bins[half + 1 :]).sum(-1)
