"""The base of our own GPU kernels: compiling them at run time by NVRTC, launching them on torch's stream, CUDA graphs.

Nothing here needs a GPU to be imported, and nothing is compiled before it is first used. The same sources compile for the CPU
(``emulation``), slowly, so that every kernel is tested where there is no card.
"""

from __future__ import annotations

from fugu.gpu.use import emulation, ready

__all__ = ["emulation", "ready"]
