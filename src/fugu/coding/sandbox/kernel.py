"""Offer what Python's standard library lacks of Linux: namespaces, mounts, capabilities, prctl. Every failure is an OSError.

Standard library only: this runs in the zygote, which imports nothing else.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import Any

from fugu.coding.sandbox.syscalls import numbers

# Python 3.11 has no names for these.
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER = 0x20000, 0x4000000, 0x8000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECUREBITS, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 28, 36, 38
SECUREBITS_LOCKED = 0xEF
"""uid 0 means nothing, ids do not move capabilities, ambient ones cannot be raised; each with its lock"""

_CAPABILITY_HEADER = struct.pack("<Ii", 0x20080522, 0)
_NUMBERS = numbers(os.uname().machine) or {}


class _Ctypes:
    """The compiled module's functions, where it was not compiled; and calls by their names in the C library, on machines whose numbers
    we do not know."""

    def __init__(self) -> None:
        import ctypes  # here, since nobody else needs it, and every fork of a zygote would copy its memory

        self.ctypes, self.library = ctypes, ctypes.CDLL(None, use_errno=True)
        self.library.syscall.restype = ctypes.c_long

    def syscall(self, *arguments: int | bytes | None) -> int:
        return self.call("syscall", *arguments)

    def call(self, name: str, *arguments: int | bytes | None) -> int:
        function = getattr(self.library, name, None)
        if function is None:
            raise OSError(errno.ENOSYS, "")
        longs = [self.ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
        result: int = function(*longs)
        if result == -1:
            raise OSError(self.ctypes.get_errno(), "")
        return result

    def address(self, data: bytes) -> int:
        return self.ctypes.cast(self.ctypes.c_char_p(data), self.ctypes.c_void_p).value or 0


_calls: Any = None


def use(native: Any) -> None:
    """Make system calls through ``native``, the compiled module, or without it where it is None. Comes first of all: later, as another
    user, Python itself may be out of reach."""
    global _calls
    _calls = native if native is not None and _NUMBERS else _Ctypes()


def syscall(name: str, *arguments: int | bytes | None) -> int:
    """Make a system call by its name. Of bytes the kernel gets the address; they end with a zero."""
    try:
        result: int = _calls.syscall(_NUMBERS[name], *arguments) if _NUMBERS else _calls.call(name, *arguments)
    except OSError as error:
        raise OSError(error.errno, f"{name}: {os.strerror(error.errno or 0)}") from None
    return result


def address(data: bytes) -> int:
    """Return where ``data`` is, for structures that point to others. It has to be kept until they were used."""
    where: int = _calls.address(data)
    return where


def prctl(option: int, value: int) -> None:
    syscall("prctl", option, value, 0, 0, 0)


def unshare(flags: int) -> None:
    syscall("unshare", flags)


def setns(descriptor: int, flags: int) -> None:
    syscall("setns", descriptor, flags)


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    try:
        syscall("mount", *encoded[:3], flags, encoded[3])
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} ({kind or ''} {target})") from None


def bind(source: str, target: str, *, device: bool = False) -> None:
    """Show ``source`` at ``target``, read-only. A device stays one, which every other mount forbids; it can be written to
    nevertheless, but its times, which are the machine's, cannot be set."""
    mount(source, target, None, MS_BIND)
    flags = MS_NOSUID | MS_RDONLY | (MS_NOEXEC if device else MS_NODEV)
    # The kernel refuses to take away flags that the source's own mount has (statvfs uses the same bits), so they are kept.
    flags |= os.statvfs(target).f_flag & (MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("none", target, None, MS_REMOUNT | MS_BIND | flags)


def pivot_into(directory: str) -> None:
    """Make ``directory``, a mount point, the root, and take the old root away altogether."""
    os.chdir(directory)
    syscall("pivot_root", b".", b".")  # both at once: the old root now lies over the new one ...
    syscall("umount2", b".", MNT_DETACH)  # ... and is lifted off
    os.chdir("/")


def drop_capabilities() -> None:
    """Drop all capabilities.

    The bounding set is left alone: with no_new_privs, no uid 0 and locked securebits nothing can be gained through it, and emptying it
    takes forty calls per execution.
    """
    syscall("capset", _CAPABILITY_HEADER, bytes(24))


def close_from(first: int) -> None:
    """Close every descriptor from ``first`` on."""
    try:
        syscall("close_range", first, 0x7FFFFFFF, 0)
    except OSError:  # before Linux 5.9
        os.closerange(first, min(os.sysconf("SC_OPEN_MAX"), 1 << 16))


def map_ids(process: int, inside: int, user: int, group: int) -> None:
    """Map, in a user namespace just entered, ``user`` and ``group`` of outside to ``inside``; there are no others.

    ``process`` is an open /proc/self, since the new root has no /proc.
    """
    for name, text in (("setgroups", "deny"), ("uid_map", f"{inside} {user} 1"), ("gid_map", f"{inside} {group} 1")):
        descriptor = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=process)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
