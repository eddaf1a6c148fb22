"""An environment in a C++ header of the user's own -> a library the compiled core can load.

``build`` compiles ``my_env.h`` with the system's compiler against the headers shipped beside the core, into the user's cache
folder; what has been compiled once is found again by a hash of everything that went into it. ``load`` hands the library to the
core and gives the name under which it then is an environment like those of the package.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fugu.compiler import cache_folder, find_compiler, no_cache, shipped_flags, shipped_headers
from fugu.emulation.native import descriptions, forget_descriptions, is_name
from fugu.errors import ConfigError
from fugu.native import native

# hidden: without it the loader lets two libraries share what is static in equally named structs, and the older one wins
LIBRARY = ("-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden")
FAST = ("-DNDEBUG",)
PRINTING = ("-fdiagnostics-color=never", "-fmax-errors=5")
MAX_LINES = 40
"""of a compiler's complaint that are shown"""

SOURCE = """#include "{header}"
#include <fugu/contract.h>
static_assert(fugu::is_environment<FuguEnvironment>());
#include <fugu/engine.h>
extern "C" __attribute__((visibility("default"))) const fugu::EngineApi* fugu_environment() {{
  return fugu::Engine<FuguEnvironment>::api();
}}
"""

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def is_built(env: Any) -> bool:
    """Return True if ``env`` names an environment to be compiled (``my_env.h``) or one compiled already (a library of ``build``)."""
    return isinstance(env, str) and env.endswith((".h", ".hpp", ".so"))


def is_compiled(env: Any) -> bool:
    """Return True if ``env`` names a native environment: one of the package, or one of the user's own."""
    return is_name(env) or is_built(env)


def build(path: str | Path, debug: bool = False) -> Path:
    """Compile the header at ``path``, unless that was done before; the library's path. A library is its own result.

    ``debug`` compiles with the address and undefined-behaviour sanitizers; such a library only loads into a process started
    with the variables of ``debug_environment``.
    """
    header = Path(path).resolve()
    if not header.is_file():
        raise ConfigError(f"{str(path)!r}: no such file (looked at {header}). Start one with: fugu new env --native {path}")
    if header.suffix == ".so":
        return header
    compiler, headers = find_compiler(), shipped_headers()
    flags = (*LIBRARY, *shipped_flags(), *(compiler.debug_flags if debug else FAST))
    key = hashlib.sha256(repr((str(header), SOURCE, compiler.version, flags)).encode())
    for file in (*sorted(headers.rglob("*.h")), *source_files(header)):
        key.update(file.read_bytes())
    library = cache_folder() / f"{header.stem}-{'debug-' if debug else ''}{key.hexdigest()[:16]}.so"
    if not library.exists():
        _compile([compiler.path, *flags, *PRINTING, f"-I{headers}"], header, library)
    return library


def load(library: str | Path) -> str:
    """Make a library of ``build`` an environment of this process; its name."""
    library = Path(library)
    if native is None:
        raise ConfigError(f"{library.name} needs fugu's compiled core, which is not available here; see fugu doctor")
    name = library.stem
    if library.parent != cache_folder():  # whatever it is called, it is neither one of the package nor another of that name
        name += "-" + hashlib.sha256(str(library.resolve()).encode() + library.read_bytes()).hexdigest()[:16]
    if name not in descriptions():
        if "-debug-" in name and "asan" not in os.environ.get("LD_PRELOAD", ""):  # loading it would end the process
            raise ConfigError(f"{library.name} needs LD_PRELOAD for its sanitizers; fugu build --debug prints how to run it")
        try:
            native.load(name, str(library))
        except RuntimeError as error:
            raise ConfigError(f"cannot load {library}: {error}") from error
        forget_descriptions()
    return name


def debug_environment() -> Mapping[str, str]:
    """Return the environment variables with which a process can load a library built with ``debug``, beside those there are.

    Freed memory is not held back: environments have none of their own, and the check of their memory would see it grow.
    """
    return {
        "LD_PRELOAD": find_compiler().sanitizers(),
        "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=0:thread_local_quarantine_size_kb=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def _compile(command: list[str], header: Path, library: Path) -> None:
    """Compile into a folder of its own and move the library from there, so that two processes that build the same do not meet."""
    try:
        temporary = tempfile.TemporaryDirectory(dir=library.parent)
    except OSError as error:
        raise no_cache(library.parent, error) from error
    with temporary as folder:
        source, made = Path(folder) / "environment.cpp", Path(folder) / "environment.so"
        source.write_text(SOURCE.format(header=header))
        done = subprocess.run([*command, str(source), "-o", str(made)], capture_output=True, text=True, cwd=header.parent)
        if done.returncode != 0:
            raise ConfigError(_complaint(command, header, done.stderr.replace(f"{header.parent}/", "")))
        os.replace(made, library)


def _complaint(command: list[str], header: Path, said: str) -> str:
    if "FuguEnvironment" in said and "FUGU_ENVIRONMENT" not in header.read_text(errors="replace"):
        return f"{header.name} does not say which struct is the environment; end it with the line FUGU_ENVIRONMENT(MyEnv)"
    lines = said.rstrip().splitlines()
    more = [f"... and {len(lines) - MAX_LINES} lines more"] if len(lines) > MAX_LINES else []
    return "\n".join([f"{header.name} does not compile ({shlex.join(command[:1])}):", *lines[:MAX_LINES], *more])


def source_files(header: Path) -> list[Path]:
    """Return the header, what it includes from beside it, and what that includes."""
    found, todo = [], [header]
    while todo:
        file = todo.pop()
        if file in found:
            continue
        found.append(file)
        for name in INCLUDE.findall(file.read_text(errors="replace")):
            if (beside := (file.parent / name).resolve()).is_file():
                todo.append(beside)
    return found
