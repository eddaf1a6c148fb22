"""The system's C++ compiler, the headers and flags to compile with it, and the folder that keeps what was compiled."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from fugu.errors import ConfigError, FuguError
from fugu.native import native

COMPILERS = ("c++", "g++", "clang++")
DEBUG = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")


@dataclass(frozen=True)
class Compiler:
    path: str
    version: str

    @property
    def debug_flags(self) -> tuple[str, ...]:
        """With the bounds of an array at the end of a struct checked as well, which is where State often has one."""
        return (*DEBUG, *(("-shared-libasan", "-fstrict-flex-arrays=3") if self._is_clang else ("-fsanitize=bounds-strict",)))

    def sanitizers(self) -> str:
        """Name the libraries that must be in a process before anything compiled with ``debug_flags``: the sanitizers', and the
        standard library's, or they cannot see what it throws."""
        wanted = (f"libclang_rt.asan-{os.uname().machine}.so" if self._is_clang else "libasan.so", "libstdc++.so.6")
        commands = [[self.path, f"-print-file-name={name}"] for name in wanted]
        found = [subprocess.run(command, capture_output=True, text=True).stdout.strip() for command in commands]
        if not os.path.isabs(found[0]):  # a compiler that does not find a file gives its name back
            raise ConfigError(f"{self.path} has no address sanitizer ({wanted[0]}); install it, or build without --debug")
        return " ".join(os.path.realpath(file) for file in found if os.path.isabs(file))

    @property
    def _is_clang(self) -> bool:
        return "clang" in self.version


def find_compiler() -> Compiler:
    for name in COMPILERS:
        if path := shutil.which(name):
            return Compiler(path, subprocess.run([path, "--version"], capture_output=True, text=True).stdout)
    raise ConfigError(
        f"no C++ compiler here (looked for {', '.join(COMPILERS)}); install one: apt install g++, dnf install gcc-c++, "
        "or conda install gxx"
    )


def shipped_headers() -> Path:
    """Return the folder with ``fugu/env.h``. It lies beside the compiled core, so the two are always of one version."""
    if native is None:
        raise ConfigError("compiling an environment needs fugu's compiled core, which is not available here; see fugu doctor")
    folder = Path(native.__file__).parent / "include"
    if not (folder / "fugu" / "env.h").is_file():
        raise FuguError(f"fugu's headers are missing from {folder}; reinstall fugu-rl")
    return folder


def shipped_flags() -> tuple[str, ...]:
    """Return how the core itself was compiled: optimization, warnings, floating point. What ``debug`` adds comes later and wins."""
    lines = (shipped_headers() / "fugu" / "flags.txt").read_text().splitlines()
    return tuple(line for line in lines if line.startswith("-"))


def cache_path() -> Path:
    """Return where the cache is, whether or not it is there."""
    asked = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (asked if asked.is_absolute() else Path.home() / ".cache") / "fugu"  # the standard says to ignore relative ones


def cache_folder() -> Path:
    folder = cache_path()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise no_cache(folder, error) from error
    return folder


def no_cache(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot write to the cache folder {folder}: {error.strerror}; set XDG_CACHE_HOME to another")
