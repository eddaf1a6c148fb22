"""A worker process as the parent sees it: starting it, seeing how it ended, and ending it for certain."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence

from fugu.emulation.beside import known
from fugu.errors import WorkerDied, signal_name
from fugu.vector.mail import GONE, Mailbox, pair
from fugu.vector.worker import BOOT, OURS

LOOK_S = 0.1
"""how often a waiting parent looks whether its workers are alive"""
POLITE_S = 1.0
"""how long a worker may take to close by itself"""


class Worker:
    """Process number ``number`` (the shard it steps), running the environments ``envs``."""

    def __init__(self, number: int, envs: range, memory: int) -> None:
        self.number = number
        self.envs = envs
        ours, theirs = pair()
        self._crash = os.fdopen(anonymous_file("fugu-crash"), "rb", buffering=0)
        fds = (theirs.fileno(), memory, self._crash.fileno())
        paths = json.dumps([[str(path) for path in sys.path], known()])
        # -P: else the current folder comes first when BOOT imports what it needs
        command = [sys.executable, "-P", "-c", BOOT, paths, str(os.getpid()), *map(str, fds)]
        environment = {"OMP_NUM_THREADS": "1", **os.environ}  # one core per worker, unless the user says otherwise
        with _held_back(OURS):  # inherited: a signal that comes while the worker starts waits until it can pass it over
            self.process = subprocess.Popen(
                command, pass_fds=fds, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )
        theirs.close()
        self.mailbox = Mailbox(ours)
        self._ended: os.waitid_result | None = None
        self._reaped = False

    def post(self, seq: int, content: bytes) -> None:
        """Send a message as far as there is room. If the process is gone, whoever waits for its answer finds out."""
        with contextlib.suppress(*GONE):
            self.mailbox.post(seq, content)

    def sending(self) -> bool:
        """Send more of what there was no room for, and return True if something is left that may yet arrive."""
        try:
            self.mailbox.take_in()  # an answer that nobody waits for any more may be holding it up
            return not self.mailbox.push() and not self.exited()
        except (EOFError, *GONE):
            return False

    def exited(self, wait: float = 0.0) -> bool:
        """Return True if the process is over. It stays a zombie until ``reap``, so its number cannot be given to another."""
        deadline = time.monotonic() + wait
        while self._ended is None:
            try:
                self._ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:  # somebody else reaped it
                return True
            if self._ended is None:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(0.002)
        return True

    def stopped(self) -> bool:
        """Return True if the process is stopped (SIGSTOP, a debugger)."""
        try:
            with open(f"/proc/{self.process.pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] in "tT"
        except (OSError, IndexError):
            return False

    def death(self, phase: str, seeds: Sequence[int | None]) -> WorkerDied:
        """Return an error that says how the process ended, as far as it is known."""
        self.exited(wait=1.0)
        number = code = None
        if self._ended is None:
            message = f"worker process {self.process.pid} closed its connection"
        elif self._ended.si_code == os.CLD_EXITED:
            code = self._ended.si_status
            message = f"worker process {self.process.pid} ended with exit code {code}"
        else:
            number = self._ended.si_status
            message = f"worker process {self.process.pid} was killed by {signal_name(number)}"
            if number == signal.SIGKILL:
                message += "; if nobody killed it, the machine ran out of memory"
        return WorkerDied(
            message,
            signal=number,
            exitcode=code,
            worker=self.number,
            envs=self.envs,
            seeds=seeds,
            phase=phase,
            remote_traceback=self._crash_text(),
        )

    def kill_group(self, how: int) -> None:
        """Signal the worker and whatever processes its environments started."""
        if self._reaped:
            return  # the number may be somebody else's by now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, how)

    def reap(self) -> None:
        """Collect the ended process and let go of every descriptor."""
        self.kill_group(signal.SIGKILL)
        self.process.wait()
        self._reaped = True
        self.mailbox.close()
        self._crash.close()

    def _crash_text(self) -> str:
        """Return what faulthandler wrote as the process went down, if anything."""
        with contextlib.suppress(OSError, ValueError):
            self._crash.seek(0)
            return self._crash.read().decode(errors="replace")
        return ""


def deliver(workers: Sequence[Worker], until: float) -> None:
    """Wait until ``workers`` have room for all that was posted to them, but not beyond the time ``until``: then they are late with
    their answers too."""
    left = [worker for worker in workers if worker.sending()]
    while left and (now := time.monotonic()) < until:
        poll = select.poll()
        for worker in left:
            poll.register(worker.mailbox, select.POLLIN | select.POLLOUT)
        poll.poll(1000 * min(LOOK_S, until - now))
        left = [worker for worker in left if worker.sending()]


def anonymous_file(name: str) -> int:
    """Return a descriptor of new memory. It has no path, so nothing can be left behind."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    if fd > 2:
        return fd
    try:  # a program whose standard streams are closed: what it prints must not land here
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def end_all(workers: list[Worker], politely: bool = True) -> None:
    """End every worker within a few seconds: wait for those that close by themselves, then SIGKILL; reap all."""
    if politely:
        for worker in workers:  # ends one that waits for mail, or has mail nobody will read
            worker.mailbox.shutdown()
        deadline = time.monotonic() + POLITE_S
        for worker in workers:
            worker.exited(wait=max(0.0, deadline - time.monotonic()))
    for worker in workers:
        worker.kill_group(signal.SIGKILL)
    for worker in workers:
        worker.reap()
    workers.clear()


@contextlib.contextmanager
def _held_back(numbers: Iterable[int]) -> Iterator[None]:
    """Hold signals back; those that come meanwhile are delivered afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
