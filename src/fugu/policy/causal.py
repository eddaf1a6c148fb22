"""A causal transformer over tokens that are given as vectors: for whole sequences to learn from, and token by token to act.

In: ``x [rows, places, width]``. Out: the same after the last layer. ``forward`` looks at all places at once and needs the outcome of
only every third place or so (``wanted``): the last layer computes no others. ``extend`` adds a few tokens to a ``Memory`` of keys and
values; rows stand at different places there, as their episodes began at different times.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from fugu.ops.mlp import mlp
from fugu.policy.attention import Block


class Memory:
    """Keys and values of all layers, ``[rows, layers, 2, slots, width]``, in one tensor."""

    def __init__(self, kept: Tensor) -> None:
        self.kept = kept

    def add(self, layer: int, slot: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write ``[rows, new, width]`` into the slots ``[rows, new]``. Returns all keys and values of the layer."""
        where = slot[..., None].expand_as(key)
        for index, new in enumerate((key, value)):
            self.kept[:, layer, index].scatter_(1, where, new)
        return self.kept[:, layer, 0], self.kept[:, layer, 1]


class Causal(nn.Module):
    def __init__(self, width: int, heads: int, layers: int, dropout: float) -> None:
        """``dropout``: share of the numbers that are left out while learning."""
        super().__init__()
        self.width, self.heads, self.dropout = width, heads, dropout
        self.blocks: Sequence[Block] = nn.ModuleList(Block(width, heads, layers) for _ in range(layers))  # type: ignore[assignment]
        self.norm = nn.LayerNorm(width)
        self.zeros: Tensor
        self.register_buffer("zeros", torch.zeros(3 * width), persistent=False)
        """in the place of biases that there are none of"""

    def memory(self, rows: int, slots: int, device: torch.device) -> Tensor:
        """Return an empty memory."""
        return torch.zeros(rows, len(self.blocks), 2, slots, self.width, device=device)

    # --- all places at once ---

    def forward(self, x: Tensor, wanted: slice = slice(None), generator: Generator | None = None) -> Tensor:
        """Return ``[rows, places[wanted], width]``. ``generator``: draws what is left out; None: nothing is."""
        places = torch.arange(x.shape[1], device=x.device)
        x = self._dropped(x, generator)
        for number, block in enumerate(self.blocks):
            last = number == len(self.blocks) - 1
            seen = places <= places[wanted, None] if last else None
            query, key, value = self._heads(block, block.first_norm(x), wanted if last else slice(None))
            read = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, is_causal=seen is None)
            x = self._rest(block, x[:, wanted] if last else x, read, generator)
        return self.norm(x)

    def _heads(self, block: Block, x: Tensor, wanted: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries of the ``wanted`` places, keys and values, ``[rows, heads, places, size]``."""
        weight, width = block.into_heads.weight, self.width
        if wanted == slice(None):
            return tuple(map(self._split, self._linear(x, weight).chunk(3, -1)))  # type: ignore[return-value]
        key, value = self._linear(x, weight[width:]).chunk(2, -1)
        return self._split(self._linear(x[:, wanted], weight[:width])), self._split(key), self._split(value)

    def _linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return ``x @ weight.T``: our kernels take half the time of torch's on a CPU."""
        return mlp(x, [weight], [self.zeros[: len(weight)]], "relu", last="none")

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _rest(self, block: Block, x: Tensor, read: Tensor, generator: Generator | None) -> Tensor:
        """Return what follows in a layer after attention has ``read``."""
        x = x + self._dropped(self._linear(read.transpose(1, 2).flatten(2), block.out_of_heads.weight), generator)
        layers = [block.up.weight, block.down.weight], [block.up.bias, block.down.bias]
        return x + self._dropped(mlp(block.second_norm(x), *layers, "relu", last="none"), generator)

    def _dropped(self, x: Tensor, generator: Generator | None) -> Tensor:
        """Return ``x`` with a share of it left out, from a generator of ours: that of torch is in no checkpoint."""
        cut = round(256 * self.dropout)
        if generator is None or not cut:
            return x
        # a byte for each number: real numbers take ten times as long to draw, which is felt on a CPU
        words = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device)
        drawn = words.random_(-(2**63), None, generator=generator).view(torch.uint8)[: x.numel()].view(x.shape)
        return x * (drawn >= cut).to(x.dtype).mul_(256 / (256 - cut))

    # --- token by token ---

    def extend(self, x: Tensor, slot: Tensor, memory: Memory) -> Tensor:
        """Return the outcome for ``x [rows, new, width]``, whose places in the memory are ``slot [rows, new]``. A token sees the slots
        from 1 up to its own: slot 0 is for tokens that are none."""
        slots = torch.arange(memory.kept.shape[3], device=x.device)
        seen = ((slots >= 1) & (slots <= slot[..., None])) | (slots == slot[..., None])  # [rows, new, slots]
        for number, block in enumerate(self.blocks):
            query, key, value = self._linear(block.first_norm(x), block.into_heads.weight).chunk(3, -1)
            keys, values = memory.add(number, slot, key, value)
            query, keys, values = map(self._split, (query, keys, values))
            read = F.scaled_dot_product_attention(query, keys, values, attn_mask=seen[:, None])
            x = self._rest(block, x, read, None)
        return self.norm(x)
