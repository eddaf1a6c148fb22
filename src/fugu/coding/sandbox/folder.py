"""A private folder for one run on the host, for backends whose boxes have none of their own, and its removal afterwards.

What a program left in it is hostile: links to elsewhere, trees deeper than any path, directories nobody may enter. Removal goes through
descriptors, follows no link, and needs neither recursion nor long paths: every directory is moved up to the top before it is emptied.
"""

from __future__ import annotations

import os
import stat
import tempfile
from itertools import count


def make() -> str:
    return tempfile.mkdtemp(prefix="fugu-box-")


def remove(path: str) -> bool:
    """Remove the folder; return True if it is gone."""
    try:
        top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        os.fchmod(top, 0o700)
        names = count()
        while directories := _empty(top, top, names):
            for name in directories:
                _take_apart(top, name, names)
        os.rmdir(path)
    except OSError:
        return False
    finally:
        os.close(top)
    return True


def _empty(fd: int, top: int, names: count[int]) -> list[str]:
    """Unlink what is in ``fd`` and move its directories up to ``top``; return the names they have there."""
    moved = []
    for name in os.listdir(fd):
        if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            # one that nobody may write cannot be moved: its ".." would change
            os.chmod(name, 0o700, dir_fd=fd)
            new = f"..{next(names)}"
            os.rename(name, new, src_dir_fd=fd, dst_dir_fd=top)
            moved.append(new)
        else:
            os.unlink(name, dir_fd=fd)
    return moved


def _take_apart(top: int, name: str, names: count[int]) -> None:
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    try:
        _empty(fd, top, names)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=top)
