"""Where a run came from: ``origin.json`` with the command, versions, machine, commit and spaces, and copies of the user's own files.

Written once, when a run begins. Nothing of it is needed to train, so nothing that goes wrong here ends a training. What it holds
about a person is what they typed: no name of a user or of a machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fugu import __version__, files
from fugu.config import read_toml
from fugu.emulation.place import split_file
from fugu.errors import ConfigError
from fugu.run import code
from fugu.run.commit import Commit
from fugu.run.given import Given, by_text
from fugu.run.store import RunFolder
from fugu.run.trust import ROLES, Gate, stamp, text_of
from fugu.spaces import Layout
from fugu.trainer.config import TrainConfig


def note_origin(folder: RunFolder, config: TrainConfig, vec: Any = None) -> None:
    """Write down where a new run comes from, and copy and seal the code it names. ``vec``: its environments."""
    copied: dict[str, Any] = {}
    with contextlib.suppress(Exception), Commit() as commit:  # git works while the rest is looked up
        with contextlib.suppress(Exception):
            data = read_toml(folder.config)
            copied = _copied(folder, data, ROLES)
            stamp(folder, data)
        found: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": [*sys.orig_argv[:1], *sys.argv],
            "folder": os.getcwd(),
            "versions": _versions(),
            "machine": _machine(config.device),
            "spaces": _spaces(vec),
            "code": copied,
            "git": commit.found(folder.at / "origin.diff"),
        }
        files.write(folder.origin, json.dumps(found, indent=1, default=str) + "\n")


def renew_origin(folder: RunFolder, gate: Gate, given: Given) -> None:
    """Copy the files that were given when a run was resumed, and seal it if all code that it names now was asked for. ``gate``: that
    of the run as it was."""
    with contextlib.suppress(Exception):
        data = read_toml(folder.config)
        named = [role for role, value in given.items() if by_text(value) == text_of(data, role)]
        old = [role for role in named if gate.trusted and text_of(data, role) == text_of(gate.data, role)]
        copied = _copied(folder, data, [role for role in named if role not in old])
        if copied:
            found = _read(folder.origin)
            found["code"] = {**found.get("code", {}), **copied}
            files.write(folder.origin, json.dumps(found, indent=1) + "\n")
        if gate.trusted or set(Gate(folder, data).executes) <= set(named):
            stamp(folder, data)


def refuse_other_spaces(folder: RunFolder, vec: Any) -> None:
    """Raise a ConfigError if environments that were given have other spaces than those the run began with."""
    before, now = _read(folder.origin).get("spaces"), _spaces(vec)
    for name, known in before.items() if isinstance(before, dict) else ():
        if name in now and now[name] != known:
            raise ConfigError(
                f"{folder.path}: the environment given does not fit: its {name} are {now[name]}, and the run's {known}"
            )


def _spaces(vec: Any) -> dict[str, str]:
    """Return the parts of observations and actions in words, which are the same for every version of every library."""
    if vec is None:
        return {}
    spaces = {"observations": vec.spec.observation_space, "actions": vec.spec.action_space}
    return {name: ", ".join(map(_part, Layout(space).leaves)) for name, space in spaces.items()}


def _part(leaf: Any) -> str:
    space, name = leaf.space, leaf.name
    size = getattr(space, "nvec", getattr(space, "n", None))
    shape = list(leaf.shape) if size is None else size.tolist() if hasattr(size, "tolist") else int(size)
    return f"{name + ': ' if name else ''}{type(space).__name__} {leaf.dtype} {shape}"


def _copied(folder: RunFolder, data: Mapping[str, Any], roles: Any) -> dict[str, Any]:
    """Copy the files that a config names into the run; role -> what was copied, or why not."""
    found: dict[str, Any] = {}
    for role in roles:
        name = text_of(data, role)
        if not split_file(name)[0]:
            continue
        try:
            files = code.gathered(name)
            code.keep(folder.code, role, files)
            each = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
            found[role] = {"name": name, "sha256": each}
        except (OSError, code.TooMuch) as error:
            code.forget(folder.code, role)  # what was named before
            found[role] = {"name": name, "not_copied": str(error)}
    return found


def _versions() -> dict[str, str]:
    found = {"fugu": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "gymnasium"):
        module = sys.modules.get(name)
        found[name] = str(getattr(module, "__version__", None) or importlib.metadata.version(name))
    return found


def _machine(device: str) -> dict[str, Any]:
    found: dict[str, Any] = {"system": platform.platform(), "cpu": _processor(), "cores": len(os.sched_getaffinity(0))}
    if device.startswith("cuda"):
        import torch

        found["gpu"] = torch.cuda.get_device_name(torch.device(device))
        found["cuda"] = torch.version.cuda
    return found


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _read(path: Path) -> dict[str, Any]:
    """Return what an ``origin.json`` holds; nothing if it is missing or was damaged."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(files.read(path, files.SMALL))
        return found if isinstance(found, dict) else {}
    return {}
