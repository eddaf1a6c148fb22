"""Files in a folder that anybody may have made: read and written as the plain files they should be.

A link would lead what is written elsewhere, and so would a second name of the same file (a hard link). A pipe would be waited for
without end, a device may have no end. All of these are refused by name, before anything is read or changed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from fugu.errors import ConfigError

SMALL = 1 << 20
"""bytes of a file that holds settings or notes"""
LARGEST = 1 << 28
"""bytes of a file that is read at once"""
LINE = 1 << 20
"""bytes of a line"""


class NotPlain(ConfigError):
    """Something else is where a plain file should be."""


def read(path: Path, most: int = LARGEST) -> bytes:
    """Return what is in a file, of at most ``most`` bytes; OSError as usual, NotPlain where it is none."""
    with os.fdopen(_opened(path, os.O_RDONLY), "rb") as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise NotPlain(f"{path} has {size} bytes, more than the {most} that can be meant")
        return file.read(most + 1)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """Open a file of any size to be read; one that is a link, a pipe or a device is refused."""
    with os.fdopen(_opened(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        yield file


def lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, each with its end; one that is longer than ``LINE`` in pieces."""
    with os.fdopen(_opened(path, os.O_RDONLY), "rb") as file:
        while line := file.readline(LINE):
            yield line


def refuse_odd(path: Path) -> None:
    """Raise NotPlain if a pipe or a device is where a file should be; what is missing is for the reader to tell."""
    with contextlib.suppress(OSError):
        os.close(_opened(path, os.O_RDONLY))


def opened(path: Path, flags: int) -> int:
    """Open a file to be changed in place, as ``os.open``."""
    descriptor = _opened(path, flags | os.O_NOFOLLOW)
    if os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        raise NotPlain(
            f"{path} has another name elsewhere (a hard link), and would be written to there too; replace it with a copy"
        )
    return descriptor


def write(path: Path, content: str | bytes) -> None:
    """Write a file at once or not at all: ``path`` keeps what it had until all of that is on the disk. A link goes; what it led to
    stays as it is."""
    draft = path.with_suffix(".tmp")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace"))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def refuse_links(folder: Path, *, besides: str = "", unwritten: str = "") -> None:
    """Raise NotPlain if anything below ``folder`` is a link, a pipe or a device.

    ``besides``: a folder in it that may have links, to what is in ``folder`` itself. ``unwritten``: a pattern of links to files that
    may lie anywhere, as nothing ever writes to what has such a name."""
    whole, depth = folder.resolve(), len(Path(unwritten).parts)
    todo = [folder]
    while todo:
        for entry in os.scandir(todo.pop()):
            path = Path(entry.path)
            if entry.is_symlink():
                within = path.relative_to(folder)
                if unwritten and len(within.parts) == depth and within.match(unwritten) and not entry.is_dir():
                    continue
                inside = besides and path.is_relative_to(folder / besides) and path != folder / besides
                if not (inside and path.resolve().is_relative_to(whole)):
                    what = "folder" if entry.is_dir() else "file"
                    raise NotPlain(f"{path} is a link, and would be written to; replace it with a {what}")
            elif entry.is_dir():
                todo.append(path)
            elif not entry.is_file():
                raise NotPlain(f"{path} is a pipe or a device, and no file; delete it")


def _opened(path: Path, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o644)  # a pipe would be waited for
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotPlain(f"{path} is a link, and would be written to; replace it with a file") from None
        if error.errno == errno.ENXIO:
            raise NotPlain(f"{path} is a pipe or a device, and no file; delete it") from None
        raise
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise NotPlain(f"{path} is a pipe or a device, and no file; delete it")
