"""The zygote's loop: orders in, forks, ends of processes out. ``native/sandbox_loop.c`` does the same where it was compiled."""

from __future__ import annotations

import array
import os
import resource
import select
import signal
import socket
import time
from collections import deque
from typing import NoReturn

from fugu.coding.sandbox import child, kernel, wire
from fugu.coding.sandbox.doors import Doors
from fugu.coding.sandbox.tree import Trees, first_look_s

_MOST_STARTING, _MOST_BUSY = 4, 2
"""programs that compute at once, all together and those older than _YOUNG_S; a zygote is meant for one core"""
_YOUNG_S, _BUSY_SHARE = 0.01, 0.1
"""seconds after which a program's CPU time says whether it computes, and the share of the time from which on it does"""
_UNKNOWN, _BUSY, _IDLE = range(3)
"""what is known of a program; one that used no time while others computed may be waiting for its turn, so that takes longer to tell"""
_UNKILLABLE_S = 10.0
"""seconds after which a process that was killed and is still there never will be gone"""


class _Running:
    """Not a dataclass: that module brings ten others along, and every fork would copy the tables of their memory."""

    __slots__ = ("checked", "cpu_s", "deadline", "execution", "memory_mb", "next", "spent", "started", "state", "tree", "why")

    def __init__(self, order: wire.Order, now: float, tree: bool) -> None:
        self.execution, self.started, self.cpu_s, self.deadline = (order.execution, now, order.cpu_s, now + order.wall_s)
        self.tree, self.memory_mb = tree, order.memory / (1 << 20)  # it may have several processes, which have this together
        self.next = now + min(order.cpu_s, order.wall_s)  # when to look again; of one that was killed: when it has to be gone
        if tree:
            self.next = min(self.next, now + first_look_s(order.cpu_s, self.memory_mb))
        self.checked, self.spent, self.state = now, 0.0, _UNKNOWN
        self.why = wire.BY_ITSELF


