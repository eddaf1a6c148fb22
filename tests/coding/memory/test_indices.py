"""Every index: the same calls, the same answers; the exact one against brute force."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from fugu.coding.memory import And, ApproximateIndex, Eq, ExactIndex, In, Not, Or, Range, TurbopufferIndex
from fugu.errors import ConfigError, MissingExtra

from .server import KEY, FakeTurbopuffer

METRICS = ("cosine", "dot", "euclidean")


@pytest.fixture(scope="module")
def service():
    fake = FakeTurbopuffer()
    yield fake
    fake.close()


def make(kind, dim, metric, service, monkeypatch):
    if kind == "exact":
        return ExactIndex(dim, metric)
    if kind == "turbopuffer":
        if metric == "dot":
            pytest.skip("turbopuffer has no dot product")
        monkeypatch.setenv("MY_KEY", KEY)
        service.rows.clear()
        return TurbopufferIndex("tests", dim, metric, key_variable="MY_KEY", url=service.url)
    return ApproximateIndex(dim, metric, library=kind)


APPROXIMATE = [pytest.param(kind, marks=pytest.mark.extras) for kind in ("hnswlib", "usearch")]
KINDS = ["exact", "turbopuffer", *APPROXIMATE]


def entries(count, dim, seed=0):
    chance = np.random.default_rng(seed)
    attributes = [
        {"size": k % 7, "even": k % 2 == 0, "name": "abc"[k % 3]} | ({"rare": 1.5} if k % 10 == 0 else {}) for k in range(count)
    ]
    return [f"e{k:04}" for k in range(count)], chance.standard_normal((count, dim)).astype(np.float32), attributes


def by_hand(vector, vectors, metric):
    """Scores, in the simplest way."""
    if metric == "dot":
        return vectors @ vector
    if metric == "euclidean":
        return -np.sqrt(((vectors - vector) ** 2).sum(1))
    return vectors @ vector / np.linalg.norm(vector) / np.linalg.norm(vectors, axis=1)


FILTERS = [
    (None, lambda a: True),
    (Eq("size", 3), lambda a: a["size"] == 3),
    (Eq("even", True), lambda a: a["even"]),
    (Eq("rare", None), lambda a: "rare" not in a),
    (In("name", ["a", "c"]), lambda a: a["name"] in "ac"),
    (Range("size", 2, 4), lambda a: 2 <= a["size"] <= 4),
    (Range("size", high=1), lambda a: a["size"] <= 1),
    (Range("rare", low=0), lambda a: "rare" in a),
    (Range("rare"), lambda a: "rare" in a),
    (Range("name", "b"), lambda a: a["name"] >= "b"),
    (Range("name", 0), lambda a: False),
    (Not(Eq("name", "a")), lambda a: a["name"] != "a"),
    (And(Eq("name", "a"), Range("size", low=3)), lambda a: a["name"] == "a" and a["size"] >= 3),
    (
        Or(Eq("size", 0), And(Eq("size", 1), Not(Eq("even", True)))),
        lambda a: a["size"] == 0 or (a["size"] == 1 and not a["even"]),
    ),
    (And(), lambda a: True),
    (Or(), lambda a: False),
]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_nearest_entries_are_those_found_by_hand(kind, metric, service, monkeypatch):
    ids, vectors, attributes = entries(200, 12)
    index = make(kind, 12, metric, service, monkeypatch)
    index.upsert(ids, vectors, attributes)
    assert index.count() == 200
    queries = np.random.default_rng(1).standard_normal((3, 12)).astype(np.float32)
    for where, plain in FILTERS:
        counts = np.array([plain(a) for a in attributes])
        for query, near in zip(queries, index.query(queries, 5, where), strict=True):
            scores = np.where(counts, by_hand(query.astype(np.float64), vectors.astype(np.float64), metric), -np.inf)
            best = [k for k in np.argsort(-scores)[:5] if counts[k]]
            assert [each.id for each in near] == [ids[k] for k in best], where
            assert [each.score for each in near] == pytest.approx([scores[k] for k in best], abs=1e-5)
            assert [dict(each.attributes) for each in near] == [attributes[k] for k in best]


@pytest.mark.parametrize("kind", KINDS)
def test_entries_are_replaced_and_deleted(kind, service, monkeypatch):
    ids, vectors, attributes = entries(150, 8)
    index = make(kind, 8, "euclidean", service, monkeypatch)
    index.upsert(ids, vectors, attributes)
    moved = vectors[3] + 100
    index.upsert(["e0003", "e0003"], [moved, moved + 1], [{"name": "x"}, {"name": "y"}])
    assert index.count() == 150
    ((first, *_),) = index.query(moved + 1, 3)
    assert (first.id, first.score, dict(first.attributes)) == ("e0003", 0.0, {"name": "y"})
    assert all(each.id != "e0003" for each in index.query(vectors[3], 5)[0])
    index.delete(["e0003", "not there"])
    assert index.count() == 149 and index.query(moved, 1)[0][0].id != "e0003"
    index.delete(where=Eq("name", "a"))
    left = [k for k, a in enumerate(attributes) if a["name"] != "a" and k != 3]
    assert index.count() == len(left)
    (near,) = index.query(vectors[7], 200)
    assert sorted(each.id for each in near) == [ids[k] for k in left] and near[0].id == "e0007"
    index.delete(ids)
    assert index.count() == 0 and index.query(vectors[:2], 3) == [[], []]
    index.upsert(["again"], [moved])
    assert [each.id for each in index.query(moved, 3)[0]] == ["again"]


@pytest.mark.parametrize("kind", ["exact", *APPROXIMATE])
def test_a_saved_index_answers_the_same(kind, tmp_path, service, monkeypatch):
    ids, vectors, attributes = entries(300, 16)
    index = make(kind, 16, "cosine", service, monkeypatch)
    index.upsert(ids, vectors, attributes)
    index.delete(ids[10:40])
    index.save(tmp_path / "memory")
    back = ExactIndex.load(tmp_path / "memory") if kind == "exact" else ApproximateIndex.load(tmp_path / "memory", library=kind)
    assert back.count() == 270 and (back.dim, back.metric) == (16, "cosine")
    assert back.query(vectors[:30], 5) == index.query(vectors[:30], 5)
    assert list(tmp_path.iterdir()) == [tmp_path / "memory"]


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_an_approximate_index_finds_nearly_all_of_the_nearest(kind, service, monkeypatch):
    ids, vectors, _ = entries(3000, 24)
    index = make(kind, 24, "cosine", service, monkeypatch)
    index.upsert(ids[:1500], vectors[:1500])
    index.upsert(ids[1500:], vectors[1500:])
    queries = np.random.default_rng(5).standard_normal((40, 24))
    found, right = index.query(queries, 10), index.exact.query(queries, 10)
    shared = [len({each.id for each in a} & {each.id for each in b}) for a, b in zip(found, right, strict=True)]
    assert sum(shared) / 400 > 0.95
    assert index.query(queries, 10) == found


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_entry_is_refused(kind, service, monkeypatch):
    index = make(kind, 3, "cosine", service, monkeypatch)
    for ids, vectors, attributes, says in [
        (["a"], [[1, 2]], None, "expected vectors of 3 numbers"),
        (["a"], [[1, 2, np.nan]], None, "finite"),
        (["a", "b"], [[1, 2, 3]], None, "2 ids, 1 vectors"),
        (["a"], [[1, 2, 3]], [{}, {}], "2 attributes"),
        ([""], [[1, 2, 3]], None, "an id must be a text"),
        (["x" * 65], [[1, 2, 3]], None, "an id must be a text"),
        ([3], [[1, 2, 3]], None, "an id must be a text"),
        (["a"], [[1, 2, 3]], [{"b": [1]}], "attribute 'b'"),
        (["a"], [[1, 2, 3]], [{"vector": 1}], "'vector' cannot be the name"),
    ]:
        with pytest.raises(ConfigError, match=says):
            index.upsert(ids, vectors, attributes)
    assert index.count() == 0
    for wrong in ({"vectors": [1, 2]}, {"vectors": [1, 2, 3], "top_k": 0}):
        with pytest.raises(ConfigError):
            index.query(**wrong)
    for both in ({}, {"ids": ["a"], "where": Eq("a", 1)}):
        with pytest.raises(ConfigError, match="either"):
            index.delete(**both)


@pytest.mark.parametrize("kind", ["hnswlib", "usearch"])
def test_without_the_extra_it_says_what_to_install(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, kind, None)
    monkeypatch.setitem(sys.modules, f"{kind}.index", None)
    with pytest.raises(MissingExtra, match=r"pip install .fugu-rl\[memory\]"):
        ApproximateIndex(3, library=kind)
