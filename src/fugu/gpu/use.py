"""The choice between our kernels and torch's, and the search for ours.

An op asks ``if x.is_cuda or use.emulated`` and calls nothing of this package where that is False, which it is in a training on a CPU.
``ready(*tensors)`` then says whether the kernels can take these tensors: on one CUDA device where NVRTC works, or, inside ``with
emulation():``, on the CPU, where the same kernels run slowly, for tests.

A kernel is compiled when it is first called. That cannot happen while a CUDA graph is being captured: call once before. torch is
imported by the functions, for ops that compute without it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fugu.errors import FuguError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fugu.gpu.module import Kernel

_PROBE = '#include <fugu/cuda/kernel.h>\nextern "C" __global__ void probe() {}\nFUGU_KERNEL(probe)\n'
emulated = False
"""kernels for a card take tensors of the CPU; set by ``emulation``"""

TENSOR_CORES = (8, 0)
"""compute capability of the first GPUs (Ampere) that multiply tf32 and bfloat16"""
SHARED = 48 * 1024
"""bytes of shared memory that a block may have without asking"""


def ready(first: Tensor, *others: Tensor | None, half: bool = False) -> bool:
    """Say whether our kernels can take these (None is skipped).

    Floating tensors must be float32; with ``half`` bfloat16 will do too.
    """
    import torch

    if not (first.is_cuda or (emulated and first.is_cpu)):
        return False
    device = first.device
    for tensor in (first, *others):
        if tensor is None:
            continue
        if tensor.device != device:
            return False
        if tensor.is_floating_point() and not (tensor.dtype == torch.float32 or (half and tensor.dtype == torch.bfloat16)):
            return False
    return device.type == "cpu" or works(device)


def has_tensor_cores(device: torch.device) -> bool:
    """Say whether ``device`` multiplies tf32 and bfloat16; what is emulated on a CPU has everything."""
    import torch

    return device.type == "cpu" or torch.cuda.get_device_capability(device) >= TENSOR_CORES


@contextmanager
def emulation() -> Iterator[None]:
    """Run kernels that are written for a card on tensors of the CPU inside the block."""
    global emulated
    before, emulated = emulated, True
    try:
        yield
    finally:
        emulated = before


@functools.cache
def works(device: torch.device) -> bool:
    """Say whether kernels can be compiled for ``device``; warn once where they cannot, with the reason."""
    from fugu.gpu.module import compile_module

    try:
        compile_module(_PROBE, device).kernel("probe", "")
    except (FuguError, OSError) as error:
        reason = str(error).splitlines()[0]
        warnings.warn(f"{device}: torch's own kernels are used, which is slower ({reason})", RuntimeWarning, stacklevel=3)
        return False
    return True


@functools.cache
def kernel(header: str, name: str, signature: str, device: torch.device, *defines: str) -> Kernel:
    """Return the kernel ``name`` of ``native/cuda/<header>``. ``defines`` come before it, as ``NAME value``."""
    from fugu.gpu.module import compile_module

    lines = [*(f"#define {define}" for define in defines), f"#include <fugu/cuda/{header}>", ""]
    return compile_module("\n".join(lines), device, what=header).kernel(name, signature)


def blocks(rows: int, block: int) -> int:
    """Return how many blocks of ``block`` threads have one for each of ``rows``."""
    return (rows + block - 1) // block


def block_of(words: int) -> int | None:
    """Return the threads of a block in which each has a row of ``words`` in shared memory; None where rows are too wide."""
    return next((threads for threads in (128, 64, 32) if 4 * threads * words <= SHARED), None)
