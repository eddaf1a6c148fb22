"""Source text -> kernels that can be launched.

``compile_module(source, device)`` compiles C++ that includes our headers (``#include <fugu/cuda/...>``); the result is kept in the
user's cache folder under a hash of everything that went into it. A kernel is called with its grid, its block and its arguments, whose
types its signature names, one letter each:

    p  a tensor (or None), as a pointer     i  int32     q  int64     f  float32     s  bytes, a struct by value

On a CPU device the same source is compiled by the system's compiler and run by ``native/cuda/emulate.h``.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fugu.compiler import cache_folder, find_compiler, shipped_flags, shipped_headers
from fugu.errors import ConfigError, GpuError
from fugu.gpu.libraries import check, driver, nvrtc, nvrtc_version

FAST = ("--fmad=true",)
"""for what learns: a * b + c is rounded once"""
EXACT = ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
"""for environments: the arithmetic of the CPU build"""

MAX_SHARED = 48 * 1024
"""bytes of shared memory a kernel may use without asking"""
MAX_LINES = 30
"""of a compiler's complaint that are shown"""


class Module:
    """Compiled kernels on one device."""

    def __init__(self, library: Any, device: torch.device) -> None:
        self._library, self.device = library, device

    def kernel(self, name: str, signature: str) -> Kernel:
        if self.device.type == "cpu":
            return Kernel(name, signature, getattr(self._library, f"emulate_{name}"), emulated=True)
        function = ctypes.c_void_p()
        with torch.cuda.device(self.device):
            bind(self.device)
            check(driver().cuModuleGetFunction(ctypes.byref(function), self._library, name.encode()), f"kernel {name}")
        return Kernel(name, signature, function, emulated=False, device=self.device)


class Kernel:
    """``kernel(grid, block, *arguments, shared=0)``: launched on torch's current stream, so that a CUDA graph can capture it."""

    def __init__(self, name: str, signature: str, function: Any, *, emulated: bool, device: torch.device | None = None) -> None:
        self.name, self.signature, self.device = name, signature, device
        self._function, self._emulated = function, emulated
        self._shared = 0

    def __call__(self, grid: int | tuple[int, int], block: int, *arguments: Any, shared: int = 0) -> None:
        if len(arguments) != len(self.signature):
            raise TypeError(f"kernel {self.name} takes {len(self.signature)} arguments, got {len(arguments)}")
        boxes = [_box(letter, argument) for letter, argument in zip(self.signature, arguments, strict=True)]
        pointers = (ctypes.c_void_p * len(boxes))(*(ctypes.addressof(box) for box in boxes))
        x, y = (grid, 1) if isinstance(grid, int) else grid
        if self._emulated:
            if self._function(pointers, x, y, block, shared) != 0:
                raise GpuError(f"kernel {self.name}: {block} threads a block cannot be emulated")
            return
        assert self.device is not None
        bind(self.device)
        if shared > max(MAX_SHARED, self._shared):
            check(driver().cuFuncSetAttribute(self._function, 8, shared), f"{shared} bytes of shared memory for {self.name}")
            self._shared = shared
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        check(
            driver().cuLaunchKernel(self._function, x, y, 1, block, 1, 1, shared, stream, pointers, None),
            f"launching kernel {self.name}",
        )


_bound = threading.local()


def bind(device: torch.device) -> None:
    """Give this thread a CUDA context, if it has none: the driver's own calls need one.

    torch makes one current with the first call of the runtime. In the thread that autograd goes backwards in, a kernel of ours may
    come before any.
    """
    if getattr(_bound, "done", False):
        return
    context = ctypes.c_void_p()
    check(driver().cuCtxGetCurrent(ctypes.byref(context)), "asking for the CUDA context")
    if not context.value:
        index = device.index if device.index is not None else torch.cuda.current_device()
        check(driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), index), f"the CUDA context of {device}")
        check(driver().cuCtxSetCurrent(context), f"making the CUDA context of {device} current")
    _bound.done = True


