"""fugu: reinforcement learning at the speed of C and CUDA, without leaving Python.

Importing this package has no side effects and loads nothing heavy: every public name is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fugu import data, emulation, errors, policy, spaces, vector
    from fugu.algorithm.contract import Algorithm
    from fugu.check import check_env
    from fugu.emulation import Env, Rows, emulate
    from fugu.errors import FuguError
    from fugu.rollout.acting import Act, Seen
    from fugu.rollout.batch import Batch
    from fugu.run.ending import Interrupted
    from fugu.run.group import Group
    from fugu.run.policy import Policy, load
    from fugu.run.record import record
    from fugu.run.run import Run
    from fugu.run.train import train
    from fugu.spaces import Layout

# public name -> module that defines it; modules map to themselves
_PUBLIC = {
    "data": "fugu.data",
    "emulation": "fugu.emulation",
    "errors": "fugu.errors",
    "policy": "fugu.policy",
    "spaces": "fugu.spaces",
    "vector": "fugu.vector",
    "algorithm": "fugu.algorithm",
    "presets": "fugu.presets",
    "Act": "fugu.rollout.acting",
    "Algorithm": "fugu.algorithm.contract",
    "Batch": "fugu.rollout.batch",
    "Group": "fugu.run.group",
    "Interrupted": "fugu.run.ending",
    "Policy": "fugu.run.policy",
    "Run": "fugu.run.run",
    "Seen": "fugu.rollout.acting",
    "load": "fugu.run.policy",
    "record": "fugu.run.record",
    "train": "fugu.run.train",
    "Env": "fugu.emulation",
    "Rows": "fugu.emulation",
    "check_env": "fugu.check",
    "emulate": "fugu.emulation",
    "FuguError": "fugu.errors",
    "Layout": "fugu.spaces",
}

__all__ = [
    "Act",
    "Algorithm",
    "Batch",
    "Env",
    "FuguError",
    "Group",
    "Interrupted",
    "Layout",
    "Policy",
    "Rows",
    "Run",
    "Seen",
    "__version__",
    "algorithm",
    "check_env",
    "data",
    "emulate",
    "emulation",
    "errors",
    "load",
    "policy",
    "presets",
    "record",
    "spaces",
    "train",
    "vector",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fugu' has no attribute {name!r}")
    module = importlib.import_module(_PUBLIC[name])
    value = module if module.__name__ == f"fugu.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
