"""Every backend, and every level of ``fork``, by a name for the tests; those that cannot run here say why."""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fugu.coding.sandbox import probe
from fugu.coding.sandbox.config import FEATURES, SandboxConfig
from fugu.coding.sandbox.contract import Backend
from fugu.errors import SandboxError
from tests.coding.sandbox import image
from tests.coding.sandbox.arena import Arena
from tests.coding.sandbox.conftest import _for_all
from tests.coding.sandbox.world import World

HERE = "fugu.coding.sandbox"
# name -> (module, function, settings)
BACKENDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fork": ("fork", "ForkBackend", {}),
    "fork-2": (
        "fork",
        "ForkBackend",
        {"pretend_missing": tuple(n for n, level in FEATURES.items() if level > 2), "min_level": 2},
    ),
    "fork-1": (
        "fork",
        "ForkBackend",
        {"pretend_missing": tuple(n for n, level in FEATURES.items() if level > 1), "min_level": 1},
    ),
    "subprocess": ("plain", "open_plain", {"backend": "subprocess", "min_level": 0}),
    "bubblewrap": ("bubblewrap", "open_bubblewrap", {"backend": "bubblewrap", "allow": ("process_limit",)}),
    "docker": ("container", "open_container", {"backend": "docker"}),
    "podman": ("container", "open_container", {"backend": "podman"}),
    "gvisor": ("container", "open_container", {"backend": "podman"}),
}
LEVELS = {"fork": 3, "fork-2": 2, "fork-1": 1}


def open_backend(name: str, **more: Any) -> Backend:
    """SandboxError where it cannot run here."""
    module, function, settings = BACKENDS[name]
    opener = getattr(importlib.import_module(f"{HERE}.{module}"), function)
    if name == "gvisor":
        return opener(SandboxConfig(workers=2, image=image.build("podman"), runtime=gvisor(), **settings, **more))
    if name in ("docker", "podman"):
        return _open_container(opener, {**settings, **more})
    if name in ("fork-2", "fork-1", "bubblewrap"):
        settings = {**settings, "python": python_for_all()}
    return opener(SandboxConfig(**{"workers": 2, **settings, **more}))


def python_for_all() -> str:
    """Without mounts programs see the machine's own files, so they need an interpreter that an unprivileged user can read."""
    for candidate in (sys.executable, "/usr/bin/python3"):
        if _for_all(candidate):
            return candidate
    pytest.skip("no Python 3.11 that an unprivileged user can read")


def gvisor() -> str:
    """runsc as a machine without cgroups it knows, and without a network to offer, has to call it."""
    runsc = shutil.which("runsc")
    if runsc is None:
        raise SandboxError("runsc is not installed")
    script = Path(tempfile.gettempdir()) / "runsc-for-tests"
    script.write_text(f'#!/bin/sh\nexec {runsc} --network=none --platform=ptrace --ignore-cgroups "$@"\n')
    script.chmod(0o755)
    return str(script)


def _open_container(opener: Callable[[SandboxConfig], Backend], settings: dict[str, Any]) -> Backend:
    """With our own image, and the engine's default runtime, or runc where that one does not know this machine's cgroups."""
    picture = image.build(settings["backend"])
    try:
        return opener(SandboxConfig(workers=2, image=picture, **settings))
    except SandboxError:
        return opener(SandboxConfig(workers=2, image=picture, runtime="runc", **settings))


@contextmanager
def arena(name: str, **more: Any) -> Iterator[Arena]:
    """Skips, with the reason, where the backend cannot run."""
    world = World()
    try:
        try:
            backend = open_backend(name, **more)
        except SandboxError as error:
            if name.startswith("fork") and probe.examine(BACKENDS[name][2].get("pretend_missing", ())).level >= LEVELS[name]:
                raise  # this machine offers all it needs
            pytest.skip(f"{name} cannot run here: {error}")
        try:
            yield Arena(backend, world)
        finally:
            backend.close()
    finally:
        world.close()
