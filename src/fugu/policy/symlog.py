"""Numbers of any size as classes: symlog squeezes them, and a distribution over bins says how likely each is.

A reward or a return is put between the two bins around it, in proportion (two-hot), and learned by cross entropy; what is read back is
the mean over the bins. So losses do not grow with the unit of rewards (Hafner et al. 2023, arXiv:2301.04104).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fugu.ops.two_hot import two_hot_loss, two_hot_mean

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

    def loss(self, logits: Tensor, *targets: Tensor) -> Tensor:
        """Return the sum of the cross entropies ``[*batch]`` of ``logits [*batch, count]`` and each of the targets ``[*batch]``."""
        return two_hot_loss(logits, self.bins, torch.stack(targets, -1))

    def mean(self, logits: Tensor) -> Tensor:
        """Return the mean ``[*batch]``. Bins are summed in pairs, so that logits of zeros mean exactly 0."""
        return two_hot_mean(logits, self.bins)
