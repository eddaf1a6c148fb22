"""Tries out, in processes of its own, what the kernel lets us do. Versions and settings say little: containers and security modules
forbid what the kernel could. Each trial does what an execution will do and checks that it has the effect, not only that it succeeds.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable

from fugu.coding.sandbox import child, kernel, landlock, root, seccomp, wire, zygote

_PATIENCE_S = 20.0


def main(pretend_missing: str) -> None:
    """Print a JSON object: feature -> "" where it works, else why not."""
    kernel.use(None)
    findings = {}
    for name, trial in TRIALS.items():
        findings[name] = "pretended to be missing" if name in pretend_missing.split(",") else _in_child(trial)
    if findings["namespaces"]:
        for name in ("mounts", "process_limit"):
            findings[name] = findings[name] or "needs namespaces"
    json.dump(findings, sys.stdout)


def _in_child(trial: Callable[[], None]) -> str:
    """Return what ``trial`` says to be wrong, or that it took too long."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        # ``trial`` may go on in a grandchild, so the answer comes through a pipe.
        try:
            os.setsid()
            os.close(reader)
            answer = b"works"
            try:
                trial()
            except BaseException as error:
                answer = f"{type(error).__name__}: {error}".encode()
            os.write(writer, answer)
        finally:
            os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], _PATIENCE_S)
    answer = os.read(reader, 4096) if ready else b"took too long"
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    os.close(reader)
    os.waitpid(pid, 0)
    if answer == b"works":
        return ""
    return answer.decode("utf-8", "replace") or "the process that tried it was killed"


def _namespaces() -> None:
    own = zygote.enter(wire.NAMESPACES, root.layout()).own_namespace
    if os.getpid() != 1:
        raise OSError("a new pid namespace did not make its first process number 1")
    for _ in range(2):  # a second one can only be made after coming back
        kernel.unshare(kernel.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            os._exit(0 if os.getpid() == 1 else 1)
        kernel.setns(own, kernel.CLONE_NEWPID)
        if os.waitpid(pid, 0)[1]:
            raise OSError("a nested pid namespace has no first process")


def _mounts() -> None:
    library = os.path.realpath(os.__file__)
    zygote.enter(wire.NAMESPACES | wire.MOUNTS, root.layout())
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC)
    root.private_tmp(1 << 20, executable=False)
    with open("/tmp/trial", "w") as file:
        file.write("x")
    if not os.path.exists(library):
        raise OSError("the standard library is not in the new root")
    if os.path.exists("/proc/self") or os.path.exists("/etc/passwd"):
        raise OSError("the old root can still be seen")
    try:
        os.mkdir("/written")
    except OSError:
        return
    raise OSError("the new root can be written to")


def _process_limit() -> None:
    zygote.enter(wire.NAMESPACES, root.layout())
    kernel.unshare(kernel.CLONE_NEWUSER)
    child.limit(resource.RLIMIT_NPROC, 4)
    kernel.drop_capabilities()
    started = []
    try:
        for _ in range(8):
            pid = os.fork()
            if pid == 0:
                signal.pause()
            started.append(pid)
    except BlockingIOError:
        pass
    for pid in started:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if len(started) != 3:
        raise OSError(f"under a limit of 4 processes, {len(started) + 1} could run")


def _landlock() -> None:
    version = landlock.version()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    landlock.restrict(version, [], [], execute=False)
    try:
        os.listdir("/")
    except PermissionError:
        return
    raise OSError("it was set and has no effect")


def _seccomp() -> None:
    code = seccomp.filter_for("compute")
    if code is None:
        raise OSError(f"the system calls of {os.uname().machine} are not known here")
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    seccomp.install(code)
    try:
        socket.socket()
    except PermissionError:
        return
    raise OSError("it was set and has no effect")


TRIALS = {
    "namespaces": _namespaces,
    "mounts": _mounts,
    "process_limit": _process_limit,
    "landlock": _landlock,
    "seccomp": _seccomp,
}
