"""When our kernels are used instead of torch's, and how they are found.

``ready(*tensors)`` is what a function asks before it calls a kernel of ours. It is True for tensors on one CUDA device where NVRTC
works, and, inside ``with emulation():``, for tensors on the CPU: then the same kernels run there, slowly, for tests.

A kernel is compiled when it is first called. That cannot happen while a CUDA graph is being captured: call once before.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fugu.errors import FuguError
from fugu.gpu.module import Kernel, compile_module

_PROBE = '#include <fugu/cuda/kernel.h>\nextern "C" __global__ void probe() {}\nFUGU_KERNEL(probe)\n'
emulated = False
"""kernels for a card take tensors of the CPU"""

TENSOR_CORES = (8, 0)
"""compute capability of the first GPUs (Ampere) that multiply tf32 and bfloat16"""


def ready(first: Tensor, *others: Tensor | None, half: bool = False) -> bool:
    """Whether our kernels can take these (None is skipped). Floating tensors must be float32; with ``half`` bfloat16 will do too."""
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
    """Those of tf32 and bfloat16; what is emulated on a CPU has everything."""
    return device.type == "cpu" or torch.cuda.get_device_capability(device) >= TENSOR_CORES


@contextmanager
def emulation() -> Iterator[None]:
    """Inside, kernels that are written for a card run on tensors of the CPU."""
    global emulated
    before, emulated = emulated, True
    try:
        yield
    finally:
        emulated = before


@functools.cache
def works(device: torch.device) -> bool:
    """Whether kernels can be compiled for ``device``; says once why not."""
    try:
        compile_module(_PROBE, device).kernel("probe", "")
    except (FuguError, OSError) as error:
        reason = str(error).splitlines()[0]
        warnings.warn(f"{device}: torch's own kernels are used, which is slower ({reason})", RuntimeWarning, stacklevel=3)
        return False
    return True


@functools.cache
def kernel(header: str, name: str, signature: str, device: torch.device, *defines: str) -> Kernel:
    """The kernel ``name`` of ``native/cuda/<header>``. ``defines`` come before it, as ``NAME value``."""
    lines = [*(f"#define {define}" for define in defines), f"#include <fugu/cuda/{header}>", ""]
    return compile_module("\n".join(lines), device, what=header).kernel(name, signature)
