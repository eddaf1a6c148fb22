"""Names that stand for files, ``file.py:Class`` and ``my_env.h``: as they can be kept, and as they are typed here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fugu.emulation.build import is_built


def from_anywhere(name: str) -> str:
    """``name`` with its file's whole path, so that it means the same in every folder; one that is no file's as it is."""
    file, rest = _file(name)
    return str(Path(file).resolve()) + rest if file else name


def from_here(name: str) -> str:
    """The other way round, where that is shorter."""
    file, rest = _file(name)
    return min(file, os.path.relpath(file), key=len) + rest if file else name


def title(name: str, settings: Mapping[str, Any]) -> str:
    """An environment as people call it: its name from here, or the game where one function of ours makes many."""
    game = settings.get("game")
    return game if isinstance(game, str) and name.startswith("fugu.envs.") else from_here(name)


def _file(name: str) -> tuple[str, str]:
    """The file in ``name``, if there is one, and what comes after it."""
    if is_built(name):
        return name, ""
    file, colon, rest = name.rpartition(":")
    return (file, colon + rest) if file.endswith(".py") else ("", name)
