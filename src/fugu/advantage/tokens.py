"""GAE over the tokens of whole episodes, for policies that make several choices on a row.

In: ``value [segments, turns, tokens]``, ``counts`` of that shape (which choices were made) and ``reward [segments, turns]``. Out:
``advantage [segments, turns, tokens]``, 0 where nothing counts.

The tokens that count are the rows of an episode, one after the other over all its turns. The reward of a turn belongs to its last
token. After the last token of the episode nothing follows: an episode that was cut off is worth what it got.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fugu.ops.advantage import gae


def token_gae(value: Tensor, reward: Tensor, counts: Tensor, *, gamma: float, lam: float) -> Tensor:
    """Return advantages, discounted per token; ``value`` and ``reward`` float32, ``counts`` bool. Tokens that do not count may hold
    anything, even NaN."""
    last = counts & (counts.flip(-1).cumsum(-1).flip(-1) == 1)
    paid = torch.where(last, reward[..., None], 0.0).flatten(1)
    chosen = counts.flatten(1)  # [segments, turns * tokens]
    order = (~chosen).to(torch.int8).argsort(dim=1, stable=True)  # tokens that count come first, in their own order
    chosen = chosen.gather(1, order)
    place = torch.arange(chosen.shape[1], device=chosen.device)
    ended = place == chosen.sum(1, keepdim=True) - 1
    columns = [
        torch.where(chosen, value.flatten(1).gather(1, order), 0.0),
        paid.gather(1, order),
        ended,
        torch.zeros_like(ended),
        torch.zeros_like(paid[:, 0]),
    ]
    traced = gae(*(column.contiguous() for column in columns), gamma=gamma, lam=lam, mask=chosen.contiguous())
    return torch.zeros_like(paid).scatter(1, order, traced).view(value.shape)
