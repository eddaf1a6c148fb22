"""Names, tags and groups of runs: what can be one, and what of a file that others wrote is believed."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from fugu.errors import ConfigError
from fugu.run import store
from fugu.run.label import FILE, Label, checked_name, checked_seeds, checked_tags, read_label, write_label


@pytest.mark.parametrize("name", ["a", "my-run", "v1.2_b+c", "größe", "+x", "x" * 80, "my-latest"])
def test_a_name_is_that_of_a_folder(name: str) -> None:
    assert checked_name(name) == name


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("", "try --name my-run"),
        ("a b", "try --name a-b"),
        ("../up", "try --name up"),
        (".hidden", "try --name hidden"),
        ("-flag", "try --name flag"),
        ("a\x1b[31m", "try --name a-31m"),
        ("x" * 81, "try --name " + 80 * "x"),
        ("latest", "try --name my-latest"),
        ("latest~1", "try --name my-latest-1"),
        (3, "name=3 must be text"),
    ],
)
def test_another_name_is_refused_with_one_that_is_taken(name: str, fix: str) -> None:
    with pytest.raises(ConfigError) as error:
        checked_name(name)
    assert str(error.value).endswith(fix) and str(error.value).isprintable()


def test_tags_are_words_each_once() -> None:
    assert checked_tags(["a", "b", "a"]) == ("a", "b")
    for tags, said in (
        (["a b"], "try --tag a-b"),
        (["!"], "try --tag my-tag"),
        ("ab", "tags='ab' must be a list of texts"),
        ([1], "tags=1 must be text"),
        ([f"t{i}" for i in range(21)], "21 tags are more than the 20"),
    ):
        with pytest.raises(ConfigError, match=said):
            checked_tags(tags)


def test_seeds_are_as_many_as_asked_for_or_those_listed() -> None:
    assert checked_seeds(3, 7) == (7, 8, 9) and checked_seeds((5, 1), 0) == (5, 1) and checked_seeds(range(2), 0) == (0, 1)
    for seeds, said in (
        (0, "seeds=0 must be at least 1"),
        (True, "seeds=True must be a whole number"),
        ("3", "seeds='3' must be a whole number"),
        ((), "must be 1 to 1000 seeds"),
        (10**12, "must be 1 to 1000 seeds"),
        ((1, 2, 1), "has 1 more than once"),
        ((-1,), "-1 must not be negative"),
        ((2**63,), "below 2\\*\\*63"),
    ):
        with pytest.raises(ConfigError, match=said):
            checked_seeds(seeds, 0)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    for label in (Label(started=3.5), Label(tags=("a", "b"), group="g", seeds=(3, 1), started=12.25)):
        write_label(tmp_path, label)
        assert read_label(tmp_path) == label
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b'{"started": ' + b"9" * 10_000 + b"}",
        b'{"started": NaN, "tags": 3, "group": ["a"], "seeds": "x"}',
        b'{"started": 1e300, "tags": ["\\u001b[31m"], "group": "../x"}',
        b'{"started": true, "tags": [["a"]], "group": "' + b"x" * 200 + b'"}',
        b'{"started": "now", "tags": null, "group": null, "seeds": [1]}',
    ],
)
def test_a_file_with_something_else_in_it_says_nothing(content: bytes, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert read_label(tmp_path) == Label()


def test_what_is_right_in_a_file_counts(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"tags": ["a b"], "group": "g", "seeds": [3], "started": -5}')
    assert read_label(tmp_path) == Label(group="g", seeds=(3,))


def made(root: Path, name: str, started: float) -> store.RunFolder:
    run = store.create(root, "cartpole", name)
    run.config.write_text("")
    write_label(run.at, Label(started=started))
    return run


def test_runs_keep_their_place_when_their_files_change_or_are_copied(tmp_path: Path) -> None:
    now = time.time()
    for name, started in (("b", now - 30), ("a", now - 20), ("zz-20990101-000000", now - 10)):
        made(tmp_path / "runs", name, started)
    (tmp_path / "runs" / "old-20250101-000000").mkdir()
    order = ["old-20250101-000000", "b", "a", "zz-20990101-000000"]
    assert [run.name for run in store.runs(tmp_path / "runs")] == order
    os.utime(tmp_path / "runs" / "b" / "config.toml", (now + 99, now + 99))
    shutil.copytree(tmp_path / "runs", tmp_path / "copy", copy_function=shutil.copyfile)
    for root in (tmp_path / "runs", tmp_path / "copy"):
        assert [run.name for run in store.runs(root)] == order
        assert store.find("latest", root).name == order[-1] and store.find("latest~2", root).name == "b"
        assert store.find("b", root).started == pytest.approx(now - 30)


def test_a_name_that_is_taken_says_how_to_go_on_with_what_has_it(tmp_path: Path) -> None:
    store.create(tmp_path, "cartpole", "mine")
    (tmp_path / "notes").mkdir()
    store.create(tmp_path, "cartpole", "g-s0", Label(group="g", seeds=(0, 1)))
    for name, said in (
        ("mine", f"go on with it: fugu train --resume {tmp_path}/mine, or give another --name, such as mine-2"),
        ("notes", "is no run; give another --name, or move it away"),
        ("g", f"a group of runs .* go on with it: fugu train --resume {tmp_path}/g, or"),
    ):
        with pytest.raises(store.NameTaken, match=said):
            store.refuse_taken(tmp_path, name)
    with pytest.raises(store.NameTaken, match="such as mine-2"):
        store.create(tmp_path, "cartpole", "mine")


def test_a_named_run_is_found_beside_a_folder_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    store.create("runs", "cartpole", "src")
    assert store.find("src").path == Path("runs/src")


def test_a_group_is_found_by_name_and_by_path_and_is_no_run(tmp_path: Path) -> None:
    for seed in (1, 0):
        store.create(tmp_path, "cartpole", f"g-s{seed}", Label(group="g", seeds=(1, 0), tags=("a",)))
    store.create(tmp_path, "cartpole", "other", Label(tags=("a", "b")))
    for text, root in (("g", tmp_path), (tmp_path / "g", "runs")):
        assert [run.name for run in store.members(text, root)] == ["g-s1", "g-s0"]
    assert store.members("other", tmp_path) == store.members("", tmp_path) == store.members("g", "nowhere") == []
    with pytest.raises(ConfigError, match="g is a group of 2 runs; name one of them: g-s1, g-s0"):
        store.find("g", tmp_path)
    assert [run.name for run in store.tagged(("a",), tmp_path)] == ["g-s1", "g-s0", "other"]
    assert [run.name for run in store.tagged(("a", "b"), tmp_path)] == ["other"]
    with pytest.raises(ConfigError, match="has the tag 'c'. Tags there are: a, b"):
        store.tagged(("c",), tmp_path)


def test_labels_are_json(tmp_path: Path) -> None:
    write_label(tmp_path, Label(started=1.5, tags=("é",)))
    assert json.loads((tmp_path / FILE).read_bytes()) == {"started": 1.5, "tags": ["é"]}
