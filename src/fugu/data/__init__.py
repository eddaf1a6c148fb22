"""Recorded episodes: written while environments are played, opened as memory maps, learned from without environments."""

from fugu.data.dataset import DataError, DataSet
from fugu.data.opening import open
from fugu.data.writer import Writer

__all__ = ["DataError", "DataSet", "Writer", "open"]
