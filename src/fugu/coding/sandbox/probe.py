"""Find out by trial what this machine allows: the level of isolation, what is missing, and how to get it."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from fugu.coding.sandbox import wire
from fugu.coding.sandbox.config import FEATURES, SandboxConfig
from fugu.coding.sandbox.contract import Isolation, printable
from fugu.errors import SandboxError

_FULL = ("namespaces", "mounts", "process_limit", "seccomp")
_IMPLIED = {"namespaces": ("mounts", "process_limit")}
"""what cannot be there without it, and so need not be named as well"""


@dataclass(frozen=True)
class Report:
    """The findings; ``missing``: feature -> why it does not work."""

    missing: dict[str, str]

    @property
    def level(self) -> int:
        works = set(FEATURES) - set(self.missing)
        if works.issuperset(_FULL):
            return 3
        if "seccomp" not in works:
            return 0
        return 2 if "landlock" in works else 1

    @property
    def isolation(self) -> Isolation:
        return Isolation(self.level, tuple(self.missing))

    @property
    def plan(self) -> int:
        return sum(bit for name, bit in wire.PLAN.items() if name not in self.missing)

    def remedies(self) -> dict[str, str]:
        """Return for each missing feature what to do about it."""
        return {name: _remedy(name) for name in self.missing}


def examine(pretend_missing: tuple[str, ...] = (), python: str | None = None) -> Report:
    """Try everything, in processes of their own; what was found is kept for the life of this process."""
    return Report(dict(_examine(tuple(sorted(pretend_missing)), python or sys.executable)))


def require(config: SandboxConfig) -> Report:
    """Return what the machine allows, or raise SandboxError where that is less than ``config`` asks for."""
    report = examine(config.pretend_missing, config.python)
    allowed = set(config.allow)
    for name in config.allow:
        allowed.update(_IMPLIED.get(name, ()))
    unmet = [name for name in report.missing if FEATURES[name] <= config.min_level and name not in allowed]
    if report.level >= config.min_level or not unmet:
        return report
    lines = [f"  {name}: {report.missing[name]}\n    {_remedy(name)}" for name in unmet]
    names = [name for name in unmet if not any(name in _IMPLIED.get(other, ()) for other in unmet)]
    raise SandboxError(
        f"programs can be kept apart at level {report.level} here, not at {config.min_level}. Missing:\n"
        + "\n".join(lines)
        + f"\nOr accept less: allow={tuple(names)!r}, or another backend (docker, bubblewrap)."
    )


@functools.cache
def _examine(pretend_missing: tuple[str, ...], python: str) -> tuple[tuple[str, str], ...]:
    if not sys.platform.startswith("linux"):
        raise SandboxError(
            f"the fork backend needs Linux, this is {sys.platform}; use backend='subprocess' with min_level=0, "
            "which keeps programs apart by limits only"
        )
    from fugu.coding.sandbox.worker import ENVIRONMENT, FLAGS, boot

    command = [python, *FLAGS, *boot("trial", ",".join(pretend_missing))]
    try:
        done = subprocess.run(command, env=ENVIRONMENT, cwd="/", capture_output=True, timeout=120, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise ValueError(printable(done.stderr.strip().rpartition(b"\n")[2]))
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"could not find out what this machine allows: {error}") from None
    return tuple((name, printable(found[name])) for name in FEATURES if found[name])


def _remedy(feature: str) -> str:
    if feature == "landlock":
        return "needs Linux 5.13 with Landlock among its security modules (boot with lsm=landlock,...); gVisor has none"
    if feature == "seccomp":
        return "needs a kernel with seccomp filters on x86_64 or aarch64"
    if feature == "process_limit":
        return "needs Linux 5.14, and a user other than root to change to (in a container: --cap-add SETUID --cap-add SETGID)"
    for path, value, what in (
        ("/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), or an AppArmor profile that lets Python use userns",
        ),
    ):
        if _read(path).strip() == value:
            return f"user namespaces are switched off: {what}"
    if "gvisor" in _read("/proc/version").lower() or "gvisor" in _read("/proc/sys/kernel/osrelease").lower():
        return "gVisor does not allow this inside; it is a sandbox itself, so accept a lower level here"
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists() or "container" in os.environ:
        return (
            "a container's profile forbids it: docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
        )
    return "needs user namespaces and mounts inside them; some security module forbids it (see dmesg)"


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
