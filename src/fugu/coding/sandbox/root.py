"""The file system a program sees: Python's standard library and the system's shared libraries, read-only, a few harmless devices, an
empty /tmp. No /proc, no /etc, no home, no site-packages, nothing of ours.

It is built once per zygote, in a mount namespace of its own; every execution then mounts a fresh /tmp.
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from fugu.coding.sandbox import kernel

_DEVICES = ("null", "random", "urandom")
"""not zero: what is mapped from it is memory that no limit counts (``seccomp``)"""
_LINKS = ("/bin", "/lib", "/lib32", "/lib64", "/usr/lib64")
_SHELL = "/bin/sh"


class Layout(NamedTuple):
    sources: list[str]
    """files and directories that Python programs need, as absolute paths without symbolic links in them"""
    hidden: list[str]
    """directories in them that are not theirs to see"""


def layout() -> Layout:
    """Ask a process of its own for the layout: the modules that know it would be in the memory that every fork copies."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            found = _find()
            os.write(writer, os.fsencode("\1".join("\0".join(paths) for paths in found)))
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        text = os.fsdecode(file.read())
    os.waitpid(pid, 0)
    if "\1" not in text:
        raise OSError("where Python lies could not be found out")
    return Layout(*([path for path in paths.split("\0") if path] for paths in text.split("\1")))


def _find() -> Layout:
    import glob
    import sysconfig

    library = sysconfig.get_path("stdlib")
    found = [library, sysconfig.get_config_var("DESTSHARED") or "", os.path.realpath(sys.executable), os.path.realpath(_SHELL)]
    # Shared libraries that extension modules load: Debian keeps them by architecture, others in lib64.
    multiarch = glob.glob("/usr/lib/*-linux-gnu*") + glob.glob("/lib/*-linux-gnu*")
    found += multiarch or ["/usr/lib", "/lib"]
    found += ["/usr/lib64", "/lib64"]
    # The interpreter's own library, where it is not a part of it.
    found += glob.glob(os.path.join(os.path.dirname(library), "libpython3*.so*"))
    unique: list[str] = []
    for path in sorted({os.path.realpath(path) for path in found if path and os.path.exists(path)}):
        if not any(path.startswith(outer + "/") for outer in unique):
            unique.append(path)
    hidden = [path for path in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")) if path]
    hidden += glob.glob(os.path.join(library, "*-packages")) + glob.glob("/usr/lib/*/perl*")
    hidden = [path for path in {os.path.realpath(path) for path in hidden} if os.path.isdir(path)]
    return Layout(unique, sorted(path for path in hidden if any(path.startswith(outer + "/") for outer in unique)))


def build(layout: Layout) -> None:
    """Build the root and move into it. The caller is in a mount namespace of its own and may mount."""
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    # Opened before the new root hides anything, and bound through /proc/self/fd.
    opened = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in layout.sources]
    devices = [(f"/dev/{name}", os.open(f"/dev/{name}", os.O_PATH | os.O_CLOEXEC)) for name in _DEVICES]
    links = [(path, os.readlink(path)) for path in _LINKS if os.path.islink(path)]
    if os.path.exists(_SHELL):
        links.append((os.path.join(os.path.realpath(os.path.dirname(_SHELL)), "sh"), os.path.realpath(_SHELL)))
    place = next(path for path in ("/tmp", "/mnt", "/var", "/usr") if os.path.isdir(path))
    kernel.mount("tmpfs", place, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=1m,nr_inodes=4096")
    for path, descriptor in (*opened, *devices):
        target = place + path
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        kernel.bind(f"/proc/self/fd/{descriptor}", target, device=path.startswith("/dev/"))
        os.close(descriptor)
    for path, target in links:
        if not os.path.lexists(place + path):
            os.makedirs(os.path.dirname(place + path), exist_ok=True)
            os.symlink(target, place + path)
    for path in layout.hidden:
        flags = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
        kernel.mount("tmpfs", place + path, "tmpfs", flags, "mode=755,size=4k,nr_inodes=1")
    os.makedirs(place + "/tmp", exist_ok=True)
    kernel.pivot_into(place)
    read_only = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("none", "/", None, read_only)


def private_tmp(disk_bytes: int, *, executable: bool) -> None:
    """Mount a fresh /tmp for this execution alone; it is gone with its mount namespace."""
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | (0 if executable else kernel.MS_NOEXEC)
    kernel.mount("tmpfs", "/tmp", "tmpfs", flags, f"mode=700,size={disk_bytes},nr_inodes=256")
    os.chdir("/tmp")
