"""Names for environments, networks and algorithms that were passed as objects.

Comes in: a class, a function, a partial, a lambda, or a list of them. Goes out: a name for the run's config. What another process can
import is named as on the command line (``module:Class``, ``file.py:Class``). What exists only in this session, because a script, a
notebook or a function defines it, is called ``session:Class`` and has to be given again in another process.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from pathlib import Path
from typing import Any

from fugu.emulation.place import Name

SESSION = "session:"
"""beginning of the names of what exists only in the session that trains"""

_taken: dict[str, Any] = {}
"""names given in this session -> the object: a class that was defined anew gets a name of its own"""


def is_session(name: str) -> bool:
    """Return whether ``name`` means something that existed only in the session that trained."""
    return name.startswith(SESSION)


def named(value: Any) -> str:
    """Return a name that carries ``value`` with it; text stays as it is."""
    if isinstance(value, str):
        return value
    name = importable(value)
    if name is not None:
        return Name(name, value)
    base = name = SESSION + label(value)
    number = 1
    while _taken.setdefault(name, value) is not value:
        number += 1
        name = f"{base}-{number}"
    return Name(name, value)


def importable(value: Any) -> str | None:
    """Return the name by which another process finds ``value``: ``module:Class``, or ``file.py:Class`` for a module that lies outside
    of Python's own folders; None if none does."""
    name, module = getattr(value, "__qualname__", ""), sys.modules.get(getattr(value, "__module__", None) or "__main__")
    if module is None or module.__name__ == "__main__" or getattr(module, name, None) is not value:
        return None
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_file():
        return None
    alone = "." not in module.__name__ and not hasattr(module, "__path__") and file.endswith(".py")
    if alone and not any(Path(file).is_relative_to(folder) for folder in _installed()):
        return f"{Path(file).resolve()}:{name}"
    return f"{module.__name__}:{name}"


def label(value: Any) -> str:
    """Return a readable name: ``MyEnv``, ``lambda``, ``MyEnv-and-3-more``."""
    if isinstance(value, list | tuple):
        names = [each if isinstance(each, str) else label(each) for each in value]
        return names[0] + (f"-and-{len(names) - 1}-more" if len(names) > 1 else "")
    while isinstance(value, functools.partial):
        value = value.func
    name = getattr(value, "__qualname__", None) or type(value).__name__
    return str(name).rpartition(".")[2].strip("<>")


@functools.cache
def _installed() -> tuple[Path, ...]:
    """Return the folders of installed packages and of Python itself."""
    paths = sysconfig.get_paths()
    return tuple(Path(paths[key]) for key in ("stdlib", "platstdlib", "purelib", "platlib"))
