"""One layer of a causal transformer, for a whole text at once or for what comes next, with the keys and values before it in a cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(slots=True)
class Cache:
    """Keys and values of one layer: ``[rows, heads, room, size]``, filled from the front."""

    key: Tensor
    value: Tensor

    @classmethod
    def empty(cls, rows: int, room: int, heads: int, width: int, device: torch.device) -> Cache:
        return cls(*torch.zeros((2, rows, heads, room, width // heads), device=device).unbind())


def visible(index: Tensor, known: int, real: Tensor) -> Tensor:
    """Return ``[rows, 1, queries, keys]``: the places, of the first ``known``, that each place in ``index`` may look at: nothing
    after it, and of the prompt only real tokens (``real [rows, prompt]``). Every place sees itself, or padding would see nothing at
    all."""
    keys = torch.arange(known, device=index.device)
    before = keys <= index[:, None]  # [queries, keys]
    there = F.pad(real[:, :known], (0, max(0, known - real.shape[1])), value=True)  # [rows, keys]
    return ((before & there[:, None]) | (keys == index[:, None]))[:, None]


class Block(nn.Module):
    """Attention and a small network, each added to its input, after a norm."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into_heads = nn.Linear(width, 3 * width, bias=False)
        self.out_of_heads = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        for layer, std in (
            (self.into_heads, 0.02),
            (self.up, 0.02),
            (self.out_of_heads, 0.02 / (2 * layers) ** 0.5),  # so that the sum over layers stays of one size
            (self.down, 0.02 / (2 * layers) ** 0.5),
        ):
            nn.init.normal_(layer.weight, std=std)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, seen: Tensor, cache: Cache | None = None, start: int = 0) -> Tensor:
        """Return the layer's output for ``x [rows, places, width]``, with ``seen`` from ``visible``. With a cache ``x`` stands at
        ``start``, after the cache's contents, and is added to it."""
        query, key, value = self.into_heads(self.first_norm(x)).unflatten(-1, (3, self.heads, self.size)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            stop = start + x.shape[1]
            cache.key[:, :, start:stop], cache.value[:, :, start:stop] = key, value
            key, value = cache.key[:, :, :stop].to(query.dtype), cache.value[:, :, :stop].to(query.dtype)
        read = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)  # [rows, heads, places, size]
        x = x + self.out_of_heads(read.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second_norm(x))))
