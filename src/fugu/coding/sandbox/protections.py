"""List what a sandbox protects from, by name, and what of it a given backend does not give here. Data for ``fugu sandbox`` and for
the conformance suite, in which a case whose protection is missing is reported as not provided.
"""

from __future__ import annotations

from collections.abc import Collection

from fugu.coding.sandbox.config import FEATURES
from fugu.coding.sandbox.contract import Backend

PROTECTIONS: dict[str, str] = {
    "files": "cannot read the machine's files, beyond the interpreter's own",
    "writes": "cannot write outside its own folder",
    "disk": "has a folder of its own, of limited size, that is gone after the run",
    "inodes": "creates a limited number of files",
    "devices": "has no devices of the machine",
    "network": "has no network, and no sockets",
    "ipc": "shares no memory, queues, keys or locks with anything else",
    "others": "cannot signal or trace other processes",
    "tree": "every process it started ends with it",
    "processes": "starts a limited number of processes",
    "together": "is limited in what all its processes take together",
    "memory": "is limited in memory, however it takes it",
    "privileges": "has no capabilities and gains none",
    "kernel": "is refused the kernel's privileged and rarely needed calls",
    "secrets": "finds neither tests nor earlier programs in its memory or surroundings",
}

FIRST_ONLY = {"together": "the runner in the box counts the CPU time of the program's first process"}
"""what backends that start a process per program do not give"""

NOTHING = tuple(name for name in PROTECTIONS if name != "secrets")
"""what limits alone do not give"""

# protection -> features each of which gives it
BY: dict[str, frozenset[str]] = {
    "files": frozenset({"mounts", "landlock"}),
    "writes": frozenset({"mounts", "landlock", "seccomp"}),
    "disk": frozenset({"mounts"}),
    "inodes": frozenset({"mounts"}),
    "devices": frozenset({"mounts", "landlock"}),
    "network": frozenset({"seccomp"}),
    "ipc": frozenset({"seccomp"}),
    "others": frozenset({"namespaces", "seccomp"}),
    "tree": frozenset({"namespaces", "seccomp"}),  # where processes could survive, none can be started
    "processes": frozenset({"process_limit", "seccomp"}),
    "together": frozenset({"namespaces", "seccomp"}),  # without namespaces there is one process
    "memory": frozenset({"seccomp"}),
    "privileges": frozenset({"seccomp"}),
    "kernel": frozenset({"seccomp"}),
}


def gaps(backend: Backend) -> dict[str, str]:
    """Return by protection why ``backend`` does not give it. Empty at its best."""
    return {**without(backend.isolation.missing), **getattr(backend, "gaps", {})}


def without(missing: Collection[str]) -> dict[str, str]:
    """Return by protection why it is not given where these features are missing."""
    absent = set(missing) & set(FEATURES)
    if "process_limit" in absent and "namespaces" not in absent:  # then programs may start some, and nobody counts
        absent.add("processes")
    return {name: f"needs {' or '.join(sorted(ways))}" for name, ways in BY.items() if ways <= absent or name in absent}
