"""Names that stand for files, ``file.py:Class`` and ``my_env.h``: as they can be kept, and as they are typed here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fugu.emulation.build import is_built


def from_anywhere(name: str, folder: str | Path = "") -> str:
    """Return ``name`` with its file's whole path, so that it means the same in every folder; one without a file as it is.
    ``folder``: where a file without a whole path is; the current one by default."""
    file, rest = _file(name)
    return str(Path(folder, file).resolve()) + rest if file else name


def from_here(name: str) -> str:
    """Return ``name`` with its file's path from the current folder, where that is shorter."""
    file, rest = _file(name)
    return min(file, os.path.relpath(file), key=len) + rest if file else name


def title(name: str, settings: Mapping[str, Any]) -> str:
    """Name an environment as people call it: from here, or by its game where one function of ours makes many."""
    game = settings.get("game")
    return game if isinstance(game, str) and name.startswith("fugu.envs.") else from_here(name)


def _file(name: str) -> tuple[str, str]:
    """Split ``name`` into its file, if there is one, and what comes after it."""
    if is_built(name):
        return name, ""
    file, colon, rest = name.rpartition(":")
    return (file, colon + rest) if file.endswith(".py") else ("", name)
