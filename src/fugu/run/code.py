"""Copies of the user's own files in a run's folder: ``code/env/my_env.py`` and what it imports from beside it.

A run that lies elsewhere finds its code there. Copies are never executed where they lie: their bytes are read once, without following
links, and what was read is unpacked into the user's cache folder under a name made from it. So what a seal was checked against is
what runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from fugu.compiler import cache_folder
from fugu.emulation.build import source_files
from fugu.emulation.place import split_file
from fugu.errors import ConfigError

Files = Mapping[str, bytes]
"""path below a folder -> content"""

MOST_BYTES = 1 << 20
"""size of all copies of a role"""
MOST_FILES = 100

IMPORT = re.compile(rb"^[ \t]*(?:from[ \t]+(\w+)[\w. \t]*import|import[ \t]+([\w., \t;]+))", re.MULTILINE)


class TooMuch(Exception):
    """The files are more than a run should carry."""


def gathered(name: str) -> dict[str, bytes]:
    """Return the file that ``name`` means and what it imports, or includes, from beside it."""
    file = Path(split_file(name)[0])
    found: dict[str, bytes] = {}
    if file.suffix == ".so":
        return found  # only sources: what is in a library cannot be looked at
    if file.suffix == ".py":
        paths: Iterator[Path] = _imported(file, MOST_BYTES)
    else:
        paths = iter(source_files(file.resolve()))
    total = 0
    for path in paths:
        if not path.is_relative_to(file.parent):
            continue  # a header from elsewhere: compiling will say that it is missing
        total += path.stat().st_size
        if total > MOST_BYTES or len(found) >= MOST_FILES:
            raise TooMuch(
                f"{file} and what it imports from beside it are more than {MOST_BYTES >> 20} MiB or {MOST_FILES} files"
            )
        found[str(path.relative_to(file.parent))] = path.read_bytes()
    return found


def keep(folder: Path, role: str, files: Files) -> None:
    """Write copies into ``folder``; those of before that are not among them go."""
    if folder.is_symlink():
        raise _link(folder)
    draft = folder / f".{role}-{os.getpid()}"
    _remove(draft)
    for path, content in files.items():
        target = draft / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    _replace(draft, folder / role)


def forget(folder: Path, role: str) -> None:
    """Delete the copies of a role."""
    if not folder.is_symlink():
        with contextlib.suppress(OSError):
            _remove(folder / role)


def read(folder: Path) -> dict[str, bytes]:
    """Return all copies in ``folder`` by their paths (``env/my_env.py``). A ConfigError if there is a link among them, or too much;
    what Python leaves behind when it imports is not read, and never used."""
    found: dict[str, bytes] = {}
    if folder.is_symlink():
        raise _link(folder)
    if folder.is_dir():
        _read(folder, "", found)
    return found


def of_role(copies: Files, role: str) -> dict[str, bytes]:
    """Return the copies of one role, by their paths in its folder."""
    return {path.removeprefix(f"{role}/"): content for path, content in copies.items() if path.startswith(f"{role}/")}


def digest(files: Files) -> str:
    """Return a hash of names and contents."""
    each = [(path, hashlib.sha256(content).hexdigest()) for path, content in sorted(files.items())]
    return hashlib.sha256(repr(each).encode()).hexdigest()


def unpacked(files: Files) -> Path:
    """Return a folder of the user's cache that holds exactly these files."""
    folder = cache_folder() / "code" / digest(files)[:32]
    for path, content in files.items():
        target = folder / path
        if target.is_file() and not target.is_symlink() and target.read_bytes() == content:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}-{os.getpid()}")
        draft.write_bytes(content)
        draft.replace(target)
    return folder


def _imported(file: Path, most: int) -> Iterator[Path]:
    """Yield ``file``, the modules it imports that lie in its folder, and what these import."""
    folder, seen = file.parent, {file}
    todo = [file]
    while todo:
        path = todo.pop()
        yield path
        if path.stat().st_size > most:
            return
        for name in _names(path):
            module, package = folder / f"{name}.py", folder / name
            if (package / "__init__.py").is_file():
                candidates = sorted(each for each in package.rglob("*.py") if each.is_file())
            else:
                candidates = [module] if module.is_file() else []
            todo += [each for each in candidates if each not in seen]
            seen.update(candidates)


def _names(path: Path) -> set[str]:
    """Return the first parts of the names of all modules that a file imports. Text that only looks like an import may add some: a
    parser would be exact, and take a second for a megabyte."""
    found = set()
    for origin, several in IMPORT.findall(path.read_bytes()):
        words = [origin] if origin else re.split(rb"[,;]", several)
        found |= {word.replace(b"import ", b"").split()[0].partition(b".")[0].decode() for word in words if word.strip()}
    return found


def _read(folder: Path, below: str, found: dict[str, bytes]) -> None:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name == "__pycache__" or entry.name.startswith("."):
            continue
        path = below + entry.name
        if entry.is_dir(follow_symlinks=False):
            _read(folder / entry.name, f"{path}/", found)
            continue
        found[path] = _content(folder / entry.name)
        if len(found) > 5 * MOST_FILES or sum(map(len, found.values())) > 5 * MOST_BYTES:
            raise ConfigError(f"{folder} holds more than the copies that a run makes")


def _content(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"{path} must be a plain file that can be read, no link: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or os.fstat(descriptor).st_size > MOST_BYTES:
            raise ConfigError(f"{path} must be a plain file of at most {MOST_BYTES >> 20} MiB")
        return file.read()


def _replace(draft: Path, target: Path) -> None:
    """Put a finished folder in the place of another."""
    _remove(target)
    draft.replace(target)


def _remove(folder: Path) -> None:
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
    else:
        folder.unlink(missing_ok=True)


def _link(folder: Path) -> ConfigError:
    return ConfigError(f"{folder} is a link, and a run's code must lie in its folder; replace it with what it points to")
