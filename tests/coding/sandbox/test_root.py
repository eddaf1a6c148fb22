"""What a program sees of the file system; the rest of it is in ``test_isolation.py``."""

from __future__ import annotations

from fugu.coding.sandbox import root


def test_paths_come_through_as_they_are(monkeypatch):
    """Found out in another process; a file's name can be any bytes."""
    odd = root.Layout(["/a b", "/line\r\nbreak", "/bytes\udcff", "/münchen"], [])
    monkeypatch.setattr(root, "_find", lambda: odd)
    assert root.layout() == odd
