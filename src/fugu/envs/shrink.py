"""Grey pictures made smaller: a pixel becomes the mean of the area that it covers, to the byte what OpenCV's INTER_AREA makes of it
(but where both sides shrink by whole numbers: there it rounds another way).

In: two pictures ``[rows, columns]`` uint8, of which the brighter one counts, pixel by pixel: games draw some things in every other
frame only. Out: ``[to_rows, to_columns]`` uint8. ``native/shrink.h`` computes the same without floating-point numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fugu.native import native


def shrinker(shape: tuple[int, int], to: tuple[int, int]) -> Callable[[np.ndarray, np.ndarray, np.ndarray], Any]:
    """Return ``shrink(image, other, out)`` for pictures of ``shape``: ``image`` becomes the brighter of both, ``out`` that, smaller."""
    return Reference(shape, to) if native is None else native.Shrink(*shape, *to)


class Reference:
    """The native core's ``Shrink`` in numpy, adding in the order in which OpenCV does."""

    def __init__(self, shape: tuple[int, int], to: tuple[int, int]) -> None:
        self._vertical, self._horizontal = (_taps(old, new) for old, new in zip(shape, to, strict=True))

    def __call__(self, image: np.ndarray, other: np.ndarray, out: np.ndarray) -> None:
        np.maximum(image, other, out=image)
        across = np.stack([_mean(image.T, taps) for taps in self._horizontal], 1)  # [rows, to_columns]
        out[...] = np.rint(np.stack([_mean(across, taps) for taps in self._vertical]))


def _taps(old: int, new: int) -> list[list[tuple[int, np.float32]]]:
    """Return for each new pixel of an axis the old ones it covers, and their shares of it."""
    out = []
    for i in range(new):
        begin, end = i * old, (i + 1) * old  # in units of which an old pixel has ``new``
        covered = range(begin // new, -(-end // new))
        out.append([(k, np.float32((min((k + 1) * new, end) - max(k * new, begin)) / old)) for k in covered])
    return out


def _mean(lines: np.ndarray, taps: list[tuple[int, np.float32]]) -> np.ndarray:
    total = np.zeros(lines.shape[1], np.float32)
    for line, share in taps:
        total += lines[line] * share
    return total
