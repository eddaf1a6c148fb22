"""Indices for hundreds of thousands of entries: hnswlib or usearch says which entries may be near, ``ExactIndex`` ranks them.

The graph is only a way to find candidates: it is not saved, but built anew from the entries in the order of their ids. Where a
filter leaves too few of the candidates, all entries are looked at.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from fugu.coding.memory.contract import Metric, Neighbour, check_vectors
from fugu.coding.memory.exact import ExactIndex
from fugu.coding.memory.filters import Attribute, Filter
from fugu.errors import ConfigError, MissingExtra

Library = Literal["hnswlib", "usearch"]


class ApproximateIndex:
    def __init__(self, dim: int, metric: Metric = "cosine", *, library: Library = "hnswlib") -> None:
        if library not in ("hnswlib", "usearch"):
            raise ConfigError(f"library={library!r} must be 'hnswlib' or 'usearch'")
        self.exact = ExactIndex(dim, metric)
        self.dim, self.metric, self.library = dim, metric, library
        self._graph: _Graph = _Hnswlib(dim, metric) if library == "hnswlib" else _Usearch(dim, metric)
        self._label: dict[str, int] = {}
        self._id: dict[int, str] = {}
        self._next = 0

    def upsert(self, ids: Sequence[str], vectors: Any, attributes: Sequence[Mapping[str, Attribute]] | None = None) -> None:
        self.exact.upsert(ids, vectors, attributes)
        last = {name: row for row, name in enumerate(ids)}  # of an id twice, the last one counts
        self._forget(last)
        labels = np.arange(self._next, self._next + len(last))
        self._next += len(last)
        self._graph.add(labels, check_vectors(vectors, self.dim)[list(last.values())])
        for name, label in zip(last, labels.tolist(), strict=True):
            self._label[name], self._id[label] = label, name

    def query(self, vectors: Any, top_k: int = 10, where: Filter | None = None) -> list[list[Neighbour]]:
        queries = check_vectors(vectors, self.dim)
        if top_k < 1:
            raise ConfigError(f"top_k={top_k} must be at least 1")
        wide = max(4 * top_k, 64)
        if self.count() <= wide:
            return self.exact.query(queries, top_k, where)
        out: list[list[Neighbour]] = []
        for query, labels in zip(queries, self._graph.near(queries, wide), strict=True):
            rows = [self.exact._row[self._id[label]] for label in labels if label in self._id]
            near = [row for row in rows if where is None or where.matches(self.exact._attributes[row])]
            if len(near) < top_k:
                out += self.exact.query(query, top_k, where)
            else:
                out.append(self.exact.ranked(query, np.array(near), top_k))
        return out

    def delete(self, ids: Sequence[str] | None = None, *, where: Filter | None = None) -> None:
        before = set(self._label) if where is not None else set(ids or ())
        self.exact.delete(ids, where=where)
        self._forget([name for name in before if name not in self.exact._row])

    def count(self) -> int:
        return self.exact.count()

    def save(self, path: str | os.PathLike[str]) -> None:
        self.exact.save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, library: Library = "hnswlib") -> ApproximateIndex:
        read = ExactIndex.load(path)
        index = cls(read.dim, read.metric, library=library)
        index.upsert(*read.entries())
        return index

    def _forget(self, ids: Any) -> None:
        labels = [self._label.pop(name) for name in ids if name in self._label]
        for label in labels:
            del self._id[label]
        self._graph.remove(labels)


class _Graph(Protocol):
    def add(self, labels: np.ndarray, vectors: np.ndarray) -> None: ...
    def remove(self, labels: list[int]) -> None: ...
    def near(self, queries: np.ndarray, count: int) -> list[list[int]]: ...


# One thread each: with more, the graph depends on which was faster.


class _Hnswlib:
    def __init__(self, dim: int, metric: Metric) -> None:
        try:
            import hnswlib
        except ImportError:
            raise MissingExtra("library='hnswlib'", "memory") from None
        self.room = 1024
        self.index = hnswlib.Index({"cosine": "cosine", "dot": "ip", "euclidean": "l2"}[metric], dim)
        self.index.init_index(self.room, M=16, ef_construction=200, random_seed=1)

    def add(self, labels: np.ndarray, vectors: np.ndarray) -> None:
        while len(labels) and labels[-1] >= self.room:  # labels are never used twice
            self.room *= 2
            self.index.resize_index(self.room)
        self.index.add_items(vectors, labels, num_threads=1)

    def remove(self, labels: list[int]) -> None:
        for label in labels:
            self.index.mark_deleted(label)

    def near(self, queries: np.ndarray, count: int) -> list[list[int]]:
        self.index.set_ef(2 * count)
        try:
            return self.index.knn_query(queries, count, num_threads=1)[0].tolist()
        except RuntimeError:  # the graph leads to fewer than that
            return [[] for _ in queries]


class _Usearch:
    def __init__(self, dim: int, metric: Metric) -> None:
        try:
            from usearch.index import Index
        except ImportError:
            raise MissingExtra("library='usearch'", "memory") from None
        self.index = Index(ndim=dim, metric={"cosine": "cos", "dot": "ip", "euclidean": "l2sq"}[metric], dtype="f32")

    def add(self, labels: np.ndarray, vectors: np.ndarray) -> None:
        self.index.add(labels, vectors, threads=1)

    def remove(self, labels: list[int]) -> None:
        for label in labels:
            self.index.remove(label)

    def near(self, queries: np.ndarray, count: int) -> list[list[int]]:
        found = self.index.search(queries, count, threads=1)
        keys, counts = np.atleast_2d(found.keys), np.atleast_1d(getattr(found, "counts", len(found)))
        return [row[:n].tolist() for row, n in zip(keys, counts, strict=True)]
