"""Count what all processes of a program take together, CPU time and memory, by looking at them in /proc every few milliseconds.

The kernel's own limits are per process: a program of ten processes would have ten times as much. Nothing escapes a look. Whatever a
process does (a session of its own, a second fork, the death of its parent), it stays a descendant of the first process of the program's
namespace. Time that a process had when it ended is found with the parent that waited for it. A parent can also choose that nobody
waits: then the time is gone. So what was seen of ended processes is compared with what was waited for, and once some is missing,
those that ended while they computed count as if they had done so since the look before.

Standard library only: this runs in the zygote.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple

from fugu.coding.sandbox import cgroup, kernel, wire

PAUSE_S, LONGEST_PAUSE_S, SHARE = 0.01, 0.1, 0.2
"""between two looks; at most, and the share of the time that looking may take, where there are hundreds of processes"""
FASTEST_MB_S = 8192.0
"""memory that a core can fill in a second, at the very most"""
_CORES = len(os.sched_getaffinity(0))
_MISSING_S = 0.05
"""ended processes' CPU time that is in no parent's count, from which on the counts are not believed"""
_ALIKE_MB = 1.0
"""between the sizes of two processes that may have one memory"""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
_SAME_MEMORY = 1
"""KCMP_VM: do two processes share their memory?"""


def first_look_s(cpu_s: float, memory_mb: float) -> float:
    """Return the seconds in which no program can use up so much, whatever it starts."""
    return min(max(PAUSE_S, min(cpu_s, memory_mb / FASTEST_MB_S) / _CORES), LONGEST_PAUSE_S)


class Seen(NamedTuple):
    """One process, as /proc told. Times in seconds."""

    start: str
    running: bool
    own: float
    waited: float
    """of the children it has waited for"""
    resident_mb: float
    faults: int
    """each of which may have made one page its own"""
    thread: int
    """one that has memory: the first may have ended before the others"""


class Trees:
    """The programs under way that may have several processes, by the numbers of their executions.

    ``proc``: an open /proc, whose numbers are others than the zygote's. ``group``: the control group for theirs (``cgroup``), where
    there is one; what it counts is exact, and the processes need not be looked for.
    """

    def __init__(self, proc: int, group: int) -> None:
        self.proc, self.group = proc, group
        self.depth = len(_numbers(proc, "self")) - 1
        self.trees: dict[int, Tree] = {}
        self.left: list[str] = []
        """groups that could not be removed yet"""

    def begin(self, execution: int, memory_bytes: int) -> None:
        """Prepare for a program that is about to be forked."""
        if self.group >= 0:
            self.left = [name for name in self.left if not cgroup.end(self.group, name)]
            cgroup.begin(self.group, str(execution), memory_bytes)

    def look(self, execution: int, pid: int, cpu_s: float, memory_mb: float) -> float:
        """Return the seconds until the next look; or below 0 the reason to end it now, a constant of ``wire`` with its sign changed."""
        began = time.thread_time()
        if self.group >= 0:
            if cgroup.cpu_s(self.group, str(execution)) > cpu_s:
                return -wire.CPU
            if cgroup.memory_mb(self.group, str(execution)) is not None:
                return PAUSE_S  # the kernel ends it by itself
        tree = self.trees.get(execution)
        if tree is None:
            first = self._find(pid)
            if first is None:
                return PAUSE_S  # it has just ended
            tree = self.trees[execution] = Tree(self.proc, first, self._same_memory)
        tree.look(time.monotonic(), memory_mb)
        if tree.cpu_s > cpu_s and self.group < 0:
            return -wire.CPU
        if tree.memory_mb > memory_mb:
            return -wire.MEMORY
        if len(tree.seen) == 1:
            return first_look_s(cpu_s - tree.cpu_s, memory_mb - tree.memory_mb)
        return min(max(PAUSE_S, (time.thread_time() - began) / SHARE), LONGEST_PAUSE_S)

    def end(self, execution: int) -> tuple[float, float, bool]:
        """Forget a program that has ended. Return its CPU time, memory as last seen, zeros where it was not; and True if the kernel
        ended it at its limit on memory."""
        tree = self.trees.pop(execution, None)
        cpu_s, memory_mb = (0.0, 0.0) if tree is None else (tree.cpu_s, tree.memory_mb)
        if self.group < 0:
            return cpu_s, memory_mb, False
        name = str(execution)
        cpu_s, too_much = cgroup.cpu_s(self.group, name), cgroup.had_too_much(self.group, name)
        memory_mb = cgroup.memory_mb(self.group, name) or memory_mb
        if not cgroup.end(self.group, name):
            self.left.append(name)
        return cpu_s, memory_mb, too_much

    def _find(self, pid: int) -> int | None:
        for child in reversed(_read(self.proc, "thread-self/children").split()):
            numbers = _numbers(self.proc, child)
            if len(numbers) > self.depth and numbers[self.depth] == pid:
                return int(child)
        return None

    def _same_memory(self, one: int, other: int) -> bool:
        try:
            pids = [_numbers(self.proc, str(each))[self.depth] for each in (one, other)]
            return kernel.syscall("kcmp", *pids, _SAME_MEMORY, 0, 0) == 0
        except (OSError, IndexError):
            return False


class Tree:
    """The processes from ``first`` down, by the numbers of ``proc``."""

    def __init__(self, proc: int, first: int, same_memory: Callable[[int, int], bool]) -> None:
        self.proc, self.first, self.same_memory = proc, first, same_memory
        self.cpu_s = self.memory_mb = self.counted_mb = 0.0
        self.counted: dict[int, Seen] | None = None
        """what was seen when pages were last counted, which gave ``counted_mb``"""
        self.seen: dict[int, Seen] = {}
        self.looked = 0.0
        self.ended_s = self.unseen_s = 0.0
        """CPU time of processes that have ended, when last seen, and what they may have had since"""

    def look(self, now: float, memory_mb: float) -> None:
        """Find them all and add up. ``memory_mb`` is counted page by page only where it may be too much."""
        found = self._find()
        gone = [self.seen[pid] for pid in self.seen.keys() - found.keys()]
        self.ended_s += sum(each.own for each in gone)
        self.unseen_s += (now - self.looked) * min(sum(each.running for each in gone), _CORES)
        self.seen, self.looked = found, now
        waited = sum(each.waited for each in found.values())
        missing = self.ended_s - waited
        if missing > _MISSING_S + 2 * _TICK_S * len(found):
            missing += self.unseen_s
        else:
            missing = 0.0
        self.cpu_s = max(self.cpu_s, waited + sum(each.own for each in found.values()) + missing)
        self.memory_mb = self._at_most()
        if self.memory_mb > memory_mb:
            self.memory_mb = self.counted_mb = self._proportional(memory_mb)
            self.counted = found

    def _find(self) -> dict[int, Seen]:
        """Find them through the lists of children, and those seen before by their numbers too: one that moves to another parent in
        the meantime could be on neither list."""
        found: dict[int, Seen] = {}
        line = [(self.first, ""), *((pid, each.start) for pid, each in self.seen.items())]
        while line:
            pid, start = line.pop()
            if pid in found:
                continue
            stat = _stat(self.proc, str(pid))
            if not stat or (start and stat[19] != start):
                continue
            threads = [str(pid)] if stat[17] == "1" else _list(self.proc, f"{pid}/task")
            for thread in threads:
                line += [(int(child), "") for child in _read(self.proc, f"{pid}/task/{thread}/children").split()]
            thread, own_stat = str(pid), stat
            while own_stat and own_stat[0] == "Z" and threads:
                thread = threads.pop()
                own_stat = _stat(self.proc, f"{pid}/task/{thread}")
            own = (int(stat[11]) + int(stat[12])) * _TICK_S
            exact = _read(self.proc, f"{pid}/schedstat").split()  # of its first thread
            own = max(own, int(exact[0]) * 1e-9) if exact else own
            waited = (int(stat[13]) + int(stat[14])) * _TICK_S
            resident_mb = int(own_stat[21]) * _PAGE_MB if own_stat else 0.0
            found[pid] = Seen(stat[19], stat[0] == "R", own, waited, resident_mb, int(stat[7]), int(thread))
        return found

    def _at_most(self) -> float:
        """Bound their memory: all that each has, as if they had nothing in common, or what was counted last and what they took since.
        Counting takes a hundred times as long."""
        apart = sum(each.resident_mb for each in self.seen.values())
        if self.counted is None:
            return apart
        taken = 0.0
        for pid, each in self.seen.items():
            before = self.counted.get(pid)
            if before is None or before.start != each.start:
                taken += each.resident_mb
            else:
                taken += max(0.0, each.resident_mb - before.resident_mb) + (each.faults - before.faults) * _PAGE_MB
        return min(apart, self.counted_mb + taken)

    def _proportional(self, enough_mb: float) -> float:
        """Add up memory, of which a page that several processes have is divided among them; and once what several have as one. As soon
        as that is more than ``enough_mb``, the rest does not matter.
        """
        parts = list[tuple[Seen, float]]()
        for each in self.seen.values():
            alike = [other for other, _ in parts if abs(other.resident_mb - each.resident_mb) < _ALIKE_MB]
            if any(self.same_memory(each.thread, other.thread) for other in alike):
                continue  # between vfork and exec
            parts.append((each, _proportional_mb(self.proc, each.thread)))
            if sum(part for _, part in parts) > enough_mb:
                # What a process left to the others when it ended was perhaps counted with them, too.
                parts = [(each, part) for each, part in parts if _stat(self.proc, str(each.thread))[:1] not in ([], ["Z"])]
                if sum(part for _, part in parts) > enough_mb:
                    break
        return sum(part for _, part in parts)


def _proportional_mb(proc: int, thread: int) -> float:
    for line in _read(proc, f"{thread}/smaps_rollup").split("\n"):
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    stat = _stat(proc, str(thread))  # it has ended, or this may not be read
    return int(stat[21]) * _PAGE_MB if stat else 0.0


def _numbers(proc: int, process: str) -> list[int]:
    """Return its numbers in the namespaces it is in, from that of ``proc`` inward."""
    lines = _read(proc, f"{process}/status").split("\n")  # at nothing else: the name is the process's own choice
    return [int(word) for line in lines if line.startswith("NSpid:") for word in line.split()[1:]]


def _stat(proc: int, process: str) -> list[str]:
    """Return the fields of its ``stat`` from the third on, which is its state; none where it is gone."""
    return _read(proc, f"{process}/stat").rpartition(")")[2].split()


def _list(proc: int, path: str) -> list[str]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
    except OSError:
        return []
    try:
        return os.listdir(descriptor)
    except OSError:
        return []
    finally:
        os.close(descriptor)


def _read(proc: int, path: str) -> str:
    """Return the file's text; "" where it cannot be read, since the process is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    except OSError:
        return ""
    try:
        text = b""
        while part := os.read(descriptor, 1 << 14):
            text += part
        return text.decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