def _box(letter: str, argument: Any) -> Any:
    if letter == "p":
        return ctypes.c_void_p(
            None if argument is None else argument.data_ptr() if isinstance(argument, Tensor) else int(argument)
        )
    if letter == "s":
        return (ctypes.c_char * len(argument)).from_buffer_copy(argument)
    return {"i": ctypes.c_int32, "q": ctypes.c_int64, "f": ctypes.c_float}[letter](argument)


@functools.cache
def compile_module(
    source: str, device: torch.device, *, options: tuple[str, ...] = FAST, sources: tuple[Path, ...] = (), what: str = "kernels"
) -> Module:
    """Compile ``source`` for ``device``.

    ``sources`` are files outside the package that it includes: they decide whether what is cached still fits.
    """
    if device.type == "cpu":
        return Module(ctypes.CDLL(str(_emulated(source, sources, what))), device)
    capability = torch.cuda.get_device_capability(device)
    architecture = f"sm_{capability[0]}{capability[1]}"
    image = cubin(source, architecture, options, sources, what).read_bytes()
    module = ctypes.c_void_p()
    with torch.cuda.device(device):
        torch.zeros(1, device=device)  # makes torch's context the current one
        bind(device)
        check(driver().cuModuleLoadData(ctypes.byref(module), image), f"loading {what}")
    return Module(module, device)


def cubin(source: str, architecture: str, options: Sequence[str], sources: Sequence[Path], what: str) -> Path:
    """Return the compiled image, from the cache if it is there. Needs NVRTC, but no card."""
    headers = shipped_headers()
    flags = [
        f"--gpu-architecture={architecture}",
        "--std=c++20",
        "--device-as-default-execution-space",
        f"-I{headers}",
        *options,
    ]
    key = _key(repr((source, architecture, tuple(options), nvrtc_version())), headers, sources)
    path = cache_folder() / f"cuda-{key}-{architecture}.cubin"
    if not path.exists():
        _keep(path, _nvrtc_compile(source, flags, what))
    return path


def _nvrtc_compile(source: str, flags: Sequence[str], what: str) -> bytes:
    library, program = nvrtc(), ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"fugu.cu", 0, None, None)
    try:
        array = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
        if library.nvrtcCompileProgram(program, len(flags), array) != 0:
            size = ctypes.c_size_t()
            library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            library.nvrtcGetProgramLog(program, log)
            raise ConfigError(
                "\n".join([f"{what} does not compile for the GPU:", *log.value.decode().splitlines()[:MAX_LINES]])
            )
        size = ctypes.c_size_t()
        library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        image = ctypes.create_string_buffer(size.value)
        library.nvrtcGetCUBIN(program, image)
        return image.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _emulated(source: str, sources: Sequence[Path], what: str) -> Path:
    compiler, headers = find_compiler(), shipped_headers()
    flags = ("-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", *shipped_flags(), "-O1", "-Wno-unknown-pragmas")
    key = _key(repr((source, compiler.version, flags)), headers, sources)
    path = cache_folder() / f"emulated-{key}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            text, made = Path(folder) / "kernels.cpp", Path(folder) / "kernels.so"
            text.write_text(source)
            command = [compiler.path, *flags, f"-I{headers}", str(text), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise ConfigError("\n".join([f"{what} does not compile:", *done.stderr.splitlines()[:MAX_LINES]]))
            os.replace(made, path)
    return path


def _key(settings: str, headers: Path, sources: Sequence[Path]) -> str:
    key = hashlib.sha256(settings.encode())
    for file in (*sorted(headers.rglob("*.h")), *sources):
        key.update(file.read_bytes())
    return key.hexdigest()[:16]


def _keep(path: Path, image: bytes) -> None:
    """Write the image beside its place and move it there: two processes that compile the same thing do not meet."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(image)
    os.replace(file.name, path)
