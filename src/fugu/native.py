"""The compiled core, or None where it could not be loaded; then everything runs on its Python reference, slowly, and says so."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

native: Any = None
missing = ""
"""why it could not be loaded"""
try:
    native = importlib.import_module("fugu._native")
except ImportError as error:  # no compiler at install time, or another Python
    missing = str(error)
    warnings.warn(
        f"fugu's native core is not available ({missing}); the pure-Python fallback is used, which is several times slower. "
        "Reinstall fugu-rl with a C++ compiler present; `fugu doctor` says more.",
        RuntimeWarning,
        stacklevel=2,
    )

threads: int | None = None
"""how many threads the kernels of a learner use; None: as many as torch does"""


def set_threads(count: int | None) -> None:
    """Set ``threads``, apart from torch's own.

    Those wait for each other by spinning: on a busy machine that costs more than they bring, so a network that these kernels compute
    is better off with one thread of torch.
    """
    global threads
    threads = count


def keep_freed_memory() -> bool:
    """Keep freed memory in this process for its next requests instead of giving it back to the system; False: not possible here.

    Activations and gradients of a minibatch are tens of megabytes, allocated and freed at every update; fetching their pages anew
    costs up to as much as computing what they hold. For a process that trains: it grows to a few times what it needs at once, and
    never shrinks.
    """
    return native is not None and native.keep_freed_memory()
