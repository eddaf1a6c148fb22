"""Modules in the user's own folders, found for the user's own code alone.

``module:Class`` is looked for in the current folder, and what lies beside ``file.py`` can be imported from it. Neither folder is on
``sys.path``: there fugu and every library would find what they try to import, and a ``pynvml.py`` in a downloaded folder would be
executed by commands that have nothing to do with it. Found here is what was named, and what its code imports, then or later.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType

State = tuple[list[str], list[str]]
"""folders, and the names of what was found there; as plain values, for another process"""

_FINDERS = ("importlib", "importlib.util", "importlib._bootstrap", "importlib._bootstrap_external", __name__)
"""modules that look for others on somebody's behalf"""


class Beside:
    """Python asks it after everything else has not found a module."""

    def __init__(self) -> None:
        self.folders: list[str] = []
        self.owned: set[str] = set()
        """first parts of the names of the user's modules"""
        self.asked = ""
        """first part of the name that the user asked for, while it is looked for"""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        wanted = name == self.asked or name in self.owned or _first(_asking(sys._getframe(1))) in self.owned
        for folder in self.folders if wanted and path is None else ():
            if (spec := PathFinder.find_spec(name, [folder])) is not None:
                self.owned.add(name)
                return spec
        return None


_beside = Beside()


def imported(name: str) -> ModuleType:
    """Import the module ``name``, which the user asked for: also from the current folder, unless that is a run's."""
    with contextlib.suppress(OSError):  # it is gone
        here = Path.cwd()
        know([] if _in_a_run(here) else [str(here)], [])
    before, _beside.asked = _beside.asked, _first(name)
    try:
        return importlib.import_module(name)
    finally:
        _beside.asked = before


def know(folders: Iterable[str], names: Iterable[str]) -> None:
    """Find modules in ``folders``, those that are called ``names`` and what their code imports."""
    if _beside not in sys.meta_path:
        sys.meta_path.append(_beside)
    _beside.folders += [folder for folder in folders if folder not in _beside.folders]
    _beside.owned.update(names)


def known() -> State:
    """Return what another process has to ``know``."""
    return list(_beside.folders), sorted(_beside.owned)


def _asking(frame: FrameType | None) -> str:
    """Return the name of the module whose code asks for another."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name not in _FINDERS and not frame.f_code.co_filename.startswith("<frozen importlib"):
            return name
        frame = frame.f_back
    return ""


def _first(name: str) -> str:
    return name.partition(".")[0]


def _in_a_run(folder: Path) -> bool:
    """Return whether ``folder`` is one of a run or lies in one: nothing there is to be found by its name and executed."""
    return any((each / "config.toml").is_file() and (each / "checkpoints").exists() for each in (folder, *folder.parents))
