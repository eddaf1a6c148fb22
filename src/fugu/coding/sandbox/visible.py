"""Ask an interpreter what of the file system it needs: ``bubblewrap`` may run programs with another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from fugu.coding.sandbox.root import layout


@dataclass(frozen=True)
class Visible:
    python: str
    """without symbolic links in its path"""
    shown: list[str]
    """files and directories, to be read only"""
    hidden: list[str]
    """directories in them that are none of a program's business: installed packages, above all"""


def main() -> None:
    """Run in that interpreter: see ``worker.boot``."""
    print(json.dumps([os.path.realpath(sys.executable), *layout()]))


def ask(python: str) -> Visible:
    """Ask an interpreter what it can see; OSError or ValueError where it does not answer."""
    from fugu.coding.sandbox.worker import FLAGS, boot

    done = subprocess.run(
        [python, *FLAGS, *boot("visible")], capture_output=True, timeout=60, env={}, cwd="/", stdin=subprocess.DEVNULL
    )
    return Visible(*json.loads(done.stdout))
