"""Pages: rows of a replay in files that checkpoints share. Written once, checked when read, gone with the last that names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fugu.rollout.source import Page
from fugu.trainer import checkpoint
from fugu.trainer.checkpoint import CheckpointError
from fugu.trainer.checkpoint_format import PAGES

TENSORS = {"policy": {"weight": torch.zeros(3)}}


def page(number: int, rows: int = 50) -> Page:
    return Page(lambda: {"obs": torch.full((2, rows, 3), float(number)), "mask": torch.ones(2, rows, dtype=torch.bool)})


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Name -> inode and time of writing."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in (folder / PAGES).iterdir()}


def saved(folder: Path, step: int, pages: list[Page], **more: Any) -> Path:
    return checkpoint.save(folder, step, TENSORS, {}, pages=pages, **more)


def test_a_page_is_written_once_and_read_back_by_every_checkpoint_that_names_it(tmp_path):
    pages = [page(0), page(1)]
    one = saved(tmp_path, 1, pages)
    before = files(tmp_path)
    two = saved(tmp_path, 2, [*pages, page(2)])
    assert len(before) == 2 and before.items() < files(tmp_path).items() and len(files(tmp_path)) == 3
    for path, numbers in ((one, [0, 1]), (two, [0, 1, 2])):
        assert [each.columns()["obs"].unique().tolist() for each in checkpoint.pages(path)] == [[float(n)] for n in numbers]
    for name in before:
        digest, size = name.removesuffix(".safetensors").split("-")
        assert (tmp_path / PAGES / name).stat().st_size == int(size) and len(digest) == 32
    assert not list(tmp_path.glob(".tmp-*"))


def test_pages_go_with_the_last_checkpoint_that_names_them(tmp_path):
    pages = [page(n) for n in range(8)]
    for step in range(1, 7):
        saved(tmp_path, step, pages[step - 1 : step + 1], keep=2)
        assert len(files(tmp_path)) <= 4
    named = {
        each.file["name"]
        for path in (tmp_path / "step_000000005", tmp_path / "step_000000006")
        for each in checkpoint.pages(path)
    }
    assert files(tmp_path).keys() == named and len(named) == 3
    checkpoint.truncate(tmp_path, 5)
    assert len(files(tmp_path)) == 2


def test_the_best_checkpoint_keeps_its_pages(tmp_path):
    best = saved(tmp_path, 1, [page(0)], keep=1, best=True)
    for step in (2, 3, 4):
        saved(tmp_path, step, [page(step)], keep=1)
    assert len(files(tmp_path)) == 2
    assert next(checkpoint.pages(best)).columns()["obs"].unique().item() == 0


@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
def test_damage_is_found_and_the_checkpoint_before_it_is_taken(damage, tmp_path):
    good = saved(tmp_path, 1, [page(0)])
    bad = saved(tmp_path, 2, [page(0), page(1)])
    hurt = tmp_path / PAGES / list(checkpoint.pages(bad))[1].file["name"]
    if damage == "missing":
        hurt.unlink()
    elif damage == "cut":
        hurt.write_bytes(hurt.read_bytes()[:-10])
    else:
        data = bytearray(hurt.read_bytes())
        data[-1] ^= 1
        hurt.write_bytes(data)
    words = {"missing": "is missing", "cut": r"has \d+ bytes, not \d+", "changed": "its SHA-256 is not the one in MANIFEST"}[
        damage
    ]
    with pytest.warns(RuntimeWarning, match=f"step_000000002 passed over: .*{words}"):
        assert checkpoint.find(tmp_path, whole=True) == good
    with pytest.raises(CheckpointError, match=words):
        for each in checkpoint.pages(bad):
            each.columns()
    # rows that are there still are written again
    again = page(1)
    if damage != "changed":  # which only a run that goes on finds out
        again.file = list(checkpoint.pages(bad))[1].file
    saved(tmp_path, 3, [page(0), again])
    assert checkpoint.find(tmp_path, whole=True).name == "step_000000003"


def test_a_manifest_cannot_name_files_elsewhere(tmp_path):
    import json

    from fugu.trainer.checkpoint_format import MANIFEST, _own_hash, manifest

    path = saved(tmp_path, 1, [page(0)])
    about = json.loads((path / MANIFEST).read_text())
    about["pages"][0]["name"] = "../../secret"
    about["sha256"] = _own_hash(about)
    (path / MANIFEST).write_text(json.dumps(about))
    with pytest.raises(CheckpointError, match="incomplete"):
        manifest(path)


def test_a_full_disk_leaves_the_earlier_checkpoint_and_says_what_is_needed(tmp_path, monkeypatch):
    good = saved(tmp_path, 1, [page(0)])

    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("fugu.trainer.checkpoint_format.write_file", full)
        with pytest.raises(
            CheckpointError, match=r"No space left on device. It needs 1\.\d kB; .* are free; earlier checkpoints are untouched"
        ):
            saved(tmp_path, 2, [page(0), page(1)])
    assert checkpoint.find(tmp_path, whole=True) == good and not list(tmp_path.glob(".tmp-*"))


def test_pages_are_neither_written_nor_deleted_through_a_link(tmp_path):
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "checkpoints"
    elsewhere.mkdir(), folder.mkdir()
    (elsewhere / "mine").write_text("kept")
    (folder / PAGES).symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match="pages is a link"):
        saved(folder, 1, [page(0)])
    checkpoint.save(folder, 1, TENSORS, {})
    assert [path.name for path in elsewhere.iterdir()] == ["mine"]
