"""Environments of any make behind one contract: ``Env`` writes its agents' rows into memory it is given."""

import importlib

from fugu.emulation.env import Deferred, Env, EnvSpec, Rows, spec_of
from fugu.emulation.factory import Factory, emulate, factories

__all__ = ["Deferred", "Env", "EnvSpec", "Factory", "Rows", "check_env", "emulate", "factories", "spec_of"]


def __getattr__(name: str) -> object:
    if name == "check_env":  # it stands above this package, and is found only once someone asks for it
        return importlib.import_module("fugu.check").check_env
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