class Server:
    """Takes orders, forks, reaps, ends what is overdue.

    Orders wait in line while enough programs compute: those just started, and those whose CPU time grows. So hundreds can be under
    way, most of them asleep, and yet none is slowed down into its wall limit by the others. Who sleeps takes no place.
    """

    def __init__(self, control: int, own_namespace: int, doors: Doors, trees: Trees | None) -> None:
        self.control, self.plan, self.own_namespace, self.doors = (
            socket.socket(fileno=control),
            doors.plan,
            own_namespace,
            doors,
        )
        self.trees = trees
        self.line: deque[tuple[wire.Order, array.array[int]]] = deque()
        self.running: dict[int, _Running] = {}  # by pid

    def serve(self) -> NoReturn:
        """Serve until ``control`` closes."""
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self.control.setblocking(False)
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while True:
            while self.line and (self.line[0][0].urgent or self._may_start(time.monotonic())):
                self._start(*self.line.popleft())
            left = self._end_overdue()
            for descriptor, _ in poll.poll(None if left is None else left * 1000 + 1):
                if descriptor == wake:
                    os.read(wake, 4096)
                    self._reap()
                else:
                    self._take()

    def _take(self) -> None:
        try:
            message, ancillary, _, _ = self.control.recvmsg(wire.REQUEST.size, socket.CMSG_SPACE(12), socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        if not message:
            self._end_all()
        descriptors = array.array("i")
        for _, _, data in ancillary:
            descriptors.frombytes(data)
        order = wire.Order._make(wire.REQUEST.unpack(message))
        if order.kind == wire.PING:
            self.control.send(wire.REPORT.pack(wire.PONG, 0, 0, 0, 0.0, 0.0, 0.0, 0.0))
        elif order.kind == wire.KILL:
            self._end_execution(order.execution)
        else:
            self.line.append((order, descriptors))

    def _end_execution(self, execution: int) -> None:
        for pid, each in self.running.items():
            if each.execution == execution:
                self._kill(pid, wire.TOLD)
        for each_waiting in [waiting for waiting in self.line if waiting[0].execution == execution]:
            self.line.remove(each_waiting)
            self._report(execution, signal.SIGKILL, wire.TOLD, 0.0, 0.0, 0.0)
            _close(each_waiting[1])

    def _may_start(self, now: float) -> bool:
        starting = computing = awake = 0
        quiet: list[tuple[_Running, float]] = []
        for pid, each in self.running.items():
            if each.why != wire.BY_ITSELF:
                continue
            if now - each.started < _YOUNG_S:
                starting += 1
                continue
            if now - each.checked >= _YOUNG_S:
                spent = _cpu_time(pid)
                if spent - each.spent > _BUSY_SHARE * (now - each.checked):
                    each.state, each.spent, each.checked = _BUSY, spent, now
                else:
                    quiet.append((each, spent))
            computing += each.state == _BUSY
            awake += each.state != _IDLE
        for each, spent in quiet:  # the others' turns may have come before theirs
            if each.state == _IDLE or now - each.checked >= _YOUNG_S * (3 + starting + computing):
                awake -= each.state != _IDLE
                each.state, each.spent, each.checked = _IDLE, spent, now
        return awake < _MOST_BUSY and starting + awake < _MOST_STARTING

    def _start(self, order: wire.Order, descriptors: array.array[int]) -> None:
        tree = self.trees is not None and bool(order.program)
        try:
            if tree and self.trees is not None:
                self.trees.begin(order.execution, order.memory + order.disk_bytes)
            pid = self._fork()
        except OSError:
            self._report(order.execution, 0, wire.NOT_STARTED, 0.0, 0.0, 0.0)
        else:
            if pid == 0:
                # From here, not after unwinding: every object that is touched is a page to be copied.
                child.run(order, self.doors, *descriptors)
            self.running[pid] = _Running(order, time.monotonic(), tree)
        _close(descriptors)

    def _fork(self) -> int:
        if not self.plan & wire.NAMESPACES:
            return os.fork()
        # The next child is process 1 of a namespace of its own; then back, since this can only be asked for from one's own namespace.
        kernel.unshare(kernel.CLONE_NEWPID)
        try:
            pid = os.fork()
        except OSError:
            kernel.setns(self.own_namespace, kernel.CLONE_NEWPID)
            raise
        if pid:
            kernel.setns(self.own_namespace, kernel.CLONE_NEWPID)
        return pid

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            each = self.running.pop(pid, None)
            if each is None:
                continue  # an orphan that came to us
            if not self.plan & wire.NAMESPACES:
                _sweep(pid, self.running)
            wall_s = time.monotonic() - each.started
            cpu_s, memory_mb = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
            if each.tree and self.trees is not None:
                together = self.trees.end(each.execution)
                cpu_s, memory_mb = max(cpu_s, together[0]), max(memory_mb, together[1])
                if together[2] and each.why == wire.BY_ITSELF:
                    each.why = wire.MEMORY
            self._report(each.execution, status, each.why, cpu_s, wall_s, memory_mb)

    def _report(self, execution: int, status: int, why: int, cpu_s: float, wall_s: float, memory_mb: float) -> None:
        own_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self.control.send(wire.REPORT.pack(wire.DONE, execution, status, why, cpu_s, wall_s, memory_mb, own_mb))

    def _end_overdue(self) -> float | None:
        """End what is overdue; return the seconds until something may be overdue again."""
        now = time.monotonic()
        left = _YOUNG_S if self.line else None
        for pid, each in self.running.items():
            if each.next <= now:
                if each.why != wire.BY_ITSELF:
                    os._exit(1)  # it cannot be killed; we are replaced, and it is left to the kernel
                unspent = each.cpu_s - _cpu_time(pid)
                pause = max(unspent, 0.005)
                if each.tree and self.trees is not None and unspent > 0 and now < each.deadline:
                    pause = min(pause, self.trees.look(each.execution, pid, each.cpu_s, each.memory_mb))
                if now >= each.deadline:
                    self._kill(pid, wire.WALL)
                elif unspent <= 0:
                    self._kill(pid, wire.CPU)
                elif pause < 0:
                    self._kill(pid, int(-pause))
                else:
                    each.next = min(each.deadline, now + pause)
            left = each.next - now if left is None else min(left, each.next - now)
        return left

    def _kill(self, pid: int, why: int) -> None:
        """Kill a process, asynchronously: a fork bomb takes a while to die, and ``_reap`` will see it."""
        each = self.running[pid]
        if each.why == wire.BY_ITSELF:
            each.why, each.next = why, time.monotonic() + _UNKILLABLE_S
        os.kill(pid, signal.SIGKILL)
        if not self.plan & wire.NAMESPACES:
            _kill_group(pid)

    def _end_all(self) -> NoReturn:
        for pid in self.running:
            self._kill(pid, wire.TOLD)
        os._exit(0)


def _close(descriptors: array.array[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _cpu_time(pid: int) -> float:
    """Return the seconds of CPU that a process has used: every process has such a clock, numbered by its pid."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _sweep(pid: int, running: dict[int, _Running]) -> None:
    """Kill what an execution without a pid namespace left behind. Its orphans are ours now, since we are their subreaper."""
    _kill_group(pid)
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            orphans = [int(each) for each in file.read().split() if int(each) not in running]
    except OSError:
        return
    for orphan in orphans:
        try:
            os.kill(orphan, signal.SIGKILL)
        except OSError:
            continue
