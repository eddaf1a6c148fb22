"""Prepare in the zygote, once for all its children, the doors they will lock."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from fugu.coding.sandbox import landlock, seccomp, wire


class Doors(NamedTuple):
    plan: int
    parent: int
    filters: tuple[bytes | None, bytes | None]
    """of compute, of program"""
    landlock_version: int
    readable: tuple[int, ...]
    """what may be read, as descriptors"""
    group: int = -1
    """the control group that has those of programs, as a descriptor"""

    def rights(self, *, execute: bool) -> tuple[int, ...]:
        """to each of ``readable``"""
        return tuple(landlock.readable_rights(descriptor, execute) for descriptor in self.readable)


def prepare(plan: int, sources: list[str], group: int) -> Doors:
    if not os.access(os.__file__, os.R_OK):
        raise PermissionError(
            f"Python at {sys.base_prefix} can be read by root only, and programs do not run as root; "
            "run as another user, or with python= set to an interpreter that all can read"
        )
    isolated = bool(plan & wire.NAMESPACES)
    version = landlock.version() if plan & wire.LANDLOCK else 0
    readable = ["/", "/dev/null"] if plan & wire.MOUNTS else [*sources, "/dev/null", "/dev/urandom"]
    filters: list[bytes | None] = [None, None]
    if plan & wire.SECCOMP:
        for index, profile in enumerate(("compute", "program")):
            # Without a pid namespace no program may start others: nothing would be sure to end them.
            filters[index] = seccomp.filter_for(
                profile if isolated else "compute",
                signals=isolated or version >= 6,
                # Landlock alone would do for writing, but knows nothing of modes and times, and there is no folder to write to.
                writing=bool(plan & wire.MOUNTS),
                sharing=bool(plan & (wire.MOUNTS | wire.LANDLOCK)),
            )
    opened = [os.open(path, os.O_PATH | os.O_CLOEXEC) for path in readable if plan & wire.LANDLOCK]
    return Doors(plan, os.getpid(), (filters[0], filters[1]), version, tuple(opened), group)
