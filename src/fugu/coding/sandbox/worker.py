"""A zygote as the manager sees it: started by ``exec``, asked now and then whether it is there, replaced when it is not."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from fugu.coding.sandbox import cgroup, wire
from fugu.coding.sandbox.config import SandboxConfig
from fugu.coding.sandbox.execution import Execution, Report

# The modules that run in a zygote need the standard library only, but the packages around them import far more; so they get packages of
# the same names with nothing in them but the place where they are. ``threading`` and ``random`` ask for work to be done after every
# fork, which touches a hundred pages, a third of what a fork costs; in a zygote there is one thread and a child seeds ``random``
# itself, so they are not heard. Signals that the manager ignores or blocks would be so here: ends of children are waited for.
_BOOT = """
import _signal, os, sys, types
from importlib import import_module
_signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
_signal.pthread_sigmask(_signal.SIG_SETMASK, ())
register, os.register_at_fork = os.register_at_fork, lambda **_: None
package, place, module, *arguments = sys.argv[1:]
parts = package.split(".")
for count in range(1, len(parts) + 1):
    outer = ".".join(parts[:count])
    sys.modules[outer] = types.ModuleType(outer)
    sys.modules[outer].__path__ = [place] if outer == package else []
module = import_module(package + "." + module)
os.register_at_fork = register
module.main(*arguments)
"""
PACKAGE = __name__.rpartition(".")[0]
PLACE = str(Path(__file__).parent)
FLAGS = ("-s", "-S", "-P", "-B", "-X", "utf8")
"""nothing from users' or site directories, nothing from the working directory, no files written"""
ENVIRONMENT = {"PYTHONHASHSEED": "0", "LD_BIND_NOW": "1"}
"""the same order of sets in every worker; libraries linked once, not in every fork; cleared before the first program runs"""


def boot(module: str, *arguments: str) -> list[str]:
    """Return Python's arguments for running ``main`` of one of the modules that need nothing else."""
    return ["-c", _BOOT, PACKAGE, PLACE, module, *arguments]


def library() -> str:
    """Return where the compiled loop of a zygote is, which lies beside the compiled core; "" where it was not built."""
    core = importlib.util.find_spec("fugu._native")
    if core is None or core.origin is None:
        return ""
    beside = Path(core.origin).with_name("_sandbox.so")
    return str(beside) if beside.exists() else ""


class Worker:
    """``running``: executions by number. ``ready`` after HELLO; ``retired`` takes no more work and ends when it has none."""

    def __init__(self, config: SandboxConfig, plan: int) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setblocking(False)
        self.running: dict[int, Execution] = {}
        self.ready = self.retired = False
        self.executed = 0
        self.first_mb = self.now_mb = 0.0
        self.failure = ""
        self.started = self.heard = time.monotonic()
        self.asked: float | None = None
        # The kernel's signal at a parent's death is sent when the *thread* that started the child ends. From any other thread the
        # closed socket has to do, which it does unless the zygote is stopped.
        dies = threading.current_thread() is threading.main_thread()
        self.delegated = config.cgroup
        arguments = (str(theirs.fileno()), str(plan), str(int(dies)), library(), " ".join(config.preload), config.cgroup or "")
        command = [config.python or sys.executable, *FLAGS, *boot("zygote", *arguments)]
        try:
            self.process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                env=ENVIRONMENT,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is the manager's to handle
            )
        except OSError:
            self.control.close()
            raise
        finally:
            theirs.close()

    def fileno(self) -> int:
        return self.control.fileno()

    def start(self, execution: Execution) -> None:
        self.running[execution.number] = execution
        self.executed += 1
        execution.start(self.control)

    def kill(self, execution: Execution) -> None:
        self._say(wire.KILL, execution.number)

    def _say(self, kind: int, number: int) -> None:
        try:
            self.control.send(wire.REQUEST.pack(kind, number, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
        except OSError:
            return  # dead or stopped: found out by ``receive`` or by its silence

    def receive(self) -> list[Execution]:
        """Return executions that have ended. EOFError when the zygote is gone."""
        ended: list[Execution] = []
        while True:
            try:
                message = self.control.recv(1024)
            except BlockingIOError:
                return ended
            except OSError as error:
                raise EOFError(str(error)) from None
            if not message:
                if ended:
                    return ended
                raise EOFError(self._last_words())
            self.heard, self.asked = time.monotonic(), None
            if message[0] == wire.FAILED:
                self.failure = message[1:].decode("utf-8", "replace")
                raise EOFError(self.failure)
            kind, number, status, why, cpu_s, wall_s, max_rss_mb, own_mb = wire.REPORT.unpack(message)
            if kind == wire.HELLO:
                self.ready = True
            elif kind == wire.DONE:
                self.first_mb, self.now_mb = self.first_mb or own_mb, own_mb
                execution = self.running.pop(number)
                execution.report = Report(status, why, cpu_s, wall_s, max_rss_mb)
                ended.append(execution)

    def silent(self, now: float, patience: float) -> bool:
        """Return True if a question has been open for longer than ``patience``; ask one if it has been quiet for a second."""
        if not self.ready:
            return False
        if self.asked is None and now - self.heard > 1.0 and self.running:
            self.asked = now
            self._say(wire.PING, 0)
        return self.asked is not None and now - self.asked > patience

    def _last_words(self) -> str:
        assert self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), False)
        text = self.process.stderr.read() or b""
        code = self.process.poll()
        return text.decode("utf-8", "replace").strip().rpartition("\n")[2][:500] or f"it ended (exit code {code})"

    def close(self, *, grace: float) -> None:
        """Let it end by itself, which a closed socket tells it to; kill it after ``grace`` seconds."""
        self.control.close()
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()
        if self.delegated is not None:
            cgroup.remove(self.delegated, self.process.pid)
        for execution in self.running.values():
            execution.close()
        self.running.clear()
