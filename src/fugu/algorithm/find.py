"""Algorithms by name: those of fugu, each a module of this package, and ``file.py:Class`` or ``module:Class`` of a user's own."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache
from pathlib import Path
from typing import Any

from fugu.errors import ConfigError, did_you_mean

AROUND = {"config", "config_dreamer", "config_episodes", "config_offline", "contract", "find", "settings", "setup", "trial"}
"""modules of this package that are not algorithms"""


@cache
def names() -> tuple[str, ...]:
    """Return the names of the algorithms that fugu has."""
    package = Path(__file__).parent
    return tuple(
        sorted(each.name for each in pkgutil.iter_modules([str(package)]) if not each.ispkg and each.name not in AROUND)
    )


def is_own(name: str) -> bool:
    """Return whether ``name`` means a class outside fugu: ``file.py:Class`` or ``module:Class``."""
    return all(name.rpartition(":"))


def check_name(name: Any) -> None:
    """Raise a ConfigError if there is no algorithm ``name``. A class outside fugu is not looked for yet."""
    if not isinstance(name, str) or not (is_own(name) or name in names()):
        raise ConfigError(f"there is no algorithm {name!r}.{did_you_mean(str(name), names())}")


def algorithm_class(name: str) -> Any:
    """Return the class that ``name`` means."""
    from fugu.algorithm.contract import Algorithm  # imports torch

    check_name(name)
    if is_own(name):
        found = _own(name)
    else:
        module = importlib.import_module(f"fugu.algorithm.{name}")
        classes = [value for value in vars(module).values() if inspect.isclass(value) and value.__module__ == module.__name__]
        found = next(value for value in classes if issubclass(value, Algorithm))
    return found


def _own(name: str) -> Any:
    from fugu.algorithm.trial import check_class
    from fugu.emulation.factory import load_named

    found = load_named(name)
    check_class(found, name)
    return found
