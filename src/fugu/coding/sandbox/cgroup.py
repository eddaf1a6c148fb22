"""Have the kernel count what all processes of a program take: a control group (version 2) per program, below one that belongs to a
zygote, below one that somebody delegated to this user. CPU time is counted in any of them; memory where its controller is delegated,
too.

Standard library only: this runs in the zygote. Paths are relative to an open directory, since the zygote's root has no /sys.
"""

from __future__ import annotations

import os
import time

_PATIENCE_S = 1.0


def folder(delegated: str, pid: int) -> str:
    """Return where the group of the worker with this number is."""
    return os.path.join(delegated, f"fugu-{pid}")


def enter(delegated: str, user: int | None) -> int:
    """Make a group for this process and move into it, as the user who owns ``delegated``; then give it to ``user``, if any. Return it
    as a descriptor. OSError where that is not allowed."""
    group = folder(delegated, os.getpid())
    os.mkdir(group)
    os.mkdir(os.path.join(group, "zygote"))  # processes live in groups that have no others below them
    with open(os.path.join(group, "zygote", "cgroup.procs"), "w") as file:
        file.write("0")
    descriptor = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if "memory" in _read(descriptor, "cgroup.controllers").split():
        _write(descriptor, "cgroup.subtree_control", "+memory")
    if user is not None:
        for name in (".", "cgroup.procs"):
            os.chown(name, user, user, dir_fd=descriptor)
    return descriptor


def begin(group: int, name: str, memory_bytes: int) -> None:
    """Make the group of a program, which it enters by itself."""
    os.mkdir(name, dir_fd=group)
    if _read(group, f"{name}/memory.max"):
        _write(group, f"{name}/memory.max", str(memory_bytes))
        _write(group, f"{name}/memory.oom.group", "1")
        if _read(group, f"{name}/memory.swap.max"):
            _write(group, f"{name}/memory.swap.max", "0")


def join(group: int, name: str) -> None:
    """Enter, with all that will be started."""
    _write(group, f"{name}/cgroup.procs", "0")


def cpu_s(group: int, name: str) -> float:
    return _number(_read(group, f"{name}/cpu.stat"), "usage_usec") / 1e6


def memory_mb(group: int, name: str) -> float | None:
    """Return the most memory it has had, None where it is not counted."""
    text = _read(group, f"{name}/memory.peak") or _read(group, f"{name}/memory.current")
    return int(text) / (1 << 20) if text else None


def had_too_much(group: int, name: str) -> bool:
    """Return True if the kernel ended it at its limit on memory."""
    return _number(_read(group, f"{name}/memory.events"), "oom_kill") > 0


def end(group: int, name: str) -> bool:
    """Remove the group of a program that has ended; False while the kernel is not done with it."""
    try:
        os.rmdir(name, dir_fd=group)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def remove(delegated: str, pid: int) -> None:
    """Remove what is left of a worker's group. Its processes are about to be gone."""
    group, until = folder(delegated, pid), time.monotonic() + _PATIENCE_S
    while os.path.exists(group):
        try:
            for entry in os.scandir(group):
                if entry.is_dir(follow_symlinks=False):
                    os.rmdir(entry.path)
            os.rmdir(group)
        except OSError:
            if time.monotonic() > until:
                return
            time.sleep(0.01)


def sweep(delegated: str) -> None:
    """Remove groups of workers that died together with those who would have."""
    for entry in os.scandir(delegated):
        name, _, pid = entry.name.partition("-")
        if name == "fugu" and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            remove(delegated, int(pid))


def _number(text: str, name: str) -> int:
    words = text.split()
    return int(words[words.index(name) + 1]) if name in words else 0


def _read(group: int, path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=group)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 1 << 14).decode()
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _write(group: int, path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=group)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
