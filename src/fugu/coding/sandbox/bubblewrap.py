"""Backend ``bubblewrap``: a ``bwrap`` per program, with namespaces, a root of its own, resource limits and a filter of system calls.
As well kept apart as ``fork``, with none of our code in the part that does it; slower by the start of an interpreter per program.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

from fugu.coding.sandbox import seccomp, visible
from fugu.coding.sandbox.accept import accept
from fugu.coding.sandbox.box import Start
from fugu.coding.sandbox.config import SandboxConfig
from fugu.coding.sandbox.contract import Isolation, Program
from fugu.coding.sandbox.launch import FIXED, interpreter
from fugu.coding.sandbox.protections import FIRST_ONLY
from fugu.coding.sandbox.spawn import SpawnBackend
from fugu.errors import SandboxError

NOBODY = 65534
APART = ["--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL", "--hostname", "box"]


class BubblewrapLauncher:
    name = "bubblewrap"

    def __init__(self, command: str, python: str) -> None:
        self.filters = {profile: seccomp.filter_for(profile) or b"" for profile in ("compute", "program")}
        if not all(self.filters.values()):
            raise SandboxError("there is no filter of system calls for this kind of machine; use docker or podman")
        try:
            self.visible = visible.ask(python)
        except (OSError, ValueError) as error:
            raise SandboxError(f"{python} does not say what it needs: {error}") from None
        missing, gaps = ["landlock"], {**FIRST_ONLY, "inodes": "bwrap sets a size for /tmp, but no number of files"}
        # The kernel does not count root's processes, so somebody else starts the boxes, if they can reach the interpreter.
        self.user = NOBODY if os.geteuid() == 0 and _nobody_can_read(self.visible.shown) else None
        if os.geteuid() == 0 and self.user is None:
            missing.append("process_limit")
            gaps["processes"] = f"root's processes are not counted, and only root can read {self.visible.python}"
        self.isolation = Isolation(3 if "process_limit" not in missing else 2, tuple(missing))
        self.gaps: Mapping[str, str] = gaps
        self.command = [command, *APART, *self._root()]
        self.runner = interpreter(self.visible.python)

    def _root(self) -> list[str]:
        words = []
        for path in self.visible.shown:
            words += ["--ro-bind", path, path]
        for path in ("/bin", "/lib", "/lib32", "/lib64"):
            if os.path.islink(path):
                words += ["--symlink", os.readlink(path), path]
        for path in self.visible.hidden:
            words += ["--tmpfs", path, "--remount-ro", path]
        for name in ("null", "random", "urandom"):
            words += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
        for name, value in FIXED.items():
            words += ["--setenv", name, value]
        return words

    def start(self, program: Program) -> Start:
        size = ["--size", str(program.limits.disk_mb << 20), "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/", "--"]
        return Start(
            self.command + size + self.runner,
            alone=True,
            processes="processes" not in self.gaps,
            filter=self.filters[program.profile],
            user=self.user,
        )

    def kill(self, start: Start) -> None:
        """Kill bwrap: its namespace ends with it, and everything in it."""

    def clear(self, start: Start) -> None:
        """Do nothing: the box was memory only."""

    def why_not(self) -> str:
        """Return what ``bwrap`` says, which the box itself had to keep quiet about."""
        test = [self.command[0], "--unshare-all", "--ro-bind", "/", "/", "true"]
        out = subprocess.run(test, capture_output=True, text=True, timeout=10, user=self.user, env={})
        return f" ({out.stderr.strip()})" if out.stderr.strip() else ""

    def close(self) -> None:
        """Do nothing: nothing is kept open."""


def _nobody_can_read(paths: list[str]) -> bool:
    test = ["/bin/sh", "-c", 'for path; do test -r "$path" || exit 1; done', "sh", *paths]
    return subprocess.run(test, user=NOBODY, group=NOBODY, extra_groups=[], env={}, cwd="/", timeout=10).returncode == 0


def open_bubblewrap(config: SandboxConfig) -> SpawnBackend:
    command = shutil.which("bwrap")
    if command is None:
        raise SandboxError(
            "backend='bubblewrap' needs the command bwrap: apt-get install bubblewrap, or dnf install bubblewrap"
        )
    launcher = BubblewrapLauncher(command, config.python or sys.executable)
    accept(config, launcher.isolation, "; ".join(launcher.gaps.values()))
    backend = SpawnBackend(launcher, config.worker_count)
    backend.trial(config.start_timeout)
    return backend
