"""Landlock: which files a process may open, said by the process itself and for good (Linux 5.13 and later).

With namespaces it is a second wall behind the read-only root; without them it is the wall.
"""

from __future__ import annotations

import os
import struct

from fugu.coding.sandbox import kernel

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_FIRST = (1 << 13) - 1
"""all rights of version 1"""
_READ = _READ_FILE | _READ_DIR
_FILE_ONLY = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
"""rights that make sense for what is not a directory; the kernel refuses a rule for a file that carries others (EINVAL)"""
_SCOPE_SIGNALS_AND_ABSTRACT_SOCKETS = 3
_BIND_AND_CONNECT_TCP = 3


def version() -> int:
    """Return Landlock's version here; raise OSError where there is none."""
    return kernel.syscall("landlock_create_ruleset", None, 0, 1)


def handled(abi: int) -> int:
    """Return the rights that version ``abi`` can withhold."""
    rights = _FIRST
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEVICE)):
        if abi >= since:
            rights |= right
    return rights


def restrict(abi: int, readable: list[int], writable: list[int], *, execute: bool) -> None:
    """Let this process from now on read what is below ``readable``, do anything below ``writable``, and nothing else.

    Both are descriptors (O_PATH will do). Needs no_new_privs.
    """
    rights = handled(abi)
    attributes = struct.pack("<Q", rights)
    if abi >= 4:
        attributes += struct.pack("<Q", _BIND_AND_CONNECT_TCP)
    if abi >= 6:
        attributes += struct.pack("<Q", _SCOPE_SIGNALS_AND_ABSTRACT_SOCKETS)
    ruleset = kernel.syscall("landlock_create_ruleset", attributes, len(attributes), 0)
    try:
        for descriptor in readable:
            _allow(ruleset, descriptor, readable_rights(descriptor, execute) & rights)
        for descriptor in writable:
            _allow(ruleset, descriptor, rights if execute else rights & ~_EXECUTE)
        kernel.syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


def readable_rights(descriptor: int, execute: bool) -> int:
    """Return the rights reading needs, of a file or a directory. /dev/null may be written to as well: programs throw things away."""
    rights = _READ | (_EXECUTE if execute else 0)
    if os.fstat(descriptor).st_rdev == os.makedev(1, 3):
        rights |= _WRITE_FILE | _TRUNCATE
    return rights if _is_directory(descriptor) else rights & _FILE_ONLY


def _allow(ruleset: int, descriptor: int, rights: int) -> None:
    kernel.syscall("landlock_add_rule", ruleset, 1, struct.pack("<Qi", rights, descriptor), 0)


def _is_directory(descriptor: int) -> bool:
    return (os.fstat(descriptor).st_mode & 0o170000) == 0o040000
