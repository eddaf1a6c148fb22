"""The process that forks: started clean by ``exec``, moved into its namespaces, then one fork per execution.

It holds nothing worth stealing (a child can read all of its memory): no environment, no tests, no agent's bytes, only numbers; and as
little as possible besides, since the kernel copies its tables with every fork. It has no threads. It ends executions at their deadlines
by itself, since the process that ordered them may be busy for seconds. When its control socket closes, it ends, and being the first
process of its namespace takes everything in it along.
"""

from __future__ import annotations

import _signal
import errno
import gc
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any, NamedTuple, NoReturn

from fugu.coding.sandbox import cgroup, kernel, program, root, wire
from fugu.coding.sandbox.doors import prepare
from fugu.coding.sandbox.tree import Trees

_DUPLICATE_CLOSE_ON_EXEC = 1030
_POOL, _LARGEST_POOLED, _BYTES_HEAD = 16 << 10, 512, 33
_INSIDE = 65534
_FIRST_USER, _USERS = 61184, 4096
"""users that nothing else has: systemd sets this range aside for passing services"""


class Entered(NamedTuple):
    """Descriptors of what is out of reach in the new root."""

    own_namespace: int
    """the pid namespace, or -1"""
    maps: int
    """the list of this process's memory"""
    proc: int
    group: int
    """the control group that will have those of programs, or -1"""


def main(descriptor: str, plan_bits: str, die_with_parent: str, library: str, preload: str, delegated: str) -> NoReturn:
    """Set up, say HELLO (or FAILED and why), serve."""
    control, plan, native = int(descriptor), int(plan_bits), None
    try:
        native = _load(library)
        kernel.use(native)
        control = _keep_free(control)
        if die_with_parent == "1":
            kernel.prctl(kernel.PR_SET_PDEATHSIG, _signal.SIGKILL)
        for name in preload.split():
            importlib.import_module(name)
        if native is None:
            from fugu.coding.sandbox import loop  # else not needed, and every fork would copy it
        sys.argv, sys.orig_argv, sys.executable = ([program.NAME], [], os.path.realpath(sys.executable))
        layout = root.layout()
        own_namespace, maps, proc, group = enter(plan, layout, delegated)
        doors = prepare(plan, layout.sources, group)
        os.environ.clear()
        program.fresh_interpreter(bool(plan & wire.MOUNTS))
        program.rehearse()
        rights = doors.rights(execute=False), doors.rights(execute=True)
        given = (maps, control, own_namespace, plan, group, doors.landlock_version, doors.readable, *rights, *doors.filters)
        hooks = program.hooks() if native is not None else ()
        trees = Trees(proc, group) if plan & wire.NAMESPACES else None  # without them no program may have several processes
        looks = (trees.begin, trees.look, trees.end) if trees is not None else (None, None, None)
        os.write(control, wire.REPORT.pack(wire.HELLO, 0, 0, 0, 0.0, 0.0, 0.0, 0.0))
    except BaseException as error:
        os.write(control, bytes([wire.FAILED]) + f"{type(error).__name__}: {error}".encode()[:500])
        os._exit(1)
    filling = _fill_memory()
    gc.collect()
    gc.freeze()
    gc.disable()
    if native is None:
        loop.Server(control, own_namespace, doors, trees).serve()
    native.serve(*given, hooks, *looks, filling)
    raise AssertionError("it serves to the end")


def _load(library: str) -> Any:
    """Load the compiled module; None where there is none for this interpreter. (One without the global lock has other objects than the
    stable interface knows, and would not even notice.)"""
    if not library or "t" in sys.abiflags:
        return None
    try:
        loader = importlib.machinery.ExtensionFileLoader("_sandbox", library)
        return importlib.util.module_from_spec(importlib.machinery.ModuleSpec("_sandbox", loader, origin=library))
    except ImportError:
        return None
    finally:
        sys.modules.pop("_sandbox", None)  # programs have no use for it


def _fill_memory() -> list[object]:
    """Make objects of every size that Python keeps in pools, enough to fill those that have room.

    Then what a child makes lies in fresh ones, together, not here and there between ours: fewer pages to copy.
    """
    made: list[object] = []
    for size in range(48, _LARGEST_POOLED + 1, 16):
        made += [bytes(size - _BYTES_HEAD) for _ in range(_POOL // size)]
    return made + [object() for _ in range(_POOL // 16)] + [float(index) for index in range(_POOL // 32)]


def _keep_free(descriptor: int) -> int:
    """Move the control socket out of the way of the numbers that a child gives to its streams and its channel."""
    control = kernel.syscall("fcntl", descriptor, _DUPLICATE_CLOSE_ON_EXEC, wire.CHANNEL + 1)
    os.close(descriptor)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, wire.CHANNEL)
    if null != wire.CHANNEL:
        os.close(null)
    return control


def enter(plan: int, layout: root.Layout, delegated: str = "") -> Entered:
    """Move into namespaces and the minimal root, as a user without rights; and into a control group below ``delegated``, if any.

    Root gives its rights up *before* the user namespace is made: the kernel does not limit the processes of a namespace that root owns.
    The root file system is built before, since an unprivileged user may not even see where Python lies (a home directory).
    """
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if memory runs out, programs go first
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    privileged = os.geteuid() == 0
    user = _FIRST_USER + os.getpid() % _USERS
    group = cgroup.enter(delegated, user if privileged else None) if delegated else -1
    built = False
    if privileged and plan & wire.MOUNTS:
        try:
            kernel.unshare(kernel.CLONE_NEWNS)
        except OSError as error:
            if error.errno != errno.EPERM:
                raise
        else:
            root.build(layout)
            built = True
    if privileged:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    if not plan & wire.NAMESPACES:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        maps = os.open("self/maps", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
        return Entered(-1, maps, proc, group)
    ids = os.getuid(), os.getgid()
    flags = kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    if plan & wire.MOUNTS:
        flags |= kernel.CLONE_NEWNS
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # or /proc/self belongs to root, and the maps cannot be written
    kernel.unshare(flags)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    process = os.open("self", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
    kernel.map_ids(process, _INSIDE, *ids)
    os.close(process)
    if plan & wire.MOUNTS and not built:
        root.build(layout)
    kernel.syscall("sethostname", b"sandbox", len(b"sandbox"))
    _become_first_process()
    maps = os.open("self/maps", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    own = os.open("self/ns/pid", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    return Entered(own, maps, proc, group)


def _become_first_process() -> None:
    """Go on as process 1 of the new pid namespace. The process that stays outside waits, and each dies with the other."""
    pid = os.fork()
    if pid:
        kernel.close_from(3)
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
        _, status = os.waitpid(pid, 0)
        os._exit(0 if status == 0 else 1)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, _signal.SIGKILL)
