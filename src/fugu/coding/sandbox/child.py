"""Lock every door, which happens first in the fork of a zygote. Then ``program`` runs what is behind them.

``native/sandbox_child.c`` does the same where it was compiled. After it there is no capability, no descriptor but 0 to 2 and the
channel, no file but the standard library's and the program's own /tmp, no system call but those that computing needs.
"""

from __future__ import annotations

import _signal
import os
import resource
import signal
from typing import NoReturn

from fugu.coding.sandbox import cgroup, kernel, landlock, program, root, seccomp, wire
from fugu.coding.sandbox.doors import Doors
from fugu.coding.sandbox.wire import CHANNEL, Order

_THREADS = 16
_STACK = 64 << 20


def run(order: Order, doors: Doors, channel: int, out: int, err: int) -> NoReturn:
    """Run the order in a process just forked. Never returns."""
    try:
        _signal.set_wakeup_fd(-1)
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)  # ``signal``'s own would look up names of both, for ten times as long
        os.dup2(out, 1)
        os.dup2(err, 2)
        if channel != CHANNEL:
            os.dup2(channel, CHANNEL)
        stdin_size, source_size, names_size = wire.OPENING.unpack(wire.read_exactly(CHANNEL, wire.OPENING.size))
        _put_stdin(stdin_size)
        _lock(order, doors)
    except BaseException as error:
        program.give_up(error)
    program.begin(order, source_size, names_size)


def _put_stdin(size: int) -> None:
    """Put stdin into a file in memory, not a pipe: the size of a pipe is the kernel's choice, and nobody is there to fill it again.

    Without input an empty pipe, one of its own: flags, mode and times of one that all executions share would be a letter box.
    """
    if not size:
        theirs, ours = os.pipe()
        os.dup2(theirs, 0)
        os.close(theirs)
        os.close(ours)
    else:
        descriptor = os.memfd_create("stdin", os.MFD_CLOEXEC)
        wire.write_all(descriptor, wire.read_exactly(CHANNEL, size))
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.dup2(descriptor, 0)


def _lock(order: Order, doors: Doors) -> None:
    plan = doors.plan
    os.setsid()
    if order.program and doors.group >= 0:
        cgroup.join(doors.group, str(order.execution))
    if plan & wire.MOUNTS:
        # What IPC namespaces keep apart is refused by the filter already, where there is one; they are dear.
        kernel.unshare(kernel.CLONE_NEWNS | (0 if plan & wire.SECCOMP else kernel.CLONE_NEWIPC))
        root.private_tmp(order.disk_bytes, executable=bool(order.program))
    writable = os.open("/tmp", os.O_PATH | os.O_DIRECTORY) if plan & wire.MOUNTS else None
    if plan & wire.NAMESPACES:
        # A user namespace of its own, made after the mounts (over which it has no power) and before the limit on processes, which
        # the kernel counts per user and namespace: so executions do not share one count. RLIMIT_NPROC has no effect for root, which
        # is why the zygote is not root's even outside (``zygote``).
        kernel.unshare(kernel.CLONE_NEWUSER)
        kernel.prctl(kernel.PR_SET_SECUREBITS, kernel.SECUREBITS_LOCKED)
    if plan & wire.PROCESS_LIMIT:
        limit(resource.RLIMIT_NPROC, order.processes if order.program else _THREADS)
    kernel.drop_capabilities()
    if order.program:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # so that the zygote may count its memory; nobody else can see it
    _limit(order)
    # After the last change of credentials, which would clear it.
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if not plan & wire.NAMESPACES and os.getppid() != doors.parent:
        raise OSError("the zygote is gone")
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if plan & wire.LANDLOCK:
        writables = [] if writable is None else [writable]
        landlock.restrict(doors.landlock_version, list(doors.readable), writables, execute=bool(order.program))
    # Only now: the zygote holds the descriptors of orders that wait, above the limit perhaps.
    kernel.close_from(CHANNEL + 1)
    limit(resource.RLIMIT_NOFILE, order.open_files)
    if plan & wire.SECCOMP:
        code = doors.filters[order.program]
        if code is None:
            raise OSError("there is no filter of system calls for this machine")
        seccomp.install(code)


def _limit(order: Order) -> None:
    # The zygote ends a run at its exact CPU time; these are for the case that the zygote is stopped. As the first process of its
    # namespace a program ignores the signal of the soft limit, so the hard one a second later is what counts.
    cpu = int(order.cpu_s) + 1
    limit(resource.RLIMIT_CPU, cpu, cpu + 1)
    limit(resource.RLIMIT_FSIZE, order.file_bytes)
    limit(resource.RLIMIT_STACK, _STACK)
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_MEMLOCK, 0)
    limit(resource.RLIMIT_MSGQUEUE, 0)
    limit(resource.RLIMIT_SIGPENDING, 64)
    limit(resource.RLIMIT_AS, order.memory)


def limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Set a limit, or keep the lower one that holds already: raising is not ours to do."""
    most = resource.getrlimit(kind)[1]
    hard = soft if hard is None else hard
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(kind, (soft, hard))
