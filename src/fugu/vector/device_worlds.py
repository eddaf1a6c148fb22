"""The C++ of an environment, for kernels that step it on a device.

``kernel_source(env)`` names the header and the struct of a native environment or of a user's own header, as text that a kernel's
source starts with; ``worlds_module`` compiles the kernels that reset and step whole arrays of worlds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fugu.compiler import shipped_headers
from fugu.emulation.build import build, load, source_files
from fugu.emulation.native import is_name
from fugu.errors import ConfigError
from fugu.gpu.module import EXACT, Module, compile_module

STRUCT = re.compile(r"struct (\w+) \{\s*static constexpr const char\* name = ")
"""the environment in a header of the package: the struct that begins with its name"""


KERNELS = "#include <fugu/cuda/worlds_kernels.h>\n"


@dataclass(frozen=True)
class KernelSource:
    name: str
    """under which the compiled core knows the environment: ``descriptions()[name]``"""
    text: str
    """declares ``FuguEnvironment``; comes first in a kernel's source"""
    files: tuple[Path, ...] = ()
    """outside the package, which the text includes"""


@dataclass(frozen=True)
class WorldParts:
    """Arguments of a kernel that steps the worlds of a ``NativeDevice`` along with other work."""

    source: KernelSource
    words: Tensor
    """the worlds themselves"""
    params: bytes
    """the environment's ``Params``"""
    time_limit: int
    logs: Tensor
    """[slots, LogSum] that may be added to; there are slots for every 16 worlds"""


def kernel_source(env: str) -> KernelSource:
    """Return the source of ``env``, the name of a native environment, or the path of a header with one."""
    if is_name(env):
        header = shipped_headers() / "fugu" / "envs" / f"{env}.h"
        if header.is_file() and (found := STRUCT.search(header.read_text())):
            return KernelSource(env, f"#include <fugu/envs/{env}.h>\nusing FuguEnvironment = fugu::{found[1]};\n")
    if Path(env).suffix not in (".h", ".hpp"):
        raise ConfigError(f"{env!r} has been compiled for the CPU; for a device give the header it was built from: my_env.h")
    header = Path(env).resolve()
    return KernelSource(load(build(header)), f'#include "{header}"\n', tuple(source_files(header)))


def worlds_module(source: KernelSource, device: torch.device) -> Module:
    """Compile the kernels ``reset_worlds`` and ``step_worlds``, with the CPU's arithmetic: the same bits."""
    return compile_module(
        f"{source.text}{KERNELS}", device, options=EXACT, sources=source.files, what=f"environment {source.name}"
    )


def block_size(worlds: int, staged: int) -> int:
    """Return the threads of a block whose worlds stage rows of ``staged`` bytes each in shared memory; no more than have a world."""
    return next(threads for threads in BLOCKS if threads == 32 or (threads * staged <= MAX_STAGED and threads < worlds + 32))


BLOCKS = (128, 96, 64, 32)
MAX_STAGED = 40 * 1024
