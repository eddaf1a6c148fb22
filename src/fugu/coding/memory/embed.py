"""Texts as vectors without a model: how often which short pieces of text occur, hashed into a fixed number of places.

Texts with many pieces in common have a high cosine. The same text gives the same vector everywhere and for ever.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from fugu.errors import ConfigError


class TextEmbedding:
    def __init__(self, dim: int = 256, lengths: Sequence[int] = (2, 3, 4)) -> None:
        """Embed a text as ``dim`` numbers, from pieces of these ``lengths`` in characters."""
        if dim < 1 or not lengths or min(lengths) < 1:
            raise ConfigError(f"dim={dim} and lengths={list(lengths)} must be at least 1")
        self.dim, self.lengths = dim, tuple(lengths)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Return ``float32 [texts, dim]``, each of length 1, or 0 for a text without characters."""
        out = np.zeros((len(texts), self.dim), np.float32)
        for row, text in zip(out, texts, strict=True):
            words = " ".join(text.lower().split())
            if not words:
                continue
            padded = f" {words} ".encode("utf-8", "surrogatepass")
            pieces = [padded[k : k + n] for n in self.lengths for k in range(len(padded) - n + 1)]
            hashes = np.array([zlib.crc32(piece) for piece in pieces], np.int64)
            # a sign from another bit of the hash: pieces that share a place cancel rather than add up
            np.add.at(row, hashes % self.dim, np.where(hashes >> 31 & 1, 1.0, -1.0))
            row[:] = np.sign(row) * np.sqrt(np.abs(row))  # a piece that occurs a hundred times does not count a hundred times
            row /= max(float(np.linalg.norm(row)), 1e-12)
        return out
