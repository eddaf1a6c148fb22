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
