"""The exact index: ties, determinism, and files that were cut, changed or made up."""

from __future__ import annotations

import contextlib
import json
import os
import pickle

import numpy as np
import pytest
from safetensors import numpy as safetensors

from fugu.coding.memory import ExactIndex
from fugu.coding.memory.contract import IndexFileError
from fugu.errors import ConfigError


def index_of(count=30, dim=6, seed=0):
    index = ExactIndex(dim)
    vectors = np.random.default_rng(seed).standard_normal((count, dim))
    index.upsert([f"{k}" for k in range(count)], vectors, [{"k": k} for k in range(count)])
    return index, vectors


def test_equal_scores_are_in_the_order_of_ids_however_they_came():
    for order in (["c", "a", "b"], ["b", "c", "a"]):
        index = ExactIndex(2, "dot")
        index.upsert(order, [[1, 1]] * 3)
        assert [each.id for each in index.query([1, 0], 2)[0]] == ["a", "b"]


def test_scores_do_not_depend_on_what_else_is_asked():
    index, _ = index_of(2000, 64)
    queries = np.random.default_rng(2).standard_normal((70, 64))
    assert index.query(queries, 7) == [index.query(query, 7)[0] for query in queries]


def test_a_vector_of_zeros_is_like_nothing():
    index = ExactIndex(2)
    index.upsert(["zero", "one"], [[0, 0], [1, 1]])
    assert [(each.id, each.score) for each in index.query([0, 0], 2)[0]] == [("one", 0.0), ("zero", 0.0)]


def test_the_answer_is_a_copy():
    index, vectors = index_of()
    index.query(vectors[0], 1)[0][0].attributes["k"] = "changed"
    assert index.query(vectors[0], 1)[0][0].attributes == {"k": 0}


def test_the_same_entries_give_the_same_file(tmp_path):
    index, vectors = index_of()
    again = ExactIndex(6)
    for k in reversed(range(30)):
        again.upsert([f"{k}"], [vectors[k]], [{"k": k}])
    index.save(tmp_path / "a")
    again.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    ExactIndex(4, "dot").save(tmp_path / "empty")
    assert ExactIndex.load(tmp_path / "empty").count() == 0


def test_a_file_that_was_changed_anywhere_is_not_believed(tmp_path):
    index, _ = index_of(5, 3)
    path = tmp_path / "memory"
    index.save(path)
    data = path.read_bytes()
    for k in [*range(0, len(data), 7), len(data) - 1]:
        path.write_bytes(data[:k] + bytes([data[k] ^ 1]) + data[k + 1 :])
        with contextlib.suppress(IndexFileError):
            back = ExactIndex.load(path)  # space in the header means nothing
            assert back.entries()[::2] == index.entries()[::2] and (back.entries()[1] == index.entries()[1]).all()
    for cut in (0, 4, 20, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(IndexFileError, match="is no memory, or damaged"):
            ExactIndex.load(path)


def test_files_of_others_are_refused_and_nothing_in_them_runs(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    def file(about):
        return safetensors.save(
            {"about": np.frombuffer(json.dumps(about).encode(), np.uint8), "vectors": np.zeros((1, 2), "f4")}
        )

    for data, says in [
        (pickle.dumps(Evil()), "no memory"),
        (b"\xff" * 100, "no memory"),
        (file({"format": "fugu memory", "version": 9}), "version 9"),
        (file({"format": "other"}), "another format"),
        (file({"format": "fugu memory", "version": 1, "sha256": ""}), "not what was written"),
        (file([]), "no memory"),
    ]:
        (tmp_path / "file").write_bytes(data)
        with pytest.raises(IndexFileError, match=says):
            ExactIndex.load(tmp_path / "file")
    assert not (tmp_path / "ran").exists()
    with pytest.raises(IndexFileError, match="cannot be read: No such file"):
        ExactIndex.load(tmp_path / "none")


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    index, _ = index_of()
    index.save(tmp_path / "memory")
    before = (tmp_path / "memory").read_bytes()
    index.delete(["1"])

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(IndexFileError, match="cannot be written: No space left"):
        index.save(tmp_path / "memory")
    assert (tmp_path / "memory").read_bytes() == before and os.listdir(tmp_path) == ["memory"]


def test_metrics_and_sizes_that_are_not_there_are_refused():
    with pytest.raises(ConfigError, match="Did you mean 'cosine'"):
        ExactIndex(3, "cosin")
    with pytest.raises(ConfigError, match="dim=0"):
        ExactIndex(0)
