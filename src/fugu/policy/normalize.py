"""Mean and variance of the rows seen so far, and numbers shifted and scaled by them.

The moments are float64 buffers: they are saved with the module they belong to, and stay exact over billions of rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fugu.ranks import ALONE, Ranks

EPSILON = 1e-8
CLIP = 10.0
"""deviations beyond which a normalised number is cut off"""


class RunningMoments(nn.Module):
    """Moments per element of ``shape``. Before the first ``update`` numbers pass as they are (up to ``clip``)."""

    count: Tensor
    mean: Tensor
    var: Tensor
    ranks: Ranks = ALONE
    """ranks whose rows are taken in together"""

    def __init__(self, shape: Sequence[int] = (), clip: float = CLIP) -> None:
        super().__init__()
        self.clip = clip
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(tuple(shape), dtype=torch.float64))
        self.register_buffer("var", torch.ones(tuple(shape), dtype=torch.float64))

    @torch.no_grad()
    def update(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Take in the rows of ``x [*batch, *shape]`` where ``mask [*batch]`` is true; rows with a NaN or infinity are left out.

        Joins two sets of rows by their counts, means and variances (Chan, Golub & LeVeque 1979). No step depends on the data on
        the host's side, so that it can be captured in a CUDA graph.
        """
        rows = x.to(torch.float64).reshape(-1, *self.mean.shape)
        valid = torch.isfinite(rows).flatten(1).all(1) if rows.dim() > 1 else torch.isfinite(rows)
        if mask is not None:
            valid = valid & mask.reshape(-1)
        weight = valid.reshape(-1, *(1,) * self.mean.dim())
        count = self.ranks.sum(valid.sum())
        some = count.clamp_min(1)
        mean = self.ranks.sum(torch.where(weight, rows, 0).sum(0)) / some
        deviation = torch.where(weight, rows - mean, 0)
        var = self.ranks.sum((deviation * deviation).sum(0)) / some
        total = (self.count + count).clamp_min(1)
        share = count / total  # of the new rows in all
        delta = mean - self.mean
        joined = (1 - share) * self.var + share * var + delta * delta * (share * (1 - share))
        seen = count > 0
        self.var.copy_(torch.where(seen, joined, self.var))
        self.mean.copy_(torch.where(seen, self.mean + delta * share, self.mean))
        self.count += count

    def forward(self, x: Tensor) -> Tensor:
        """Return ``clip((x - mean) / sqrt(var + epsilon))`` as float32, of the shape of ``x``."""
        dtype = x.dtype if x.dtype == torch.float64 else torch.float32
        scale = (self.var + EPSILON).rsqrt().to(dtype)
        return ((x.to(dtype) - self.mean.to(dtype)) * scale).clamp(-self.clip, self.clip).float()


class DecayingMoments(RunningMoments):
    """Moments of plain numbers of which ``decay`` is kept per update, so that old ones are forgotten.

    What is summed starts at 0; dividing by the weight of all updates together, ``count``, undoes that (as Adam does).
    """

    sums: Tensor

    def __init__(self, decay: float) -> None:
        super().__init__(())
        self.decay = decay
        self.register_buffer("sums", torch.zeros(2, dtype=torch.float64))
        """sums of the mean and of the mean square"""

    @torch.no_grad()
    def update(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Take in the mean of ``x`` and of its square where ``mask`` is true and ``x`` finite; change nothing if there is no such
        row."""
        valid = torch.isfinite(x) if mask is None else torch.isfinite(x) & mask
        count = self.ranks.sum(valid.sum())
        numbers = torch.where(valid, x.to(torch.float64), 0)
        new = self.ranks.sum(torch.stack([numbers.sum(), numbers.square().sum()])) / count.clamp_min(1)
        seen = count > 0
        self.sums.copy_(torch.where(seen, self.decay * self.sums + (1 - self.decay) * new, self.sums))
        self.count.copy_(torch.where(seen, self.decay * self.count + (1 - self.decay), self.count))
        some = self.count > 0
        mean, square = (self.sums / torch.where(some, self.count, 1.0)).unbind()
        self.mean.copy_(torch.where(some, mean, self.mean))
        self.var.copy_(torch.where(some, (square - mean * mean).clamp_min(0), self.var))
