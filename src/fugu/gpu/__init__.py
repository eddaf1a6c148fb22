"""What kernels of our own on a GPU rest on: compiling them at run time by NVRTC, launching them on torch's stream, CUDA graphs.

Nothing here needs a GPU to be imported, and nothing is compiled before it is first used. The same sources compile for the CPU
(``emulate``), slowly, so that every kernel is tested where there is no card.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("emulation", "ready"):  # when asked for: they import torch
        from fugu.gpu import use

        return getattr(use, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
