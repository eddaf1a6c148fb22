"""Backends ``docker`` and ``podman``: a container per program, made by the installed engine. ``runtime="runsc"`` puts gVisor's own
kernel between the program and ours. The image has to be there already (nothing is pulled) and needs ``python3``, 3.11 or later.

The strongest of the backends where the engine is trusted, and the slowest: a container takes a few tenths of a second to start.
"""

from __future__ import annotations

import os
import resource
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping

from fugu.coding.sandbox import seccomp
from fugu.coding.sandbox.box import Start
from fugu.coding.sandbox.config import SandboxConfig
from fugu.coding.sandbox.contract import Isolation, Limits, Program
from fugu.coding.sandbox.launch import FIXED, interpreter
from fugu.coding.sandbox.protections import FIRST_ONLY
from fugu.coding.sandbox.spawn import SpawnBackend
from fugu.errors import SandboxError

# What the engine's client needs to find its engine; nothing else of ours is in its environment, and nothing at all in the program's.
CLIENT = ("PATH", "HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "CONTAINER_HOST", "TMPDIR")
RUNNER_MB = 64
"""memory for the runner beside the program"""


class ContainerLauncher:
    isolation = Isolation(3, ("landlock",))
    name: str

    def __init__(self, config: SandboxConfig, command: str) -> None:
        self.name, self.command, self.image, self.runtime = config.backend, command, config.image, config.runtime
        gaps = dict(FIRST_ONLY)
        if self.name == "podman":
            gaps["inodes"] = "podman sets a size for /tmp, but no number of files"
        if "runsc" in (self.runtime or ""):
            gaps["devices"] = "gVisor's own kernel has some, which lead nowhere"
        self.gaps: Mapping[str, str] = gaps
        self.label = f"fugu={secrets.token_hex(6)}"
        self.filters = {profile: seccomp.filter_for(profile) or b"" for profile in ("compute", "program")}
        self.runner = interpreter("python3")
        self.environment = {name: os.environ[name] for name in CLIENT if name in os.environ}
        # An engine that may not raise limits fails on those it sets by default, unless told otherwise; --pids-limit is what counts.
        hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        most = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
        self.allowed = ["--ulimit", f"nproc={most}:{most}"]
        self.removals: list[subprocess.Popen[bytes]] = []

    def words(self, name: str, limits: Limits, processes: int) -> list[str]:
        """Return the command up to the image's name."""
        # podman takes the runtime before its verb, docker after
        runtime = [] if self.runtime is None else ["--runtime", self.runtime]
        before, after = (runtime, ["--http-proxy=false", "--read-only-tmpfs=false"]) if self.name == "podman" else ([], runtime)
        more = "notmpcopyup" if self.name == "podman" else "nr_inodes=256"
        memory = f"{limits.memory_mb + limits.disk_mb + RUNNER_MB}m"
        options = {
            "--name": name,
            "--env": "=".join(*FIXED.items()),
            "--label": self.label,
            "--network": "none",
            "--cap-drop": "ALL",
            "--security-opt": "no-new-privileges",
            "--pids-limit": str(processes + 1),  # the runner
            "--memory": memory,
            "--memory-swap": memory,
            "--user": "65534:65534",
            "--tmpfs": f"/tmp:rw,nosuid,nodev,mode=1777,size={limits.disk_mb}m,{more}",
            "--workdir": "/tmp",
            "--ulimit": "nofile=256:256",
            "--log-driver": "none",
            "--stop-signal": "KILL",  # the first process of a container ignores others, and removal would wait ten seconds for it
            "--pull": "never",
        }
        flat = [word for pair in options.items() for word in pair] + self.allowed
        return [self.command, *before, "run", "--rm", "--interactive", "--read-only", *after, *flat, self.image]

    def start(self, program: Program) -> Start:
        name = f"fugu-{secrets.token_hex(8)}"
        processes = program.limits.processes if program.profile == "program" else 16
        return Start(
            self.words(name, program.limits, processes) + self.runner,
            alone=True,
            filter=self.filters[program.profile],
            environment=self.environment,
            name=name,
        )

    def kill(self, start: Start) -> None:
        """Kill the container: ending the client would not end it."""
        removal = self._engine("rm", "--force", start.name)
        self.removals.append(removal)
        # it takes a while, and nobody may ask again for long: a thread waits, so that it does not stay as a zombie
        if not sys.is_finalizing():  # when no thread can be started, and ``close`` comes next
            threading.Thread(target=removal.wait, name="fugu-removal", daemon=True).start()

    def clear(self, start: Start) -> None:
        self.removals = [each for each in self.removals if each.poll() is None]

    def why_not(self) -> str:
        """Return what the engine says, which the box itself had to keep quiet about."""
        test = [*self.words(f"fugu-{secrets.token_hex(8)}", Limits(), 16), "python3", "-c", "pass"]
        try:
            out = subprocess.run(
                test, capture_output=True, text=True, timeout=30, env=self.environment, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f" ({error})"
        hint = "" if "image" not in out.stderr.lower() else f"; get it with: {self.name} pull {self.image}"
        return f" ({' '.join(out.stderr.split())[-300:]}{hint})"

    def close(self) -> None:
        """Remove what still runs under our label."""
        try:
            listing = self._engine("ps", "--all", "--quiet", "--filter", f"label={self.label}", stdout=subprocess.PIPE)
            left = listing.communicate(timeout=20)[0].split()
            if left:
                self.removals.append(self._engine("rm", "--force", *(each.decode() for each in left)))
            for each in self.removals:
                each.wait(timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            return

    def _engine(self, *words: str, stdout: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self.command, *words], stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.DEVNULL, env=self.environment
        )


def open_container(config: SandboxConfig) -> SpawnBackend:
    command = shutil.which(config.backend)
    if command is None:
        raise SandboxError(f"backend={config.backend!r} needs the command {config.backend}, which is not in PATH; install it")
    backend = SpawnBackend(ContainerLauncher(config, command), config.worker_count)
    backend.trial(config.start_timeout)
    return backend
