"""Backend ``subprocess``: a process per program with resource limits, and nothing that keeps it apart. Level 0: the program runs with
the rights of the user who started it. For systems that offer nothing better, and for programs one trusts; to be asked for by name.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from fugu.coding.sandbox import folder
from fugu.coding.sandbox.accept import accept
from fugu.coding.sandbox.box import Start
from fugu.coding.sandbox.config import FEATURES, SandboxConfig
from fugu.coding.sandbox.contract import Isolation, Program
from fugu.coding.sandbox.launch import FIXED, interpreter
from fugu.coding.sandbox.protections import NOTHING
from fugu.coding.sandbox.spawn import SpawnBackend


class PlainLauncher:
    name = "subprocess"
    isolation = Isolation(0, tuple(FEATURES))
    gaps: Mapping[str, str] = dict.fromkeys(NOTHING, "a plain process has the rights of its user")

    def __init__(self, python: str) -> None:
        self.command = interpreter(python)

    def start(self, program: Program) -> Start:
        return Start(self.command, folder=folder.make(), environment=FIXED)

    def kill(self, start: Start) -> None:
        """Kill its process group, which is all there is."""

    def clear(self, start: Start) -> None:
        if start.folder is not None:
            folder.remove(start.folder)

    def why_not(self) -> str:
        return ""

    def close(self) -> None:
        """Do nothing: nothing is kept open."""


def open_plain(config: SandboxConfig) -> SpawnBackend:
    accept(config, PlainLauncher.isolation, "it only limits what a program uses")
    return SpawnBackend(PlainLauncher(config.python or sys.executable), config.worker_count)
