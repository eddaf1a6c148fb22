"""Sizes of a world model. The names are those of DreamerV3, beside ``small``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WorldSize:
    deter: int
    """numbers of the deterministic part of a state"""
    hidden: int
    """width of the layers between the parts of a state"""
    stoch: int = 32
    """categorical variables of the random part of a state"""
    classes: int
    """classes of each"""
    units: int
    """width of encoder, decoder and heads"""
    depth: int
    """channels of the first pictures that a decoder makes, in units of 1"""
    blocks: int = 8
    """blocks of the recurrent layer, which share nothing"""

    @property
    def random(self) -> int:
        """Return the numbers of the random part of a state."""
        return self.stoch * self.classes

    @property
    def state(self) -> int:
        """Return the numbers of a state."""
        return self.deter + self.random


SIZES: Mapping[str, WorldSize] = {
    "tiny": WorldSize(deter=32, hidden=16, stoch=4, classes=4, units=16, depth=4, blocks=4),
    "small": WorldSize(deter=128, hidden=64, stoch=8, classes=8, units=64, depth=8),
    "1m": WorldSize(deter=512, hidden=64, classes=4, units=64, depth=4),
    "12m": WorldSize(deter=2048, hidden=256, classes=16, units=256, depth=16),
    "25m": WorldSize(deter=3072, hidden=384, classes=24, units=384, depth=24),
    "50m": WorldSize(deter=4096, hidden=512, classes=32, units=512, depth=32),
    "100m": WorldSize(deter=6144, hidden=768, classes=48, units=768, depth=48),
    "200m": WorldSize(deter=8192, hidden=1024, classes=64, units=1024, depth=64),
}
