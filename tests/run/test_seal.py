"""The key that seals runs is secret, whole and made once."""

from __future__ import annotations

import os
import stat
import threading

import pytest

from fugu.run import seal


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "fugu"


def test_a_seal_fits_what_was_sealed_and_nothing_else():
    sealed = seal.seal(b"this")
    assert seal.fits(sealed, b"this")
    assert not seal.fits(sealed, b"that") and not seal.fits("", b"this") and not seal.fits(sealed[:-1], b"this")


def test_the_key_is_for_its_user_alone(folder):
    seal.seal(b"")
    assert stat.S_IMODE((folder / "key").stat().st_mode) == 0o600
    assert [each.name for each in folder.iterdir()] == ["key"]


def test_of_many_that_make_the_key_at_once_one_wins():
    begin, found = threading.Barrier(8), []

    def make() -> None:
        begin.wait()
        found.append(seal.seal(b"this"))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1


@pytest.mark.parametrize("harm", ["readable", "short", "link", "folder", "missing"])
def test_a_key_that_cannot_be_relied_on_is_not_used(folder, harm, tmp_path):
    sealed = seal.seal(b"this")
    key = folder / "key"
    if harm == "readable":
        key.chmod(0o644)
    elif harm == "short":
        key.write_bytes(b"abc")
    else:
        key.rename(tmp_path / "elsewhere")
        if harm == "link":
            key.symlink_to(tmp_path / "elsewhere")
        elif harm == "folder":
            key.mkdir(mode=0o700)
    with pytest.raises(seal.NoKey):
        seal.fits(sealed, b"this")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_key_of_somebody_else_is_not_used(folder):
    seal.seal(b"this")
    os.chown(folder / "key", 12345, -1)
    with pytest.raises(seal.NoKey, match="must be a file that belongs to you"):
        seal.seal(b"this")
