"""Paths of the CUDA driver and the run-time compiler, and plain calls into both. Needs torch only to find the libraries it came
with."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fugu.errors import GpuError


@functools.cache
def nvrtc() -> Any:
    """Load the run-time compiler. torch's wheels bring one, without the unversioned name that ``dlopen`` would look for."""
    tried = []
    for candidate in _nvrtc_candidates():
        try:
            return ctypes.CDLL(candidate)
        except OSError as error:
            tried.append(f"{candidate}: {error}")
    raise GpuError(
        "libnvrtc, the CUDA compiler that comes with torch's CUDA wheels, was not found; "
        "pip install nvidia-cuda-nvrtc (the version torch.version.cuda names), or set CUDA_HOME. "
        f"Tried {'; '.join(tried) or 'nothing'}"
    )


def nvrtc_version() -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def nvrtc_path() -> str:
    return str(nvrtc()._name)


def driver_version() -> str:
    """Return the newest CUDA version the driver can run."""
    version = ctypes.c_int()
    check(driver().cuDriverGetVersion(ctypes.byref(version)), "asking the driver for its version")
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


@functools.cache
def driver() -> Any:
    for name in ("libcuda.so.1", "libcuda.so", "nvcuda.dll"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise GpuError("libcuda.so.1, NVIDIA's driver, was not found; nvidia-smi should work first")


def check(result: int, what: str) -> None:
    """Raise if a call of the driver failed."""
    if result == 0:
        return
    text = ctypes.c_char_p()
    driver().cuGetErrorString(result, ctypes.byref(text))
    said = text.value.decode() if text.value else f"error {result}"
    hint = {
        2: "; fewer environments, a shorter horizon or a smaller network need less memory",
        209: "; the kernel was compiled for another card",
        218: "; the driver is older than the compiler: update the driver, or install a torch built for its CUDA version",
        222: "; the driver is older than the compiler: update the driver, or install a torch built for its CUDA version",
        700: "; a kernel read or wrote outside its memory: please report this",
        701: "; the kernel needs more registers or shared memory than the card has",
    }.get(result, "")
    raise GpuError(f"{what}: {said}{hint}")


def _nvrtc_candidates() -> Iterator[str]:
    """Yield names of libraries, the most fitting first: what torch itself came with, then what the system has."""
    major = _cuda_major()
    folders = [Path(folder) / "nvidia" for folder in sys.path if folder and (Path(folder) / "nvidia").is_dir()]
    found = [str(file) for folder in folders for file in sorted(folder.glob("*/lib/libnvrtc.so*"))]
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home:
            found += [str(file) for file in sorted(Path(home).glob("lib64/libnvrtc.so*"))]
    if name := ctypes.util.find_library("nvrtc"):
        found.append(name)
    usable = [name for name in found if "alt" not in Path(name).name]
    fitting = [name for name in usable if major and re.search(rf"libnvrtc\.so\.{major}\b", name)]
    yield from dict.fromkeys([*fitting, *([f"libnvrtc.so.{major}"] if major else []), *usable])


def _cuda_major() -> str | None:
    if "torch" not in sys.modules:
        return None
    version = sys.modules["torch"].version.cuda
    return version.split(".")[0] if version else None
