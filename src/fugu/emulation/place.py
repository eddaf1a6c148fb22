"""Names that stand for files, ``file.py:Class`` and ``my_env.h``: as they can be kept, and as they are typed here. Names that mean code
of the user's own, and names that carry what they mean with them."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fugu.compiler import cache_path
from fugu.emulation.build import is_built

Result = TypeVar("Result")

OURS = frozenset({"fugu.envs.atari:make", "fugu.envs.teams:with_state", "fugu.coding.env:Coding"})
"""environments of fugu that are named like a user's own"""
OUR_IDS = "fugu.envs:fugu/"
"""beginning of the ids that fugu registers with Gymnasium"""
BY_NAME = "GymV2"
"""beginning of the ids with which Gymnasium imports whatever their settings name"""


class Name(str):
    """A name in a config that carries the object it means: of this session, or of a module that is loaded already."""

    object: Any

    def __new__(cls, text: str, object: Any = None) -> Name:
        name = super().__new__(cls, text)
        name.object = object
        return name

    def means(self) -> Any:
        return self.object

    def __deepcopy__(self, memo: Any) -> Name:
        return self


def meaning(name: Any) -> Any:
    """Return what ``name`` means if it carries that with it, or else ``name`` itself, still to be found."""
    return name.means() if isinstance(name, Name) else name


def cached_by_meaning(function: Callable[[str], Result]) -> Callable[[str], Result]:
    """Let ``function`` of a name be called once for each meaning: two names of one text may carry different objects. Threads that ask
    at once get the same result: of two classes of one meaning, neither would know the other's objects."""
    one_at_a_time = threading.RLock()

    @functools.cache
    def kept(name: str, meant: object) -> Result:
        return function(name)

    @functools.wraps(function)
    def call(name: str) -> Result:
        meant = meaning(name)
        with one_at_a_time:
            return kept(name, meant if isinstance(meant, str) else id(meant))  # which lives as long as the name does

    return call


def is_code(name: str) -> bool:
    """Return whether ``name`` means code that is not fugu's: a file, a class in a module, an id that imports a module, or what a
    session held."""
    if is_built(name) or name.startswith(BY_NAME):
        return True
    ours = name in OURS or (name.startswith(OUR_IDS) and not split_file(name)[0])  # a folder may be called so as well
    return ":" in name and not ours


def from_anywhere(name: str, folder: str | Path = "") -> str:
    """Return ``name`` with its file's whole path, so that it means the same in every folder; one without a file as it is.
    ``folder``: where a file without a whole path is; the current one by default."""
    if isinstance(name, Name):
        return name
    file, rest = split_file(name)
    return str(Path(folder, file).resolve()) + rest if file else name


def from_here(name: str) -> str:
    """Return ``name`` with its file's path from the current folder, where that is shorter."""
    file, rest = split_file(name)
    return min(file, os.path.relpath(file), key=len) + rest if file else name


def title(name: str, settings: Mapping[str, Any]) -> str:
    """Name an environment as people call it: from here, by its file alone where that is a run's copy in the cache, or by its game
    where one function of ours makes many."""
    game = settings.get("game")
    if isinstance(game, str) and name.startswith("fugu.envs."):
        return game
    file, rest = split_file(name)
    return Path(file).name + rest if file and Path(file).is_relative_to(cache_path()) else from_here(name)


def split_file(name: str) -> tuple[str, str]:
    """Split ``name`` into its file, if there is one, and what comes after it."""
    if is_built(name):
        return name, ""
    file, colon, rest = name.rpartition(":")
    return (file, colon + rest) if file.endswith(".py") else ("", name)
